"""Real processes under supervision: started again, signalled, never left behind."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from loopwright.distribute import supervisor
from loopwright.errors import EXIT_WORKER_LOST

BEGIN = """
import json, os, pathlib, signal, sys, time
me = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
place = pathlib.Path(sys.argv[1])
starts = place / f"starts-{me}"
with starts.open("a") as file: file.write("x")
start = len(starts.read_text())
def wait_for(name):
    while not (place / name).exists(): time.sleep(0.005)
(place / f"{me}-{start}").write_text(str(os.getpid()))
"""


def supervised(place: Path, text: str, *, restarts: int = 0, workers: int = 2) -> Any:
    lines: list[str] = []
    command = [sys.executable, "-c", BEGIN + textwrap.dedent(text), str(place)]
    code = supervisor.supervise(
        command, workers=workers, restarts=restarts, environment=os.environ, say=lines.append
    )
    return code, lines


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_what_workers_say_is_told_with_their_numbers(tmp_path: Path):
    code, lines = supervised(tmp_path, "print('hello', flush=True)", workers=3)
    assert code == 0
    assert sorted(lines) == [f"[worker {index}] hello" for index in range(3)]


def test_of_a_lost_worker_the_words_are_told_and_not_the_noise(tmp_path: Path):
    text = """
    if me == 0:
        print("E0000 00:00:17.98 7 ring_alg.cc:291] Aborting RingReduce with UNAVAILABLE: reset")
        print("Additional GRPC error information from remote target /job:worker:")
        print(':UNKNOWN:Error received from peer  {grpc_message:"recvmsg"}')
        print("\\t [[{{node CollectiveReduceV2}}]]")
        print("E0000 00:00:17.98 7 somewhere_else.cc:1] something else")
        print("error: Lost connection to another worker.")
    """
    _, said = supervised(tmp_path, text)
    assert said == [
        "[worker 0] E0000 00:00:17.98 7 somewhere_else.cc:1] something else",
        "[worker 0] error: Lost connection to another worker.",
    ]


def test_a_killed_worker_takes_the_others_with_it_and_all_start_again(tmp_path: Path):
    text = """
    if start < 3:
        wait_for(f"{1 - me}-{start}")
        if me == 1: os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)
    """
    code, lines = supervised(tmp_path, text, restarts=2)
    assert code == 0
    assert [(tmp_path / f"starts-{index}").read_text() for index in (0, 1)] == ["xxx", "xxx"]
    assert [line for line in lines if "exited with" in line] == [
        "worker 1 exited with code 137; restarting all workers (1 restart left)",
        "worker 1 exited with code 137; restarting all workers (0 restarts left)",
    ]


def test_restarts_are_counted(tmp_path: Path):
    code, lines = supervised(tmp_path, f"sys.exit({EXIT_WORKER_LOST})", restarts=1)
    assert code == EXIT_WORKER_LOST
    assert len((tmp_path / "starts-0").read_text()) == 2
    assert "no restarts left" in lines[-1]


OTHER_WAITS = """
    wait_for(f"{1 - me}-{start}")
    if me == 0: ENDS
    time.sleep(600)
    """


@pytest.mark.parametrize(
    ("code", "text"),
    [
        *((wrong, OTHER_WAITS.replace("ENDS", f"sys.exit({wrong})")) for wrong in (1, 2, 3)),
        (143, "sys.exit(143)"),
        (143, OTHER_WAITS.replace("ENDS", "os.kill(os.getpid(), signal.SIGTERM)")),
    ],
    ids=["error 1", "error 2", "error 3", "all saved after a signal", "one could not save"],
)
def test_a_mistake_or_a_signal_ends_all_workers_for_good(code: int, text: str, tmp_path: Path):
    assert supervised(tmp_path, text, restarts=5)[0] == code
    assert (tmp_path / "starts-0").read_text() == "x"


WHOLE = """
import sys
from loopwright.distribute import supervisor as supervising
import os
command = [sys.executable, "-c", sys.argv[1], sys.argv[2]]
sys.exit(supervising.supervise(command, workers=2, restarts=3, environment=os.environ, say=print))
"""


def launcher(place: Path, text: str) -> "subprocess.Popen[bytes]":
    """The supervisor in a process of its own; returns when both workers have begun."""
    worker = BEGIN + textwrap.dedent(text)
    process = subprocess.Popen([sys.executable, "-c", WHOLE, worker, str(place)])
    while not all((place / f"ready-{index}").exists() for index in (0, 1)):
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
    return process


def pids(place: Path) -> list[int]:
    return [int((place / f"{index}-1").read_text()) for index in (0, 1)]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_reaches_every_worker(number: int, code: int, tmp_path: Path):
    text = f"""
    signal.signal({int(number)}, lambda *_: sys.exit({code}))
    (place / f"ready-{{me}}").touch()
    time.sleep(600)
    """
    process = launcher(tmp_path, text)
    process.send_signal(number)
    assert process.wait(30) == code
    assert (tmp_path / "starts-0").read_text() == (tmp_path / "starts-1").read_text() == "x"
    assert not any(map(is_alive, pids(tmp_path)))


def test_a_killed_supervisor_leaves_nobody_behind(tmp_path: Path):
    process = launcher(tmp_path, '(place / f"ready-{me}").touch(); time.sleep(600)')
    process.kill()
    process.wait()
    for pid in pids(tmp_path):
        while is_alive(pid):
            os.sched_yield()


def test_what_a_worker_has_started_ends_with_it(tmp_path: Path):
    text = """
    import subprocess
    if me == 1:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        (place / "child").write_text(str(child.pid))
        os.kill(os.getpid(), signal.SIGKILL)
    wait_for("child")
    time.sleep(600)
    """
    code, _ = supervised(tmp_path, text)
    assert code == 137
    pid = int((tmp_path / "child").read_text())
    while is_alive(pid):
        os.sched_yield()
