"""Compiled programs on disk: what is damaged, foreign or half written is never taken."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from loopwright.engine import xla_store
from loopwright.engine.xla_store import Store, files, trim, unsafe

KIND = "0123456789abcdef" * 2
NAME = "loopwright__17__4__XLA_CPU_JIT.pb"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    root = tmp_path / "xla"
    root.mkdir(mode=0o700)
    return Store(root, KIND)


def only_file(store: Store) -> Path:
    (name,) = files(store.root)
    return store.root / name


def test_a_program_that_was_put_is_taken(store: Store):
    store.put("loop", NAME, b"code")
    store.put("another loop", NAME, b"other code")
    assert store.take("loop") == {NAME: b"code"}
    assert Store(store.root, KIND[::-1]).take("loop") == {}
    assert [store.has(each) for each in ("loop", "another loop", "a third")] == [True, True, False]


def test_directories_and_files_are_for_the_user_alone(store: Store):
    store.put("loop", NAME, b"code")
    assert stat.S_IMODE((store.root / KIND).stat().st_mode) == 0o700
    assert stat.S_IMODE(only_file(store).stat().st_mode) == 0o600


@pytest.mark.parametrize("content", [b"", b"cod", b"Code", b"code and more", bytes(4)])
def test_a_damaged_file_is_deleted_and_not_taken(store: Store, content: bytes):
    store.put("loop", NAME, b"code")
    only_file(store).write_bytes(content)
    assert store.take("loop") == {}
    assert files(store.root) == {}
    store.put("loop", NAME, b"code")
    assert store.take("loop") == {NAME: b"code"}


def test_a_symlink_in_place_of_a_file_is_deleted_and_not_followed(store: Store, tmp_path: Path):
    store.put("loop", NAME, b"code")
    file = only_file(store)
    elsewhere = tmp_path / "elsewhere"
    file.rename(elsewhere)
    file.symlink_to(elsewhere)
    assert store.take("loop") == {}
    assert elsewhere.read_bytes() == b"code"
    assert not file.is_symlink()


def test_a_directory_that_is_a_symlink_is_not_used(store: Store, tmp_path: Path):
    store.put("loop", NAME, b"code")
    (store.root / KIND).rename(tmp_path / "moved")
    (store.root / KIND).symlink_to(tmp_path / "moved")
    assert store.take("loop") == {}
    assert files(store.root) == {}
    store.put("loop", NAME, b"code")  # a cache that cannot be written is no error


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_belongs_to_another_user_is_not_used(store: Store):
    store.put("loop", NAME, b"code")
    os.chown(only_file(store), 12345, -1)
    assert store.take("loop") == {}
    os.chown(store.root, 12345, -1)
    assert unsafe(store.root) == f"{store.root} belongs to another user"


def test_a_directory_that_others_can_write_is_not_used(tmp_path: Path):
    root = tmp_path / "shared" / "xla"
    root.mkdir(parents=True)
    for path, mode, reason in (
        (root, 0o700, None),
        (root, 0o770, f"{root} can be written by a group"),
        (root, 0o707, f"{root} can be written by every user"),
        (root, 0o1707, f"{root} can be written by every user"),
        (root.parent, 0o777, f"{root.parent} can be written by every user"),
        (root.parent, 0o1777, None),  # as /tmp: no one can rename what is in it
    ):
        root.chmod(0o700)
        path.chmod(mode)
        assert unsafe(root) == reason, oct(mode)


def test_what_was_not_used_for_longest_goes_first(store: Store):
    for number, program in enumerate(["first", "second", "third"]):
        store.put(program, NAME, program.encode() * 100)
        newest = max(files(store.root).items(), key=lambda each: each[1].st_mtime_ns)[0]
        os.utime(store.root / newest, (number, number))
    store.take("first")
    trim(store.root, most_bytes=1_100)
    assert [bool(store.take(each)) for each in ("first", "second", "third")] == [True, False, True]


def test_what_a_killed_writer_left_counts_and_goes_too(store: Store):
    store.put("loop", NAME, b"code")
    (store.root / KIND / "left.tmp").write_bytes(bytes(1000))
    os.utime(store.root / KIND / "left.tmp", (0, 0))
    trim(store.root, most_bytes=100)
    assert store.take("loop") == {NAME: b"code"}
    assert len(files(store.root)) == 1


def test_a_name_that_is_not_of_tensorflow_is_not_kept(store: Store):
    store.put("loop", "../../escape.pb", b"code")
    assert files(store.root) == {}
    assert not list(store.root.parent.glob("*.pb"))


WRITER = """
import sys
from pathlib import Path
from loopwright.engine.xla_store import Store
root, kind, name, letter = sys.argv[1:]
print("ready", flush=True)
while True:
    Store(Path(root), kind).put("loop", name, letter.encode() * 3_000_000)
"""


def test_two_writers_and_a_kill_during_a_write_leave_whole_files_only(store: Store):
    writers = [
        subprocess.Popen(
            [sys.executable, "-P", "-c", WRITER, str(store.root), KIND, NAME, letter],
            stdout=subprocess.PIPE,
        )
        for letter in "ab"
    ]
    try:
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
        for number in range(60):
            if number == 40:
                _kill_while_it_writes(store, writers[0])
            for content in store.take("loop").values():
                assert len(content) == 3_000_000
                assert len(set(content)) == 1
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()
    xla_store.trim(store.root)
    assert store.take("loop")


def _kill_while_it_writes(store: Store, writer: "subprocess.Popen[bytes]") -> None:
    while not any(name.endswith(".tmp") for name in files(store.root)):
        pass
    writer.send_signal(signal.SIGKILL)
    writer.wait()
