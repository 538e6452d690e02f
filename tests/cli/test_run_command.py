"""`loopwright run`: a program of one's own, with its exit code, signals, terminal and arguments."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from loopwright import settings
from loopwright.launch import ONEDNN, THREADS, Settings, onednn_by_default
from loopwright.plans.plan import Plan
from loopwright.plans.record import PlanHistory
from loopwright.settings import SettingsChoice

RUN = [sys.executable, "-m", "loopwright", "run"]
NOW = Settings(onednn_by_default())
OTHER = Settings(not NOW.onednn)
PRINTS = f"import os; print(os.environ.get({ONEDNN!r}))"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOPWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(ONEDNN, raising=False)


def script(tmp_path: Path, code: str) -> None:
    (tmp_path / "train.py").write_text(code)


def ran(tmp_path: Path, *words: str, given: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*RUN, *words], cwd=tmp_path, input=given, capture_output=True, text=True, check=False
    )


def remember(*program: str, chosen: Settings = OTHER, run_dir: str = "") -> None:
    choice = SettingsChoice("step", NOW, chosen, 2.0, run_dir)
    settings.remember(settings.program_key(program), choice)


def test_arguments_input_output_and_exit_code_pass_through(tmp_path: Path):
    script(tmp_path, "import sys; print(sys.argv, input()); sys.exit(7)")
    remember("train.py", "--width", "64", "-x", "--probe")
    done = ran(tmp_path, "train.py", "--width", "64", "-x", "--probe", given="typed\n")
    assert done.stdout == "['train.py', '--width', '64', '-x', '--probe'] typed\n"
    assert (done.returncode, done.stderr) == (7, "")


def test_a_module_is_run_as_python_runs_it(tmp_path: Path):
    script(tmp_path, "import sys; print(__name__, sys.argv[1:])")
    remember("-m", "train", "a")
    assert ran(tmp_path, "-m", "train", "a").stdout == "__main__ ['a']\n"


def test_signals_reach_the_program_under_the_same_pid(tmp_path: Path):
    script(
        tmp_path,
        "import os, signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(11))\n"
        "print(os.getpid(), flush=True)\nsignal.pause()\n",
    )
    remember("train.py")
    child = subprocess.Popen([*RUN, "train.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert int(child.stdout.readline()) == child.pid
    child.send_signal(signal.SIGTERM)
    assert child.wait(timeout=60) == 11
    child.stdout.close()


def test_remembered_settings_are_set_before_the_program_starts(tmp_path: Path):
    script(tmp_path, PRINTS)
    remember("train.py")
    remember("train.py", "lost", chosen=NOW)
    assert ran(tmp_path, "train.py").stdout == f"{int(OTHER.onednn)}\n"
    assert ran(tmp_path, "train.py", "lost").stdout == "None\n"
    assert ran(tmp_path, "--settings", "default", "train.py").stdout == "None\n"


def test_the_record_of_the_run_comes_before_what_is_remembered(tmp_path: Path):
    script(tmp_path, PRINTS)
    remember("train.py", run_dir=str(tmp_path / "run"))
    (tmp_path / "run" / "checkpoints" / "step-00000040").mkdir(parents=True)
    recorded = PlanHistory().changed(0, Plan()).with_settings(0, OTHER)
    recorded.with_settings(30, NOW).save(tmp_path / "run" / "plan.json")
    assert ran(tmp_path, "train.py").stdout == f"{int(NOW.onednn)}\n"


def test_a_variable_of_the_user_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    names = (ONEDNN, THREADS["intra_op_threads"])
    script(tmp_path, f"import os; print(*(os.environ.get(name) for name in {names!r}))")
    remember("train.py", chosen=Settings(OTHER.onednn, intra_op_threads=1))
    monkeypatch.setenv(ONEDNN, str(int(NOW.onednn)))
    assert ran(tmp_path, "train.py").stdout == f"{int(NOW.onednn)} 1\n"


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["none.py"], "The program does not exist."),
        (["-m"], "No module to run."),
        (["--probe", "train.py"], "use `loopwright find settings SCRIPT [ARGS]`"),
        (["--settings", "fastest", "train.py"], "'fastest' is not one of 'auto', 'default'"),
        ([], "Missing argument"),
    ],
)
def test_a_wrong_command_is_refused(tmp_path: Path, words: list[str], what: str):
    script(tmp_path, "")
    done = ran(tmp_path, *words)
    assert done.returncode == 2
    assert what in done.stderr


def test_a_program_that_never_trains_cannot_be_measured(tmp_path: Path):
    script(tmp_path, "print('hello')")
    command = [sys.executable, "-m", "loopwright", "find", "settings", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "The measured program failed: exit code 0:\nhello" in done.stderr
    assert not os.path.exists(tmp_path / "cache")
