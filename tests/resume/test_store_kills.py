"""Kills and failing disks at every system call of a save: what was acknowledged is never lost.

`LOOPWRIGHT_ALL_FAULTS=1` tries every point, otherwise a sample is tried.
"""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest
from tests.resume.faults import ALL, record

from loopwright.checkpoints.manifest import Checkpoint
from loopwright.checkpoints.store import Store
from loopwright.errors import CheckpointError

SAMPLE = 12
STEPS = 5

# The last save replaces a checkpoint of the same step. Only the newest is kept, so that nothing
# else could save the run.
SAVING = f"""
import itertools, os, sys
from pathlib import Path
from loopwright.checkpoints.store import Store
from loopwright.errors import CheckpointError
from loopwright.checkpoints.retention import Entry, KeepLatest

def write_files(directory):
    for name in ("state.data", "state.index"):
        with (directory / name).open("wb", buffering=0) as file:
            for _ in range(2):
                file.write(bytes([step]) * 1000)

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

store, endless = Store(Path(sys.argv[1])), "endless" in sys.argv
steps = itertools.count(1) if endless else [*range(1, {STEPS} + 1), {STEPS}]
entries = []
for number, step in enumerate(steps, 1):
    step = step % 200 if endless and step > 200 else step
    try:
        store.write(step, {{"number": number}}, write_files)
        say("saved", step, number)
        entries = [*entries[-3:], Entry(step, False, {{}})]
        store.apply_retention([KeepLatest(1)], entries)
    except CheckpointError as error:
        say("failed", step, number)
        say(error)
        sys.exit(3)
"""
CALLS = ["openat", "mkdir", "mkdirat", "write", "fchmod", "fsync", "fdatasync"]
CALLS += ["rename", "renameat", "renameat2", "unlink", "unlinkat", "rmdir"]
WATCHED = ",".join(f"?{call}" for call in CALLS)  # not every machine has all of them

needs_strace = pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")
T = TypeVar("T")


def sample(points: Sequence[T], count: int = SAMPLE) -> Sequence[T]:
    """All points, or some from the first to the last."""
    if ALL or len(points) <= count:
        return points
    return [points[round(i * (len(points) - 1) / (count - 1))] for i in range(count)]


def run(script: str, *arguments: str | Path, under: Sequence[str] = ()) -> tuple[int, str]:
    """Exit code and output of a process that runs the script."""
    command = [*under, sys.executable, "-B", "-c", script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout


def strace(log: Path | str, *expressions: str) -> list[str]:
    filters = [part for expression in expressions for part in ("-e", expression)]
    return ["strace", "-f", "-y", "-s", "0", "-o", str(log), *filters]


def points_of(
    script: str, directory: Path, prepare: Callable[[Path], None] = lambda _: None
) -> list[tuple[str, int]]:
    """Every system call of the script that touches the directory: its name, the how-manieth.

    strace counts each kind of system call by itself, from the start of the process.
    """
    place = directory / "traced"
    prepare(place)
    run(script, place)  # nothing is compiled or cached in the traced run
    shutil.rmtree(place)
    prepare(place)
    log = directory / "log"
    code, _ = run(script, place, under=strace(log, f"trace={WATCHED}"))
    assert code == 0
    seen = Counter[str]()
    points = list[tuple[str, int]]()
    for line in log.read_text().splitlines():
        found = re.match(r"(?:\d+ +)?(\w+)\(", line)
        if found:
            seen[found[1]] += 1
            if str(place) in line:
                points.append((found[1], seen[found[1]]))
    return points


def acknowledged(output: str) -> tuple[int, int]:
    """Step and number of the last save that was reported to be done; zeros if none was."""
    saved = re.findall(r"^saved (\d+) (\d+)$", output, re.M)
    return (int(saved[-1][0]), int(saved[-1][1])) if saved else (0, 0)


def whole(store: Store) -> Checkpoint | None:
    """The newest checkpoint; nothing may be damaged, and its files are those of its step."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = store.newest()
    if found is not None:
        for name in ("state.data", "state.index"):
            assert (found.path / name).read_bytes() == bytes([found.step]) * 2000
    return found


def check_what_is_left(directory: Path, output: str) -> None:
    """The last acknowledged save is there, or the one that was under way; and the run goes on."""
    store = Store(directory)
    _, number = acknowledged(output)
    found = whole(store)
    if number:
        assert found is not None
    if found is not None:
        assert found.content["number"] in (number, number + 1)
    store.backend.clean()
    assert whole(store) == (found and store.at(found.step))
    assert not [*directory.glob("*.tmp-*"), *directory.glob("*.old-*")]
    step = 1 if found is None else found.step + 1
    content = bytes([step]) * 2000
    store.write(step, {}, lambda path: _write_both(path, content))
    after = whole(store)
    assert after is not None
    assert after.step == step


def _write_both(path: Path, content: bytes) -> None:
    (path / "state.data").write_bytes(content)
    (path / "state.index").write_bytes(content)


# --- kills ---


@needs_strace
@pytest.mark.timeout(3600 if ALL else 300)
def test_a_kill_at_any_system_call_loses_nothing_that_was_acknowledged(tmp_path: Path):
    points = points_of(SAVING, tmp_path)
    kinds = {name for name, _ in points}
    assert {"openat", "write", "fsync"} <= kinds
    assert kinds & {"rename", "renameat", "renameat2"}
    assert kinds & {"unlink", "unlinkat"}
    assert len(points) > 30 * STEPS
    for name, which in sample(points):
        directory = tmp_path / f"{name}-{which}"
        inject = f"inject={name}:signal=SIGKILL:when={which}"
        code, output = run(SAVING, directory, under=strace(os.devnull, f"trace={name}", inject))
        assert code in (-signal.SIGKILL, 128 + signal.SIGKILL), (name, which)
        try:
            check_what_is_left(directory, output)
        except (AssertionError, CheckpointError, Warning) as error:
            raise AssertionError(f"killed at {name} number {which}") from error
        shutil.rmtree(directory)
    tried = len(sample(points))
    record("SIGKILL at a system call of a save", tried=tried, held=tried)


@pytest.mark.timeout(3600 if ALL else 300)
@pytest.mark.parametrize("seed", range(50 if ALL else 3))
def test_a_kill_at_a_random_time_loses_nothing_that_was_acknowledged(tmp_path: Path, seed: int):
    command = [sys.executable, "-c", SAVING, str(tmp_path), "endless"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as saving:
        assert saving.stdout is not None
        first = saving.stdout.readline()
        time.sleep(random.Random(seed).uniform(0, 0.3))
        assert saving.poll() is None
        saving.kill()
        rest = saving.stdout.read()
    lines = (first + rest).splitlines(keepends=True)
    check_what_is_left(tmp_path, "".join(line for line in lines if line.endswith("\n")))


# What a start does: what was left half done is cleaned, what was abandoned is set aside.
STARTING = """
import sys
from pathlib import Path
from loopwright.checkpoints.store import Store

store = Store(Path(sys.argv[1]))
store.backend.clean()
assert store.newest().step == 4
store.at(2)
store.set_aside_after(2)
"""


def prepare_start(directory: Path) -> None:
    """Four checkpoints, a half-written one, and one whose replacement was interrupted."""
    store = Store(directory)
    for step in range(1, 5):
        content = bytes([step]) * 2000
        store.write(
            step, {"number": step}, lambda path, content=content: _write_both(path, content)
        )
    shutil.copytree(directory / "step-00000004", directory / "step-00000005.tmp-0123abcd")
    (directory / "step-00000005.tmp-0123abcd" / "manifest.json").unlink()
    (directory / "step-00000003").rename(directory / "step-00000003.old-0123abcd")


@needs_strace
@pytest.mark.timeout(3600 if ALL else 300)
def test_a_kill_at_any_system_call_of_a_start_leaves_the_next_start_its_checkpoint(tmp_path: Path):
    def started(directory: Path, *under: str) -> int:
        return run(STARTING, directory, under=under)[0]

    points = points_of(STARTING, tmp_path, prepare_start)
    kinds = {name for name, _ in points}
    assert {"unlinkat", "fsync"} <= kinds
    assert kinds & {"renameat", "renameat2"}
    for name, which in sample(points):
        directory = tmp_path / f"{name}-{which}"
        prepare_start(directory)
        inject = f"inject={name}:signal=SIGKILL:when={which}"
        code = started(directory, *strace(os.devnull, f"trace={name}", inject))
        assert code in (-signal.SIGKILL, 128 + signal.SIGKILL), (name, which)
        store = Store(directory)
        store.backend.clean()
        found = whole(store)
        assert found is not None
        assert found.step in (2, 3, 4), (name, which)  # some may be set aside already
        assert store.at(2).content == {"number": 2}
        shutil.rmtree(directory)
    tried = len(sample(points))
    record("SIGKILL at a system call of a start", tried=tried, held=tried)


# --- disks that fail ---

FAILURES = {
    "mkdirat": "ENOSPC",
    "openat": "EIO",
    "write": "ENOSPC",
    "fchmod": "EIO",  # EPERM is a file system without modes: left as it is
    "fsync": "EIO",
    "renameat": "EIO",
    "renameat2": "EIO",
    "unlinkat": "EIO",
}


@needs_strace
@pytest.mark.timeout(3600 if ALL else 300)
def test_a_disk_that_fails_at_any_system_call_is_reported_and_harms_no_other(tmp_path: Path):
    points = [point for point in points_of(SAVING, tmp_path) if point[0] in FAILURES]
    for name, which in sample(points):
        directory = tmp_path / f"{name}-{which}"
        inject = f"inject={name}:error={FAILURES[name]}:when={which}"
        code, output = run(SAVING, directory, under=strace(os.devnull, f"trace={name}", inject))
        if name == "openat" and code == 0:  # it was only to be looked at: its size, or its damage
            assert acknowledged(output) == (STEPS, STEPS + 1)
        else:
            assert code == 3, (name, which, output)
            assert re.search(r"^failed \d", output, re.M)
            assert re.search(r"could not be (written|deleted|read)", output), output
            assert "  do: " in output
        if "could not be written" in output and name != "unlinkat":
            assert not list(directory.glob("*.tmp-*")), (name, which)
        try:
            check_what_is_left(directory, output)
        except (AssertionError, CheckpointError, Warning) as error:
            raise AssertionError(f"{name} number {which} failed") from error
        shutil.rmtree(directory)
    tried = len(sample(points))
    record("a disk that fails at a system call of a save", tried=tried, held=tried)


# --- the order of things, which only a loss of power would show ---

RECORDING = """
import json, os, shutil, sys
log, without = open(sys.argv[2], "w"), sys.argv[3]

def note(*words):
    print(json.dumps(words), file=log, flush=True)

def fsync(handle, real=os.fsync):
    path = os.readlink(f"/proc/self/fd/{handle}")
    kind = "directories" if os.path.isdir(path) else "files"
    if without not in (kind, "everything"):
        real(handle)
        note("fsync", path)

def at(name, handle):
    return os.path.join(os.readlink(f"/proc/self/fd/{handle}"), name)

def rename(source, target, *, src_dir_fd, dst_dir_fd, real=os.rename):
    before, after = at(source, src_dir_fd), at(target, dst_dir_fd)
    files = sorted(os.listdir(before)) if os.path.isdir(before) else []
    real(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
    note("rename", before, after, files)

def rmtree(name, *, dir_fd, real=shutil.rmtree):
    note("delete", at(name, dir_fd))
    real(name, dir_fd=dir_fd)

os.fsync, os.rename, shutil.rmtree = fsync, rename, rmtree
write = os.write
def say(handle, text):
    note("say", text.decode())
    return write(handle, text)
os.write = say
"""


def violations(log: list[list[str]], directory: Path) -> list[str]:
    """What a loss of power could break: whatever is relied upon before it is durable."""
    found = list[str]()
    synced: list[str] = []
    commit_is_durable = True
    for kind, path, *rest in log:
        if kind == "fsync":
            synced.append(path)
            commit_is_durable |= path == str(directory)
        elif kind == "rename" and ".tmp-" in path:
            files = [f"{path}/{name}" for name in rest[1]]
            found += [f"{file} was not durable" for file in files if file not in synced]
            order = [synced.index(each) for each in files if each in synced]
            if path not in synced or synced.index(path) < max(order, default=0):
                found.append(f"the names in {path} were not durable")
            commit_is_durable = False
        elif kind == "rename" and ".old-" not in rest[0] and not commit_is_durable:
            found.append(f"{path} went before its successor was durable")
        elif kind in ("delete", "say") and not commit_is_durable:
            found.append(f"{kind} {path} came before the commit was durable")
    return found


def recorded(tmp_path: Path, without: str) -> list[str]:
    directory, log = tmp_path / "checkpoints", tmp_path / "log"
    code, output = run(RECORDING + SAVING, directory, log, without)
    assert code == 0
    assert acknowledged(output) == (STEPS, STEPS + 1)
    events = [json.loads(line) for line in log.read_text().splitlines()]
    kinds = Counter(event[0] for event in events)
    assert kinds["say"] == STEPS + 1
    assert kinds["delete"] == STEPS
    commits = [event for event in events if event[0] == "rename" and ".tmp-" in event[1]]
    assert len(commits) == STEPS + 1
    assert all(event[3] == ["manifest.json", "state.data", "state.index"] for event in commits)
    return violations(events, directory)


@pytest.mark.parametrize(
    ("without", "broken"),
    [
        ("nothing", None),
        ("files", "manifest.json was not durable"),
        ("directories", "the names in"),
        ("directories", "say saved"),
    ],
)
def test_everything_is_durable_before_it_is_relied_upon_and_without_fsync_it_is_not(
    tmp_path: Path, without: str, broken: str | None
):
    found = recorded(tmp_path, without)
    assert found == [] if broken is None else [each for each in found if broken in each]
