"""`loopwright new`: a project that trains, is killed and resumed, and passes its own tests."""

import importlib
import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cli.small_project import content_of, invoke

FILES = {"task.py", "config.yaml", "test_task.py", "pyproject.toml", "README.md", ".gitignore"}


def run(directory: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", *words]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)


def test_a_new_project_has_its_files_and_says_what_to_do_next(tmp_path: Path):
    code, output = invoke("new", "spirals", "--directory", str(tmp_path))
    assert code == 0
    assert {path.name for path in (tmp_path / "spirals").iterdir()} == FILES
    assert [path.name for path in tmp_path.iterdir()] == ["spirals"], "something was left behind"
    assert f"cd {tmp_path / 'spirals'}" in output
    assert "loopwright train config.yaml" in output
    assert "run_dir: runs/spirals" in (tmp_path / "spirals" / "config.yaml").read_text()
    expected = stat.S_IMODE(tmp_path.stat().st_mode)
    assert stat.S_IMODE((tmp_path / "spirals").stat().st_mode) == expected
    for file in (tmp_path / "spirals").iterdir():
        assert "{{" not in file.read_text()
        assert stat.S_IMODE(file.stat().st_mode) == expected & 0o666


def test_an_empty_directory_is_filled_and_a_full_one_is_left_as_it_is(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    assert invoke("new", "mine", "--directory", str(tmp_path))[0] == 0
    (tmp_path / "mine" / "task.py").write_text("edited = True\n")
    before = content_of(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    for name, received in (("mine", "files"), ("file", "a file"), ("link", "a symlink")):
        code, output = invoke("new", name, "--directory", str(tmp_path))
        assert code == 2
        assert f"received: {received}" in output
        assert f"loopwright new {name}_2" in output
    (tmp_path / "file").unlink()
    assert content_of(tmp_path) == before


@pytest.mark.parametrize(
    ("name", "way_out"),
    [
        ("my-project", "loopwright new my_project"),
        ("../above", "loopwright new above"),
        ("3d", "loopwright new my_3d"),
        ("class", "loopwright new my_class"),
        ("größe", "loopwright new gr_e"),
        ("", "loopwright new my_project"),
        ("numpy", "loopwright new my_numpy"),
        ("loopwright", "loopwright new my_loopwright"),
        ("__init__", "loopwright new init"),
        ("True", "loopwright new my_True"),
    ],
)
def test_a_name_that_is_no_module_or_hides_one_is_refused(name: str, way_out: str, tmp_path: Path):
    code, output = invoke("new", "--directory", str(tmp_path), "--", name)
    assert code == 2
    assert f"do: {way_out}" in output
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_missing_or_read_only_is_refused(tmp_path: Path):
    code, output = invoke("new", "mine", "--directory", str(tmp_path / "gone"))
    assert code == 2
    assert "No such directory" in output
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    tmp_path.chmod(0o500)
    code, output = invoke("new", "mine", "--directory", str(tmp_path))
    tmp_path.chmod(0o700)
    assert code == 2
    assert "cannot be written" in output


@pytest.mark.timeout(900)
def test_a_new_project_trains_is_killed_and_resumes_to_the_same_bits(tmp_path: Path):
    run(tmp_path, "loopwright", "new", "mine")
    project = tmp_path / "mine"
    train = ["loopwright", "train", "config.yaml", "plan=graph", "data.rows=320", "fit.epochs=30"]
    whole = run(project, *train, "run_dir=runs/whole")
    assert whole.returncode == 0, whole.stdout + whole.stderr
    command = [sys.executable, "-m", *train, "run_dir=runs/killed", "fit.save_every=7 steps"]
    child = subprocess.Popen(command, cwd=project, stdout=subprocess.DEVNULL)
    saved = project / "runs" / "killed" / "checkpoints"
    while child.poll() is None and len(list(saved.glob("step-????????"))) < 2:
        time.sleep(0.005)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert json.loads((project / "runs/killed/status.json").read_text())["status"] != "completed"
    resumed = run(project, *train, "run_dir=runs/killed", "fit.save_every=7 steps")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert "resuming from step" in resumed.stdout
    losses = [
        json.loads((project / "runs" / name / "history.json").read_text())
        for name in ("whole", "killed")
    ]
    assert losses[0] == losses[1]
    compared = run(project, "loopwright", "compare", "runs/whole", "runs/killed", "--no-find")
    assert "are the same, bit for bit" in compared.stdout, compared.stdout


def test_the_tests_of_a_new_project_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In this process, which has TensorFlow already."""
    invoke("new", "mine", "--directory", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path / "mine"))
    for name in ("task", "test_task"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    own = importlib.import_module("test_task")
    tests = [value for name, value in vars(own).items() if name.startswith("test_")]
    assert len(tests) == 3
    for test in tests:
        test()
    for name in ("task", "test_task"):
        del sys.modules[name]
