"""The checks of `conftest.py`, tried on tests that misbehave, in a pytest of their own."""

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

MISBEHAVING = """
import os, signal, threading
import keras, pytest, tensorflow as tf

done = threading.Event()

def test_environment_variable(): os.environ["LEFT_BEHIND"] = "yes"
def test_removed_environment_variable(): del os.environ["WAS_THERE"]
def test_directory(tmp_path): os.chdir(tmp_path)
def test_signal_handler(): signal.signal(signal.SIGUSR1, lambda *_: None)
def test_thread(): threading.Thread(target=done.wait, name="stays").start()
def test_floatx(): keras.config.set_floatx("float64")
def test_dtype_policy(): keras.config.set_dtype_policy("mixed_bfloat16")

@pytest.fixture
def leaky():
    yield
    os.environ["LEFT_BY_FIXTURE"] = "yes"

def test_fixture_that_leaks(leaky): pass

def test_clean_everything_was_put_back(tmp_path):
    assert "LEFT_BEHIND" not in os.environ and os.environ["WAS_THERE"] == "1"
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
    assert keras.config.floatx() == "float32"
    assert keras.config.dtype_policy().name == "float32"
    assert os.getcwd() != str(tmp_path)
    done.set()

def test_clean_undone_by_monkeypatch(monkeypatch, tmp_path):
    monkeypatch.setenv("UNDONE", "1")
    monkeypatch.chdir(tmp_path)

def test_clean_daemon_thread():
    threading.Thread(target=threading.Event().wait, daemon=True).start()

def test_wrong_and_clean(): assert not done.is_set()
def test_clean_four_devices(): assert len(tf.config.list_logical_devices("CPU")) == 4
"""

CULPRITS = {
    "test_environment_variable": "environment variable LEFT_BEHIND: None -> 'yes'",
    "test_removed_environment_variable": "environment variable WAS_THERE: '1' -> None",
    "test_directory": "working directory: ",
    "test_signal_handler": f"signal handler {int(signal.SIGUSR1)}: ",
    "test_thread": "thread: stays",
    "test_floatx": "keras.config floatx: 'float32' -> 'float64'",
    "test_dtype_policy": "keras.config dtype_policy: 'float32' -> 'mixed_bfloat16'",
    "test_fixture_that_leaks": "environment variable LEFT_BY_FIXTURE: None -> 'yes'",
}


def run_pytest(directory: Path, text: str) -> str:
    """The report of pytest on a file with this text, under our `conftest.py`."""
    shutil.copy(Path(__file__).with_name("conftest.py"), directory / "conftest.py")
    (directory / "test_given.py").write_text(text)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-v",
        "-rA",
        "-p",
        "no:cacheprovider",
        "--timeout=200",
    ]
    options = ["-c", "/dev/null", "--rootdir", str(directory), "-o", "python_files=test_*.py"]
    environment = {"PATH": "/usr/bin:/bin", "WAS_THERE": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    result = subprocess.run(
        [*command, *options, str(directory)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=directory,
        check=False,
    )
    return result.stdout + result.stderr


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    return run_pytest(tmp_path_factory.mktemp("police"), MISBEHAVING)


@pytest.mark.parametrize("name", CULPRITS)
def test_a_test_that_changes_the_process_fails_and_hears_what_it_left(report: str, name: str):
    section = re.search(rf"ERROR at teardown of {name} _+\n(.*?)\n_{{3,}}", report + "\n____", re.S)
    assert section is not None, report
    assert CULPRITS[name] in section[1]


def test_only_the_tests_that_change_the_process_fail(report: str):
    assert set(re.findall(r"^ERROR \S+::(\w+)", report, re.M)) == set(CULPRITS)
    assert re.findall(r"^FAILED \S+::(\w+)", report, re.M) == ["test_wrong_and_clean"], report


def test_a_module_that_makes_tensors_while_imported_is_refused(tmp_path: Path):
    text = "import tensorflow as tf\nx = tf.ones(())\ndef test_x(): pass\n"
    report = run_pytest(tmp_path, text)
    assert "Make them inside tests or fixtures" in report
    assert "passed" not in report
