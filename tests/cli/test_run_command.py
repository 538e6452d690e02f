"""`loopwright run`: a program of one's own, with its exit code, signals, terminal and arguments."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from loopwright.plans import settings_memory
from loopwright.plans.settings import ONEDNN, THREADS, Settings

RUN = [sys.executable, "-m", "loopwright", "run"]
ON, OFF = Settings(onednn=True), Settings(onednn=False)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOPWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv(ONEDNN, raising=False)


def script(tmp_path: Path, code: str) -> None:
    (tmp_path / "train.py").write_text(code)


def ran(tmp_path: Path, *words: str, given: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*RUN, *words], cwd=tmp_path, input=given, capture_output=True, text=True, check=False
    )


def test_arguments_input_output_and_exit_code_pass_through(tmp_path: Path):
    script(tmp_path, "import sys; print(sys.argv, input()); sys.exit(7)")
    done = ran(tmp_path, "train.py", "--width", "64", "-x", "--probe", given="typed\n")
    assert done.stdout == "['train.py', '--width', '64', '-x', '--probe'] typed\n"
    assert (done.returncode, done.stderr) == (7, "")


def test_a_module_is_run_as_python_runs_it(tmp_path: Path):
    script(tmp_path, "import sys; print(__name__, sys.argv[1:])")
    assert ran(tmp_path, "-m", "train", "a").stdout == "__main__ ['a']\n"


def test_signals_reach_the_program_under_the_same_pid(tmp_path: Path):
    script(
        tmp_path,
        "import os, signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(11))\n"
        "print(os.getpid(), flush=True)\nsignal.pause()\n",
    )
    child = subprocess.Popen([*RUN, "train.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert int(child.stdout.readline()) == child.pid
    child.send_signal(signal.SIGTERM)
    assert child.wait(timeout=60) == 11
    child.stdout.close()


PRINTS = f"import os; print(os.environ.get({ONEDNN!r}))"


def remember(tmp_path: Path, *program: str, is_faster: bool = True) -> None:
    key = settings_memory.command_key("run", str(tmp_path), list(program))
    known = settings_memory.SettingsChoice("step", OFF, ON, (1.0,), (2.0,), is_faster, "", "")
    settings_memory.remember(known, key)


def test_remembered_settings_are_set_before_the_program_starts(tmp_path: Path):
    script(tmp_path, PRINTS)
    assert ran(tmp_path, "train.py").stdout == "None\n"
    remember(tmp_path, "train.py")
    assert ran(tmp_path, "train.py").stdout == "1\n"
    assert ran(tmp_path, "train.py", "other").stdout == "None\n"
    assert ran(tmp_path, "--settings", "default", "train.py").stdout == "None\n"


def test_settings_that_lost_are_not_set(tmp_path: Path):
    script(tmp_path, PRINTS)
    remember(tmp_path, "train.py", is_faster=False)
    assert ran(tmp_path, "train.py").stdout == "None\n"


def test_a_variable_of_the_user_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    script(tmp_path, PRINTS)
    remember(tmp_path, "train.py")
    monkeypatch.setenv(ONEDNN, "0")
    monkeypatch.setenv(THREADS["intra_op_threads"], "2")
    done = ran(tmp_path, "--probe", "train.py")
    assert done.stdout == "0\n"
    told = "nothing to measure: TF_ENABLE_ONEDNN_OPTS and TF_NUM_INTRAOP_THREADS are set"
    assert done.stderr == f"loopwright run: {told}\n"


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["none.py"], "The program does not exist."),
        (["-m"], "No module to run."),
        (["--settings", "fastest", "train.py"], "Unknown process settings."),
        ([], "Missing argument"),
    ],
)
def test_a_wrong_command_is_refused(tmp_path: Path, words: list[str], what: str):
    script(tmp_path, "")
    done = ran(tmp_path, *words)
    assert done.returncode == 2
    assert what in done.stderr


def test_a_program_that_never_trains_is_run_although_it_cannot_be_measured(tmp_path: Path):
    script(tmp_path, "print('hello')")
    done = ran(tmp_path, "--probe", "train.py")
    assert done.stdout == "hello\n"
    assert "the settings could not be measured (ended with exit code 0: hello)" in done.stderr


def test_it_does_not_import_tensorflow(tmp_path: Path):
    code = "import sys; from loopwright.cli import main; print('tensorflow' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


TRAINS = """
import sys
import keras, numpy as np
from keras import layers
import loopwright as lw
from loopwright.compat import process

x = np.random.default_rng(0).normal(size=(256, 12, 12, 3)).astype("float32")
parts = [layers.Conv2D(8, 3), layers.Flatten(), layers.Dense(1)]
model = keras.Sequential([keras.Input((12, 12, 3)), *parts])
trainer = lw.Trainer(lw.Supervised(model, "mse", "sgd"), run_dir="run", plan=sys.argv[1])
trainer.fit(x, np.ones((256, 1)), epochs=2, verbose=2)
print("oneDNN", process.onednn_is_on())
"""


def test_a_probe_measures_a_program_and_starts_it_by_what_was_faster(tmp_path: Path):
    script(tmp_path, TRAINS)
    done = ran(tmp_path, "--probe", "train.py", "graph")
    assert done.returncode == 0, done.stderr[-3000:]
    key = settings_memory.command_key("run", str(tmp_path), ["train.py", "graph"])
    known = settings_memory.for_command(key)
    if known is None:
        assert "nothing to measure" in done.stderr  # TensorFlow has it on here by itself
        return
    assert f"{known.why}: starting with {known.chosen.in_words}" in done.stderr
    assert f"oneDNN {known.chosen.onednn}" in done.stdout
    assert os.path.isdir(tmp_path / "run" / "checkpoints")
    # The children that were measured have trained nothing of the run.
    assert "resuming" not in done.stdout + done.stderr


SHORT = """
import os
import keras, numpy as np
import loopwright as lw

x = np.random.default_rng(0).normal(size=(1024, 8)).astype("float32")
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8), keras.layers.Dense(1)])
trainer = lw.Trainer(lw.Supervised(model, "mse", "sgd"), plan="fused")
trainer.fit(x, x[:, :1], epochs=2, verbose=0)
print("threads", os.environ.get("TF_NUM_INTRAOP_THREADS"))
"""


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core has one thread")
def test_a_probe_of_short_steps_measures_one_thread(tmp_path: Path):
    script(tmp_path, SHORT)
    done = ran(tmp_path, "--probe", "train.py")
    assert done.returncode == 0, done.stderr[-3000:]
    known = settings_memory.for_command(
        settings_memory.command_key("run", str(tmp_path), ["train.py"])
    )
    assert known is not None, done.stderr
    assert (known.other.intra_op_threads, known.plan) == (1, "fused")
    assert f"with {known.other.in_words}" in done.stderr
    assert f"threads {'1' if known.is_other_faster else None}" in done.stdout
