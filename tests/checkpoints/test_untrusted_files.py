"""Files of a run that are too large, too deep, or not files: every command says so, within bounds.

A child with little memory reads them: reading a sparse file of 40 GB as a whole would end it.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.checkpoints.test_run_directory_security import fit, invoke

import loopwright as lw
from loopwright.plans import record as plan_record

PACKAGE = Path(lw.__file__).parent
LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (600 << 20, 600 << 20))
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
from loopwright.cli import main

for run in sys.argv[1:]:
    sys.argv = ["loopwright", "report", run]
    try:
        main.main()
    except SystemExit as ended:
        print("ended", ended.code, flush=True)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("runs") / "run"
    fit(where)
    (where / "figures").mkdir()
    (where / "figures" / "one.png").write_bytes(b"\x89PNG")
    return where


@pytest.fixture
def copied(run: Path, tmp_path: Path) -> Path:
    shutil.copytree(run, tmp_path / "copied")
    return tmp_path / "copied"


def reports(*runs: Path) -> str:
    """What `report` says in a process with little memory, which imports no TensorFlow."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", LIMITED, *map(str, runs)],
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stdout, done.stdout[-2000:]
    assert done.returncode == 0, (done.returncode, done.stdout[-2000:])
    return done.stdout


SMALL = ["status.json", "environment.json", "plan.json", "model.txt"]


def test_files_without_end_are_refused_in_four_parts(run: Path, tmp_path: Path):
    names = ["metrics.jsonl", *SMALL, "metrics.jsonl"]
    sizes = [40 * 10**9, *[40 * 10**9] * len(SMALL), 10**9]  # the last is a journal of one line
    runs = list[Path]()
    for at, (name, size) in enumerate(zip(names, sizes, strict=True)):
        runs.append(shutil.copytree(run, tmp_path / f"run-{at}"))
        os.truncate(runs[-1] / name, size)
    names.append("figures")
    runs.append(shutil.copytree(run, tmp_path / "run-figures"))
    for at in range(10):
        (runs[-1] / f"figures/{at}.png").touch()
        os.truncate(runs[-1] / f"figures/{at}.png", 60 * 10**6)
    said = reports(*runs).split("ended 2\n")
    assert len(said) == len(runs) + 1, said
    for text, directory, name in zip(said, runs, names, strict=False):
        assert f"error: {directory / name} cannot be used." in text
        assert all(f"  {part}: " in text for part in ("expected", "received", "do"))
    assert "a line of more than" in said[-3]
    assert "bytes of images" in said[-2]


def test_long_lines_of_a_journal_are_not_all_kept(copied: Path):
    with (copied / "metrics.jsonl").open("r+b") as file:
        for at in range(20):
            file.seek(at * 50 * 10**6)
            file.write(b'\n{"event": "started", ')
        file.write(b'\n{"event": "started", "step": 0}\n')
    assert "ended 0" in reports(copied)


@pytest.mark.parametrize("depth", [500, 100_000])
@pytest.mark.parametrize("name", ["status.json", "environment.json", "plan.json"])
def test_json_without_end_is_refused_by_report_and_compare(
    run: Path, copied: Path, name: str, depth: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(copied.parent)
    (copied / name).write_text('{"a": ' + "[" * depth + "]" * depth + "}")
    for words in (["report", str(copied)], ["compare", "--no-find", str(run), str(copied)]):
        if (words[0], name) == ("compare", "status.json"):
            continue  # not read
        code, said = invoke(*words)
        assert code == 2
        assert f"{copied / name} cannot be used" in said
        assert "nested more than 100 levels deep" in said


def test_deep_lines_of_a_journal_are_skipped(copied: Path):
    with (copied / "metrics.jsonl").open("a") as file:
        file.write('{"event": "finished", "a": ' + "[" * 600 + "]" * 600 + "}\n")
    assert invoke("report", str(copied))[0] == 0
    assert invoke("runs", str(copied))[0] == 0


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("pipe", "regular file"), ("link", "symlink"), ("sparse", "bytes"), ("deep", "levels")],
)
def test_a_plan_that_a_config_names_is_a_small_file(tmp_path: Path, kind: str, reason: str):
    path = tmp_path / "p.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        (tmp_path / "real.json").write_text("{}")
        path.symlink_to(tmp_path / "real.json")
    elif kind == "sparse":
        path.touch()
        os.truncate(path, 40 * 10**9)
    else:
        path.write_text("[" * 100_000)
    with pytest.raises(lw.ConfigurationError, match=r"plan history cannot be read") as caught:
        plan_record.load(path)
    assert reason in str(caught.value)
