"""The command line, as a person uses it."""

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tests.cli.small_project import LINEAR, enter, invoke
from tests.processes import run_command

from loopwright.checkpoints.store import Store
from loopwright.cli import compare_command, look_commands, train_commands
from loopwright.config import file as config_file

ESCAPE = "\x1b"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a person's own module, as the working directory."""
    return enter(tmp_path, monkeypatch, mine=LINEAR)


def loopwright(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "loopwright", *arguments]
    return run_command(command, exits=None)


def train(*arguments: str) -> tuple[int, str]:
    return invoke("train", "mine:experiment", "plan=graph", *arguments)


# --- in general ---


def test_help_lists_the_commands_and_imports_no_tensorflow():
    program = (
        "import os, sys; sys.argv = ['loopwright', '--help']; os.environ['COLUMNS'] = '80'\n"
        "from loopwright.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "assert not {'tensorflow', 'keras', 'numpy', 'pydantic'} & set(sys.modules)"
    )
    done = run_command([sys.executable, "-c", program])
    listed = re.findall(r"^  ([a-z]+) +[A-Z].*\.$", done.stdout, re.M)
    assert " ".join(listed) == (
        "new train resume run launch verify evaluate predict export runs report compare replay "
        "profile tune doctor find"
    )
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "--help"],
        ["new", "mine"],
        ["train", "digits", "--show"],
        ["runs", "."],
        ["runs", "run"],
        ["doctor", "--forget-plans"],
        ["report", "run"],
        ["launch", "--workers", "1", "--", "runs", "."],
        ["train", "digitz"],
        ["fork", "run", "--step", "3"],
    ],
)
def test_commands_that_only_look_import_no_tensorflow(arguments: list[str], tmp_path: Path):
    program = (
        f"import sys; sys.argv = ['loopwright', *{arguments!r}]\n"
        "from loopwright.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "assert not {'tensorflow', 'keras'} & set(sys.modules)"
    )
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text('{"event": "started"}\n')
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, cwd=tmp_path)
    assert (tmp_path / "run" / "report.html").exists() == (arguments[0] == "report")


def test_an_unknown_task_is_refused_in_words_without_a_stack():
    assert "loopwright train examples/gan.py" in loopwright("train", "gan").stderr
    done = loopwright("verify", "digitz")
    assert done.returncode == 2
    assert done.stderr.startswith("error: Unknown task.\n  expected: digits, ")
    assert "did you mean digits?" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_shell_completes_tasks(tmp_path: Path):
    (tmp_path / "dig.py").touch()
    environment = {"_LOOPWRIGHT_COMPLETE": "complete_bash", "COMP_CWORD": "2"}
    program = "import sys; sys.argv = ['loopwright']; from loopwright.cli.main import main; main()"
    environment["COMP_WORDS"] = "loopwright train dig"
    command = [sys.executable, "-c", program]
    done = run_command(command, exits=None, cwd=tmp_path, env=environment)
    assert done.stdout.split() == ["digits", "dig.py"]


# --- looking ---


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        ("schedule digits fit.epochs=3 --all", "train SOURCE --rehearse"),
        ("fork runs/a --step 1200 seed=1 --no-train", "train --from RUN@STEP"),
        ("inspect runs/a --json", "runs RUN"),
        ("plans --forget all", "doctor --forget-plans"),
        ("sync runs/a tracking_uri=http://x --to mlflow", "resume RUN"),
        ("plot runs/a runs/b --output curves.png", "compare RUN RUN"),
        ("board runs --port 6006", "tensorboard --logdir DIR"),
        ("recipes", "train --help"),
        ("schema --help", "docs/config.schema.json"),
        ("find batch-size digits --most 64", "halve batch_size"),
    ],
)
def test_a_removed_command_answers_with_what_to_use(words: str, instead: str):
    code, output = invoke(*words.split())
    assert code == 2
    assert output.startswith(f"error: {words.partition(' ')[0]}")
    assert "was removed: " in output
    assert instead in output


def test_a_config_is_shown_as_it_would_be_trained(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LOOPWRIGHT__FIT__EPOCHS", "3")
    monkeypatch.setenv("LOOPWRIGHT__SEED", "8")
    parts = ("loss=bce", "metrics=[mae]")
    code, output = invoke("train", "digits", "--show", "--quick", "fit.epochs=4", *parts)
    assert code == 0
    assert "loss:\n  name: BinaryCrossentropy\n" in output
    assert "metrics:\n- name: MeanAbsoluteError\n  as: mae\n" in output
    assert "  epochs: 4\n" in output
    assert "seed: 8\n" in output
    assert "quick: true\n" in output


def test_an_unknown_option_or_key_is_a_usage_error_with_a_hint():
    assert invoke("train", "digits", "--no-such-option")[0] == 2
    code, output = invoke("train", "digits", "fit.epoch=3")
    assert code == 2
    assert "did you mean epochs?" in output
    code, output = invoke("train", "digits", "loss=hubber", "--show")
    assert (code, "did you mean Huber?" in output) == (2, True)


def test_the_doctor_names_versions_and_devices():
    code, output = invoke("doctor")
    assert code == 0
    assert re.search(r"^tensorflow +\d", output, re.M)
    assert re.search(r"^devices +CPU", output, re.M)
    assert re.search(r"^optuna +(\d|not installed: pip install 'loopwright\[tune\]')", output, re.M)
    assert "MISSING" not in output


def test_the_doctor_forgets_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LOOPWRIGHT_CACHE_DIR", str(tmp_path))
    (tmp_path / "plans").mkdir()
    (tmp_path / "plans" / "ab.json").write_text("{")
    assert f"1 in {tmp_path / 'plans'}" in look_commands._remembered()
    code, output = invoke("doctor", "--forget-plans")
    assert (code, output.partition(";")[0]) == (0, "plans forgotten: 1")
    assert not (tmp_path / "plans").exists()
    monkeypatch.setenv("LOOPWRIGHT_CACHE_DIR", "")
    assert "switches the memory off" in look_commands._remembered()


# --- a run, from its beginning to what it is used for ---


def test_a_run_is_trained_listed_inspected_scored_asked_and_trained_on(project: Path):
    run = "runs/experiment"
    assert train("fit.save_every=1 epoch")[0] == 0

    code, output = invoke("runs")
    assert code == 0
    assert re.search(rf"^{run} +complete +8 +val_loss \S+ at step 8 +0:00:0\d +20", output, re.M)
    code, output = invoke("runs", "runs", "--json", "--sort", "step")
    assert json.loads(output)[0]["step"] == 8
    assert invoke("runs", "runs", "--sort", "beauty")[0] == 2
    assert invoke("runs", "runs", "--mode", "max")[0] == 2
    assert invoke("runs", "runs", "--metric", "val_beauty")[0] == 2
    assert invoke("runs", "runs", "--metric", "val_beauty", "--mode", "max")[0] == 0
    assert invoke("runs", "nowhere")[0] == 2

    code, output = invoke("runs", run)
    assert code == 0
    assert re.search(r"^8 +2 +[\d,]+ +loss \S+ +valid$", output, re.M)
    assert re.search(r"^plan +graph step, .* from step 1$", output, re.M)
    assert max(map(len, output.splitlines())) <= 80
    code, output = invoke("runs", run, "--json")
    shown = json.loads(output)
    assert [one["step"] for one in shown["checkpoints"]] == [4, 8]
    assert shown["status"] == "complete"
    assert shown["plans"]["changes"][0]["plan"]["step"] == "graph"
    kernel = next(row for row in shown["variables"] if row["name"].endswith("kernel"))
    assert (kernel["shape"], kernel["bytes"]) == ([3, 2], 24)

    for checkpoint, step in {"last": 8, "4": 4, "best": 8}.items():
        code, output = invoke(
            "evaluate", run, "--checkpoint", checkpoint, "--task", "mine:experiment"
        )
        assert code == 0
        assert output.startswith(f"validation data, step {step}: loss ")
    assert invoke("evaluate", run, "--checkpoint", "5", "--task", "mine:experiment")[0] == 2
    assert invoke("evaluate", run, "--checkpoint", "worst", "--task", "mine:experiment")[0] == 2

    x = np.arange(6, dtype="float32").reshape(2, 3)
    np.save("x.npy", x)
    np.savetxt("x.csv", x, delimiter=",", header="a,b,c", comments="")
    for given in ("x.npy", "x.csv"):
        code, output = invoke(
            *("predict", run, "--input", given, "--output", f"{given}.out.npy"),
            *("--task", "mine:experiment"),
        )
        assert code == 0, output
    np.testing.assert_array_equal(np.load("x.npy.out.npy"), np.load("x.csv.out.npy"))
    assert np.load("x.npy.out.npy").shape == (2, 2)

    code, output = invoke("resume", run, "fit.epochs=3", "--task", "mine:experiment")
    assert code == 0
    assert "config: fit.epochs: 2 -> 3 (allowed)" in output
    assert invoke("runs", run, "--json")[1].count('"step": 12')


def test_a_training_ends_with_a_summary_a_report_and_an_export(project: Path):
    code, output = train("export=saved_model")
    assert code == 0
    assert "experiment/export/1 (serve: what predict returns): outputs match step 8" in output
    lines = [line.rstrip() for line in output.splitlines()]
    for words in (
        r"run         runs/experiment · completed · 8 steps · .*",
        r"last epoch  loss \S+, val_loss \S+",
        r"best        val_loss \S+ at step 8",
        r"time        .*step \d+%.*",
        r"files       runs/experiment/report.html  \(curves, plan, time, environment\)",
        r"            runs/experiment/export/1  \(for serving\)",
        r"            runs/experiment/checkpoints  \(steps 4, 8\)",
        r"next        loopwright evaluate runs/experiment --checkpoint best --task mine:experiment",
        r"            loopwright resume runs/experiment fit.epochs=4 --task mine:experiment",
        r"            tensorboard --logdir runs",
    ):
        assert any(re.fullmatch(words, line) for line in lines), words
    # Nothing new was trained: nothing is exported again.
    assert (
        "export/1 (what predict returns) already contains step 8, skipped"
        in train("export=saved_model")[1]
    )

    report = project / "runs/experiment/report.html"
    report.unlink()
    assert invoke("report", "runs/experiment") == (0, "runs/experiment/report.html\n")
    assert "loss over steps" in report.read_text()
    assert invoke("report", "nowhere")[0] == 2


def test_sinks_of_ones_own_are_named_by_a_person(project: Path):
    with (project / "mine.py").open("a") as file:
        file.write("\n\ndef note(event):\n    print('heard', type(event).__name__)\n")
    code, output = train("sinks=[mine:note]")
    assert code == 0
    assert "heard EpochEnded" in output
    told = re.search(r"loopwright (resume runs/experiment fit\.epochs=4 .*)", output)
    assert told is not None
    resumed = ("resume", "runs/experiment", "fit.epochs=3", "--task", "mine:experiment")
    code, output = invoke(*resumed)
    assert code == 2
    assert "sinks=[mine:note], if you know and trust this code" in output
    code, output = invoke(*shlex.split(told[1]))
    assert (code, "heard EpochEnded" in output) == (0, True)


@pytest.mark.parametrize(
    ("sink", "words"),
    [
        ("mlflow", ""),
        ("{name: wandb, entity: us}", """ 'sinks=[{name: "wandb", entity: "us"}]'"""),
        ("{name: mlflow, tracking_uri: 'http://a:secret@b'}", " sinks=..."),
    ],
)
def test_a_command_to_resume_shows_addresses_without_passwords(sink: str, words: str):
    config = config_file.load("digits", [f"sinks=[{sink}]"])
    assert train_commands._resume_command(config) == f"loopwright resume runs/digits{words}"


def test_images_are_predicted_in_the_size_and_channels_of_the_model(project: Path):
    assert train("data.channels=1")[0] == 0
    pixels = np.random.default_rng(0).integers(0, 255, (4, 4, 1), "uint8")
    np.save("same.npy", pixels[None].astype("float32") / 255)
    Path("small.png").write_bytes(tf.io.encode_png(pixels).numpy())
    Path("large.jpg").write_bytes(tf.io.encode_jpeg(np.zeros((9, 7, 3), "uint8")).numpy())
    Path("not_an_image.png").write_bytes(b"hello")
    common = ("--task", "mine:experiment", "--output")
    images = ("--input", "small.png", "--input", "large.jpg")
    assert invoke("predict", "runs/experiment", *images, *common, "y.csv")[0] == 0
    assert invoke("predict", "runs/experiment", "--input", "same.npy", *common, "y.npy")[0] == 0
    table = np.loadtxt("y.csv", delimiter=",")
    assert table.shape == (2, 2)
    np.testing.assert_allclose(table[:1], np.load("y.npy"), rtol=1e-5)
    for given in ("not_an_image.png", "missing.npy", "mine.py"):
        code, _ = invoke("predict", "runs/experiment", "--input", given, *common, "z.npy")
        assert code == 2, given
    assert invoke("predict", "runs/experiment", "--input", "same.npy", *common, "z.txt")[0] == 2
    np.save("pickled.npy", np.array([{}], dtype=object), allow_pickle=True)
    assert invoke("predict", "runs/experiment", "--input", "pickled.npy", *common, "z.npy")[0] == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["resume", "run"],
        ["evaluate", "run"],
        ["export", "run"],
        ["predict", "run", "--input", "x.npy", "--output", "y.npy"],
        ["verify", "run"],
        ["train", "--from", "run@3"],
    ],
)
@pytest.mark.parametrize(
    ("config", "code"),
    [
        ("task: evil:task", "--task evil:task"),
        ("task: mine:experiment\nloss: evil:task", "--task mine:experiment --task evil:task"),
        (
            "task: mine:experiment\nmetrics: [mae, {name: evil:task, path: /}]",
            "--task mine:experiment --task evil:task",
        ),
    ],
)
@pytest.mark.parametrize("task", [[], ["--task", "mine:experiment"]])
def test_a_run_directory_alone_runs_no_code_of_anybody(
    project: Path, arguments: list[str], config: str, code: str, task: list[str]
):
    (project / "run").mkdir()
    (project / "run" / "config.yaml").write_text(config)
    (project / "evil.py").write_text("open('executed', 'w')\n")
    exit_code, output = invoke(*arguments, *task)
    assert exit_code == 2
    assert "a run directory may not call" in output
    assert f"expected: {code}, if you know and trust this code" in output
    assert not (project / "executed").exists()


PYPROJECT = '[tool.loopwright]\ntask = "mine:experiment"\n'


def test_a_project_names_its_task_once(project: Path):
    (project / "pyproject.toml").write_text(PYPROJECT)
    code, output = train()
    assert code == 0
    assert "loopwright evaluate runs/experiment --checkpoint best\n" in output
    run = "runs/experiment"
    assert invoke("evaluate", run)[1].startswith("validation data, step 8: loss ")
    assert invoke("resume", run, "fit.epochs=3")[0] == 0
    code, output = invoke("replay", run, "--step", "9")
    assert code == 0, output
    records: Any = [SimpleNamespace(directory=Path(run))]
    assert compare_command._objection_to_replay(records, []) is None


@pytest.mark.parametrize(
    "text", [PYPROJECT, "[tool]\nloopwright = 3\n", "[tool.loopwright]\n", "["]
)
def test_other_code_than_that_of_the_project_is_not_imported(project: Path, text: str):
    (project / "pyproject.toml").write_text(text)
    (project / "run").mkdir()
    (project / "run" / "config.yaml").write_text("task: evil:experiment\n")
    (project / "evil.py").write_text("open('executed', 'w')\n")
    code, output = invoke("evaluate", "run")
    assert code == 2
    assert 'in its pyproject.toml: [tool.loopwright] task = "evil:experiment"' in output
    assert not (project / "executed").exists()


@pytest.mark.parametrize("below", ["", "checkpoints"])
def test_a_pyproject_inside_a_run_directory_does_not_count(
    project: Path, below: str, monkeypatch: pytest.MonkeyPatch
):
    inside = project / "run" / below
    inside.mkdir(parents=True)
    (project / "run" / "config.yaml").write_text("task: evil:experiment\n")
    (inside / "pyproject.toml").write_text('[tool.loopwright]\ntask = "evil:experiment"\n')
    (inside / "evil.py").write_text("open('executed', 'w')\n")
    monkeypatch.chdir(inside)
    code, output = invoke("evaluate", str(project / "run"))
    assert code == 2
    assert "a run directory may not call" in output
    assert not (inside / "executed").exists()


OWN_OPTIMIZER = """
import keras, numpy as np
import loopwright as lw


def make_task(*, optimizer=None):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    given = optimizer or keras.optimizers.SGD(0.5, momentum=0.25)
    print("rate", float(given.learning_rate), "momentum", given.momentum)
    return lw.Supervised(model, "mse", given)


def experiment():
    x = np.ones((8, 3), "float32")
    return lw.Experiment(make_task, fit={"x": x, "y": x[:, :1], "epochs": 1})
"""


def test_an_option_of_the_optimizer_changes_the_one_that_the_task_makes(project: Path):
    (project / "chosen.py").write_text(OWN_OPTIMIZER)
    given = ("chosen:experiment", "plan=graph", "optimizer.learning_rate=0.125")
    code, output = invoke("train", *given)
    assert code == 0
    assert "rate 0.125 momentum 0.25" in output
    code, output = invoke("resume", "runs/experiment", "fit.epochs=2", "--task", given[0])
    assert code == 0
    assert output.count("rate 0.125 momentum 0.25") == 1
    code, output = invoke("train", *given, "optimizer.learnin_rate=1", "run_dir=other")
    assert code == 2
    assert "unknown argument learnin_rate; did you mean learning_rate?" in output
    code, output = invoke("train", *given, "optimizer.name=adam", "--show")
    assert code == 0
    assert "name: Adam" in output


def test_a_run_with_a_loss_of_ones_own_is_used_by_naming_it(project: Path):
    Path("my_loss.py").write_text("def error(y_true, y_pred):\n    return (y_true - y_pred) ** 2\n")
    code, output = invoke("train", "mine:experiment", "loss=my_loss:error", "plan=graph")
    assert code == 0
    named = "--task mine:experiment --task my_loss:error"
    assert f"loopwright evaluate runs/experiment --checkpoint best {named}" in output
    code, output = invoke("evaluate", "runs/experiment", *named.split())
    assert code == 0
    assert output.startswith("validation data, step 8: loss ")


def test_a_file_that_a_person_names_may_name_a_task(project: Path):
    Path("own.yaml").write_text("task: mine:experiment\nfit: {epochs: 1}\nplan: graph\n")
    assert invoke("train", "own.yaml", "--run-dir", "elsewhere")[0] == 0
    assert "epochs: 1" in Path("elsewhere/config.yaml").read_text()


def test_nan_is_an_exit_code_of_its_own(project: Path):
    assert train("data.poisoned=true", "fit.validate_every=9 epochs")[0] == 3


# --- terminals, pipes, signals ---


def long_training() -> list[str]:
    words = ["train", "mine:experiment", "plan=graph", "fit.until=1 hour"]
    return [sys.executable, "-m", "loopwright", *words, "fit.save_every=40 steps"]


def wait_for_checkpoint(process: "subprocess.Popen[Any]") -> None:
    while process.poll() is None and not list(Path("runs").glob("*/checkpoints/step-????????")):
        time.sleep(0.05)


def test_ctrl_c_in_a_terminal_saves_and_tells_how_to_go_on(project: Path):
    main_end, other_end = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k not in {"CI", "NO_COLOR"}}
    process = subprocess.Popen(
        long_training(),
        stdin=other_end,
        stdout=other_end,
        stderr=other_end,
        env={**environment, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"},
        start_new_session=True,
    )
    os.close(other_end)
    drawn = b""
    try:
        os.set_blocking(main_end, False)
        is_asked = False
        while True:
            try:
                drawn += os.read(main_end, 65536)
            except BlockingIOError:
                time.sleep(0.05)
            except OSError:  # the other end is closed
                break
            if not is_asked and list(Path("runs").glob("*/checkpoints/step-????????")):
                is_asked = True
                os.killpg(process.pid, signal.SIGINT)
        code = process.wait()
    finally:
        os.close(main_end)
        if process.poll() is None:
            process.kill()
            process.wait()
    text = drawn.decode(errors="replace")
    assert code == 130, text
    assert ESCAPE in text
    told = re.search(r"saved at step (\d+)\. To resume: loopwright (resume \S+ --task \S+)", text)
    assert told is not None, text
    more = int(told[1]) + 8
    # What it says works: here until a step that is not far away.
    path = project / "runs" / "experiment" / "config.yaml"
    assert "until: 3600 seconds" in path.read_text()
    path.write_text(path.read_text().replace("3600 seconds", "1 step"))
    code, output = invoke(*told[2].split(), f"fit.until={more} steps")
    assert code == 0, output
    assert f"{more} steps" in output


def test_in_a_pipe_there_are_plain_lines_and_sigterm_saves(project: Path):
    process = subprocess.Popen(
        long_training(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_for_checkpoint(process)
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate()
    assert process.returncode == 143, errors
    assert output
    assert ESCAPE not in output + errors
    assert "\r" not in output
    assert re.search(r"saved at step \d+\. To resume: loopwright resume runs/experiment", errors)
    assert "interrupted" in invoke("runs")[1]


# --- verify ---


def test_a_run_is_verified_by_its_config_in_another_place(
    project: Path, monkeypatch: pytest.MonkeyPatch
):
    from loopwright.cli import verify

    started: list[list[str]] = []

    def note(title: str, command: verify.Command, **_: Any) -> verify.Verdict:
        started.append(command(project / "other", "graph"))
        return verify.Verdict("exact", 0)

    monkeypatch.setattr(verify, "train_and_kill", note)
    assert train("seed=3")[0] == 0
    before = {path: path.stat().st_mtime_ns for path in (project / "runs").rglob("*")}
    assert invoke("verify", "runs/experiment", "--task", "mine:experiment")[0] == 0
    for source, is_quick in (("mine:experiment", False), ("digits", True)):
        assert invoke("verify", source)[0] == 0
        assert ("quick=true" in started[-1]) == is_quick
    assert started[0][:4] == [sys.executable, "-P", "-m", "loopwright"]
    keys = {word.partition("=")[0] for word in started[0] if "=" in word}
    assert keys == {"plan", "fit.save_every", "sinks", "export", "task"}
    assert invoke(*started[0][4:])[0] == 0
    assert {path: path.stat().st_mtime_ns for path in (project / "runs").rglob("*")} == before
    saved = Store(project / "other" / "checkpoints").newest()
    trained = Store(project / "runs" / "experiment" / "checkpoints").newest()
    assert saved is not None
    assert trained is not None
    name = "state.data-00000-of-00001"
    assert (saved.path / name).read_bytes() == (trained.path / name).read_bytes()
