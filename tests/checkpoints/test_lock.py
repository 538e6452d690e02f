"""One process at a time: real files, real processes, real kills."""

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loopwright.checkpoints import lock as run_lock
from loopwright.distribute.cluster import tf_config
from loopwright.errors import ConfigurationError

HELD = """import os, pathlib, sys, time; from loopwright.checkpoints import lock as run_lock
with run_lock.held(pathlib.Path(sys.argv[1])):
"""
HOLD = f"""{HELD}
    print("held", flush=True)
    time.sleep(100)
"""
HOLD_AND_FORK = f"""{HELD}
    if not os.fork():
        print(os.getpid(), flush=True)
    time.sleep(100)
"""


@contextmanager
def process(script: str, path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that runs the script, and the first line it said."""
    command = [sys.executable, "-c", script, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        try:
            yield started, started.stdout.readline().strip()
        finally:
            started.kill()


def refusal(lock: Path, words: str) -> str:
    """What is said to who asks for a lock that cannot be had."""
    with pytest.raises(ConfigurationError, match=words) as refused, run_lock.held(lock):
        pytest.fail("locked")
    return str(refused.value)


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


def test_the_file_names_the_process_and_is_private(tmp_path: Path):
    lock = tmp_path / "lock"
    lock.write_text("x" * 500)  # of another process, and longer
    lock.chmod(0o600)
    with run_lock.held(lock):
        assert json.loads(lock.read_text()) == {"pid": os.getpid(), "host": socket.gethostname()}
        assert stat.S_IMODE(lock.stat().st_mode) == 0o600


def test_a_second_process_is_refused_and_hears_which_one_holds_it(tmp_path: Path):
    lock = tmp_path / "lock"
    with process(HOLD, lock) as (other, said):
        assert said == "held"
        text = refusal(lock, rf"process {other.pid} holds it")
        assert f"The run directory {tmp_path} is in use." in text
        assert f"kill {other.pid}" in text
        assert "choose another run_dir" in text


def test_a_worker_without_a_strategy_is_told_to_use_one_and_not_to_kill_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    lock = tmp_path / "lock"
    monkeypatch.setenv("TF_CONFIG", tf_config(["localhost:1", "localhost:2"], 1))
    with process(HOLD, lock) as (other, _):
        text = refusal(lock, 'strategy="auto"')
        assert "one of several workers" in text
        assert f"kill {other.pid}" not in text


def test_a_killed_process_leaves_no_lock(tmp_path: Path):
    lock = tmp_path / "lock"
    with process(HOLD, lock) as (other, _):
        other.send_signal(signal.SIGKILL)
        other.wait()
        assert lock.exists()
        with run_lock.held(lock):
            assert json.loads(lock.read_text())["pid"] == os.getpid()


def test_a_forked_worker_that_outlives_a_killed_run_does_not_hold_its_lock(tmp_path: Path):
    lock = tmp_path / "lock"
    with process(HOLD_AND_FORK, lock) as (other, said):
        worker = int(said)
        try:
            refusal(lock, "in use")  # the fork has not released the lock of its parent
            other.send_signal(signal.SIGKILL)
            other.wait()
            assert not is_gone(worker)
            with run_lock.held(lock):
                pass
        finally:
            os.kill(worker, signal.SIGKILL)


def test_released_means_released_whoever_else_has_the_file_open(tmp_path: Path):
    lock = tmp_path / "lock"
    with run_lock.held(lock):
        (handle,) = run_lock._handles
        other = subprocess.Popen(["sleep", "100"], pass_fds=[handle])
    try:
        with run_lock.held(lock):
            pass
    finally:
        other.kill()
        other.wait()


def test_a_forked_process_that_leaves_the_block_releases_nothing(tmp_path: Path):
    script = f"""{HELD}
    used = 0
    if child := os.fork():
        os.waitpid(child, 0)
        print(os.popen("flock --nonblock " + sys.argv[1] + " echo free || echo held").read())
    else:
        used = os.dup(0)  # takes the number of the handle that was closed
os.fstat(used)
print("parent left" if child else "child left", flush=True)
"""
    command = [sys.executable, "-c", script, str(tmp_path / "lock")]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout.split("\n")[:2] == ["child left", "held"], run.stderr
    assert "parent left" in run.stdout
    assert run.stderr == ""


def test_the_same_process_is_told_that_it_holds_the_lock_itself(tmp_path: Path):
    lock = tmp_path / "lock"
    itself = rf"this process \({os.getpid()}\) holds it"
    with run_lock.held(lock):
        refusal(lock, itself)
        refusal(lock, itself)  # the first refusal has not released it


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "another process holds it"),
        (b"\xff" * 5000, "another process holds it"),
        (b'{"pid": -1, "host": "here"}', "another process holds it"),
        (b"[" * 1000, "another process holds it"),
        (b'{"pid": 7, "host": "el\\u001bsewhere"}', r"process 7 on 'el\\x1bsewhere' holds it"),
    ],
)
def test_whatever_the_file_says_the_refusal_can_be_read(tmp_path: Path, content: bytes, words: str):
    lock = tmp_path / "lock"
    with process(HOLD, lock):
        lock.write_bytes(content)
        assert refusal(lock, words).replace("\n", "").isprintable()


@pytest.mark.parametrize("kind", ["pipe", "directory", "missing", "symlink"])
def test_what_is_no_file_is_refused_at_once_with_the_reason(tmp_path: Path, kind: str):
    lock = tmp_path / "lock"
    reason = "not a regular file"
    if kind == "pipe":
        os.mkfifo(lock)
    elif kind == "directory":
        lock.mkdir()
        reason = "Is a directory"
    elif kind == "symlink":
        (tmp_path / "canary").write_text("sings")
        lock.symlink_to(tmp_path / "canary")
        reason = "a symlink"
    else:
        lock, reason = tmp_path / "nowhere" / "lock", "No such file or directory"
    start = time.monotonic()
    refusal(lock, f"(?s){reason}.*do: ")
    assert time.monotonic() - start < 5
    assert kind != "symlink" or (tmp_path / "canary").read_text() == "sings"


@pytest.mark.skipif(not shutil.which("strace"), reason="strace makes the system call fail")
def test_where_files_cannot_be_locked_a_warning_says_so(tmp_path: Path):
    inject = ["strace", "-f", "-o", os.devnull, "-e", "inject=flock:error=ENOSYS"]
    script = f"{HELD}    print('went on')"
    command = [*inject, sys.executable, "-c", script, str(tmp_path / "lock")]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "went on" in run.stdout
    assert "LoopwrightWarning" in run.stderr
    assert "never start two processes in this run directory" in run.stderr
    assert ":2: " in run.stderr  # the line that asked for the lock


def test_no_handle_stays_open(tmp_path: Path):
    before = set(os.listdir("/proc/self/fd"))
    lock = tmp_path / "lock"
    with run_lock.held(lock):
        refusal(lock, "in use")
    os.mkfifo(tmp_path / "pipe")
    refusal(tmp_path / "pipe", "not a regular file")
    assert set(os.listdir("/proc/self/fd")) == before
