"""Checkpoints on disk: the commit, the scan, and every kind of damage, with real files."""

import errno
import functools
import json
import math
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.processes import run_command

from loopwright.checkpoints import manifest as manifests
from loopwright.checkpoints.manifest import Checkpoint
from loopwright.checkpoints.retention import Entry, KeepLatest
from loopwright.checkpoints.store import Store
from loopwright.errors import CheckpointError, ConfigurationError, LoopwrightWarning

KILOBYTE = 1024


def files(step: int) -> dict[str, bytes]:
    """What a checkpoint of this step holds: as large as others, and different."""
    return {
        "state.data-00000-of-00001": bytes((step * 31 + i) % 251 for i in range(4 * KILOBYTE)),
        "state.index": bytes([step]) * 500,
        "empty": b"",
    }


def writing(content: dict[str, bytes]) -> Callable[[Path], None]:
    def write_files(directory: Path) -> None:
        for name, data in content.items():
            (directory / name).write_bytes(data)

    return write_files


def save(store: Store, *steps: int, **content: Any) -> None:
    for step in steps:
        store.write(step, {"step": step, **content}, writing(files(step)))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "run" / "checkpoints")


def names(store: Store) -> list[str]:
    return sorted(os.listdir(store.directory))


def newest(store: Store) -> Checkpoint:
    """The newest one, where nothing warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = store.newest()
    assert found is not None
    return found


def snapshot(directory: Path) -> dict[str, bytes]:
    found = directory.rglob("*")
    return {str(path.relative_to(directory)): path.read_bytes() for path in found if path.is_file()}


# --- the commit ---


def test_what_was_written_is_read_again(store: Store):
    content: dict[str, Any] = {"z": [0.1, 1e-300, -0.0, 1.0, 2**70], "a": {"b": 1, "a": None}}
    content |= {"name": "größer", "odd": [math.nan, math.inf, -math.inf]}
    path = store.write(1200, content, writing(files(1200 % 251)))
    assert path == store.directory / "step-00001200"
    found = newest(store)
    assert (found.path, found.step, found.damage) == (path, 1200, "")
    assert json.dumps(found.content) == json.dumps(content)  # in the same order
    for name, data in files(1200 % 251).items():
        assert (found.path / name).read_bytes() == data


def test_nothing_is_there_before_the_first_write(store: Store):
    assert store.newest() is None
    assert store.all() == []
    assert store.backend.clean() == []
    store.directory.mkdir(parents=True)
    assert store.newest() is None


def test_another_checkpoint_of_the_same_step_replaces_it_and_the_same_is_not_written_again(
    store: Store,
):
    save(store, 1)
    before = (store.directory / "step-00000001").stat()
    save(store, 1)
    assert (store.directory / "step-00000001").stat() == before
    save(store, 1, ends_leg=True)
    assert newest(store).content == {"step": 1, "ends_leg": True}
    assert names(store) == ["step-00000001"]
    store.write(1, {"step": 1, "ends_leg": True}, writing(files(2)))
    assert (newest(store).path / "state.index").read_bytes() == files(2)["state.index"]


def test_a_damaged_one_of_the_same_step_is_set_aside(store: Store):
    save(store, 1)
    (store.directory / "step-00000001" / "state.index").write_bytes(b"damaged")
    save(store, 1)
    newest(store)
    aside, plain = sorted(names(store), key=len, reverse=True)
    assert plain == "step-00000001"
    assert aside.startswith("step-00000001.bad-")
    assert (store.directory / aside / "state.index").read_bytes() == b"damaged"
    assert store.backend.clean() == []


def test_a_replacement_that_was_killed_between_its_renames_keeps_the_old_one(store: Store):
    save(store, 1)
    (store.directory / "step-00000001").rename(store.directory / "step-00000001.old-01234567")
    assert newest(store).content == {"step": 1}
    assert [found.step for found in store.all()] == [1]
    store.backend.clean()
    assert names(store) == ["step-00000001"]
    newest(store)


def test_an_error_of_the_writer_leaves_nothing_behind(store: Store):
    save(store, 1)
    before = snapshot(store.directory)

    def fail(directory: Path) -> None:
        (directory / "half").write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.write(2, {}, fail)
    with pytest.raises(TypeError, match="JSON"):
        store.write(2, {"not JSON": object()}, writing(files(2)))
    assert snapshot(store.directory) == before
    assert names(store) == ["step-00000001"]


def opening_fails(patch: pytest.MonkeyPatch, part: str, number: int) -> None:
    real = os.open

    def fail(path: Any, *args: Any, **kwargs: Any) -> int:
        if part in str(path):
            raise OSError(number, os.strerror(number))
        return real(path, *args, **kwargs)

    patch.setattr(os, "open", fail)


def test_a_directory_that_cannot_be_opened_after_it_was_made_is_not_left_behind(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    save(store, 1)
    with monkeypatch.context() as patch:
        opening_fails(patch, ".tmp-", errno.EIO)
        with pytest.raises(CheckpointError, match="Input/output error"):
            save(store, 2)
    assert names(store) == ["step-00000001"]


@pytest.mark.parametrize("kind", ["directory", "symlink", "pipe"])
def test_only_regular_files_go_into_a_checkpoint(store: Store, kind: str):
    def write_files(directory: Path) -> None:
        if kind == "directory":
            (directory / "odd").mkdir()
        elif kind == "symlink":
            (directory / "odd").symlink_to("/dev/null")
        else:
            os.mkfifo(directory / "odd")

    with pytest.raises((ValueError, CheckpointError)):
        store.write(1, {}, write_files)
    assert names(store) == []


DEEP = functools.reduce(lambda inner, _: [inner], range(200), list[Any]())


@pytest.mark.parametrize(
    "content", [{"text": "x" * 1000}, {"callbacks": DEEP}], ids=["long", "deep"]
)
def test_a_manifest_too_large_to_be_read_again_is_not_written(
    store: Store, monkeypatch: pytest.MonkeyPatch, content: dict[str, Any]
):
    monkeypatch.setattr(manifests, "MOST_MANIFEST_BYTES", 1000)
    words = r"(?s)too large.*at most 1,000 bytes and 100 levels.*do: "
    with pytest.raises(CheckpointError, match=words):
        save(store, 1, **content)
    assert names(store) == []


# --- damage ---

STEP_2 = "step-00000002"
FILES = [*files(2), manifests.MANIFEST]


def falls_back(store: Store, at: str, reason: str = "") -> str:
    """Asserts that step 2 is passed over for step 1, with a warning; what it says."""
    with pytest.warns(LoopwrightWarning) as caught:
        found = store.newest()
    assert found is not None
    assert found.step == 1
    (warning,) = [str(each.message) for each in caught]
    assert f"received: {store.directory / at}: " in warning
    assert reason in warning
    assert "using the checkpoint of step 1 instead" in warning
    assert caught[0].filename == __file__
    with pytest.raises(CheckpointError, match=r"(?s)step 2 cannot be used.*choose another step: 1"):
        store.at(2)
    return warning


@pytest.mark.parametrize("name", [name for name in FILES if name != "empty"])
def test_a_flipped_bit_anywhere_is_found(store: Store, name: str):
    save(store, 1, 2)
    path = store.directory / STEP_2 / name
    whole = path.read_bytes()
    places = sorted({len(whole) * part // 64 for part in range(64)} | {len(whole) - 1})
    for place in places:
        for bit in (0, 5, 7):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            falls_back(store, f"{STEP_2}/{name}")
    path.write_bytes(whole)
    assert newest(store).step == 2


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\n")


def of_another_step(path: Path) -> None:
    shutil.copy(path.parents[1] / "step-00000001" / path.name, path)


def file_instead_of_step(path: Path) -> None:
    shutil.rmtree(path.parent)
    path.parent.write_bytes(b"")


DAMAGES: list[tuple[str, Callable[[Path], Any], str, str]] = [
    ("state.index", lambda path: os.truncate(path, 0), "/state.index", "0 bytes instead of 500"),
    ("state.index", lambda path: os.truncate(path, 499), "/state.index", "499 bytes instead of"),
    ("manifest.json", lambda path: os.truncate(path, 50), "/manifest.json", ""),
    ("state.index", grow, "/state.index", "501 bytes instead of 500"),
    ("empty", grow, "/empty", "1 bytes instead of 0"),
    ("manifest.json", grow, "/manifest.json", ""),
    ("empty", Path.unlink, "", "missing 'empty'"),
    ("manifest.json", Path.unlink, "/manifest.json", "No such file"),
    ("more", Path.touch, "", "not in the manifest: 'more'"),
    ("state.index", of_another_step, "/state.index", "checksum mismatch"),
    ("manifest.json", of_another_step, "/manifest.json", "the manifest belongs to step 1"),
    ("manifest.json", file_instead_of_step, "", "not a directory"),
]


@pytest.mark.parametrize(("name", "damage", "at", "reason"), DAMAGES)
def test_damage_is_found_and_named(
    store: Store, name: str, damage: Callable[[Path], Any], at: str, reason: str
):
    save(store, 1, 2)
    damage(store.directory / STEP_2 / name)
    falls_back(store, f"{STEP_2}{at}", reason)


@pytest.mark.parametrize("name", ["step-1", "step-000000002", "step-00000002.txt", "2", "step-²"])
def test_other_names_are_nobodys_business(store: Store, name: str):
    save(store, 1)
    shutil.copytree(store.directory / "step-00000001", store.directory / name)
    assert newest(store).step == 1
    assert len(store.all()) == 1
    assert store.backend.clean() == []
    assert name in names(store)


def test_if_all_are_damaged_the_run_does_not_start_over(store: Store):
    save(store, 1, 2)
    (store.directory / "step-00000001" / "state.index").unlink()
    os.truncate(store.directory / STEP_2 / "state.index", 0)
    before = names(store)
    with pytest.raises(CheckpointError) as refused:
        store.newest()
    said = str(refused.value)
    assert "nothing was deleted" in said
    assert "choose another run_dir" in said
    assert f"{store.directory / 'step-00000001'}: missing 'state.index'" in said
    assert f"{store.directory / STEP_2 / 'state.index'}: 0 bytes instead of 500" in said
    assert names(store) == before


def test_a_list_of_all_says_what_is_damaged_without_reading_the_files(store: Store):
    save(store, 1, 2, 3)
    os.truncate(store.directory / STEP_2 / "state.index", 0)
    path = store.directory / "step-00000003" / "state.index"
    path.write_bytes(bytes(path.stat().st_size))
    one, two, three = store.all()
    assert (one.step, one.content, one.damage) == (1, {"step": 1}, "")
    assert (two.step, two.content) == (2, {})
    assert two.damage == f"{store.directory / STEP_2 / 'state.index'}: 0 bytes instead of 500"
    assert three.damage == ""
    with pytest.raises(CheckpointError, match="checksum mismatch"):
        store.at(3)


def test_a_step_that_is_not_there_is_refused_with_those_that_are(store: Store):
    save(store, 1, 2)
    with pytest.raises(ConfigurationError, match=r"(?s)no checkpoint of step 5\..*: 1, 2"):
        store.at(5)
    with pytest.raises(ConfigurationError, match="but there is none"):
        Store(store.directory / "elsewhere").at(5)


def test_a_failure_to_read_that_is_no_damage_does_not_fall_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    save(store, 1, 2)
    opening_fails(monkeypatch, "state.index", errno.EMFILE)
    with pytest.raises(CheckpointError, match=r"(?s)could not be read.*Too many open files.*do: "):
        store.newest()


# --- formats ---


def rewrite_manifest(path: Path, **changes: Any) -> None:
    """Changes a manifest, and gives it the checksum that belongs to it."""
    manifest = json.loads((path / manifests.MANIFEST).read_text())
    del manifest["sha256"]
    (path / manifests.MANIFEST).write_bytes(manifests.signed({**manifest, **changes}))


def test_a_format_of_the_future_is_refused_in_words_and_nothing_older_is_taken(store: Store):
    save(store, 1, 2)
    rewrite_manifest(store.directory / STEP_2, format=7, more="fields")
    for read in (store.newest, lambda: store.at(2), lambda: save(store, 2)):
        with pytest.raises(CheckpointError) as refused:
            read()
        assert "newer version of Loopwright" in str(refused.value)
        assert "format 7" in str(refused.value)
        assert "format 1 or older" in str(refused.value)
    assert "newer version of Loopwright" in store.all()[1].damage
    assert names(store) == ["step-00000001", STEP_2]


def test_the_first_format_stays_readable(tmp_path: Path):
    # As the first Loopwright with checkpoints wrote it. This text never changes.
    path = tmp_path / "step-00000007"
    path.mkdir()
    (path / "state.index").write_bytes(b"index")
    (path / "manifest.json").write_text(
        '{"format":1,"step":7,"files":{"state.index":{"bytes":5,"sha256":'
        '"1bc04b5291c26a46d918139138b992d2de976d6851d0893b0476b85bfbdfc6e6"}},'
        '"content":{"epoch":2,"loss":[0.5,NaN]},"sha256":'
        '"33786ef4886af654dd62acb96d9d17e5e39930546b7d7cd9fc14bb0ed54607eb"}'
    )
    found = Store(tmp_path).newest()
    assert found is not None
    assert found.content["epoch"] == 2


# --- disks ---


@pytest.fixture
def small_disk(mount: Callable[[str], Path]) -> Path:
    """A file system of its own with room for 256 KB."""
    return mount("size=256k")


def test_a_full_disk_is_named_with_the_bytes_needed_and_nothing_stays_behind(small_disk: Path):
    store = Store(small_disk / "checkpoints")
    save(store, 1)
    before = snapshot(small_disk)
    with pytest.raises(CheckpointError) as refused:
        store.write(2, {}, writing({"large": bytes(200 * KILOBYTE), "larger": bytes(2**20)}))
    said = str(refused.value)
    assert f"{store.directory / STEP_2} could not be written" in said
    assert "No space left on device" in said
    assert "bytes are free" in said
    needed = int(said.split("expected: at least ")[1].split(" bytes")[0].replace(",", ""))
    assert needed >= 200 * KILOBYTE
    assert "keep fewer checkpoints; earlier checkpoints are unchanged" in said
    assert snapshot(small_disk) == before
    save(store, 3)
    assert newest(store).step == 3


def test_a_read_only_disk_is_named(small_disk: Path):
    store = Store(small_disk / "checkpoints")
    save(store, 1)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for change in (
        lambda: save(store, 2),
        lambda: store.backend.delete(1),
        lambda: store.set_aside_after(0),
        lambda: save(Store(small_disk / "other"), 1),
    ):
        with pytest.raises(CheckpointError, match=r"(?s)Read-only file system.*make the directory"):
            change()
    assert newest(store).step == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_permission_is_named(store: Store):
    save(store, 1)
    store.directory.chmod(0o500)
    try:
        with pytest.raises(CheckpointError, match=r"(?s)Permission denied.*make the directory"):
            save(store, 2)
    finally:
        store.directory.chmod(0o700)
    assert newest(store).step == 1


def test_a_file_in_place_of_the_directory_is_named(store: Store):
    store.directory.parent.mkdir()
    store.directory.write_bytes(b"")
    with pytest.raises(CheckpointError, match="could not be written"):
        save(store, 1)
    with pytest.raises(CheckpointError, match="Not a directory"):
        store.newest()


def test_a_full_disk_under_tensorflow_itself_is_named(small_disk: Path):
    script = """
import sys
from pathlib import Path
import tensorflow as tf
from loopwright.checkpoints.store import Store
from loopwright.errors import CheckpointError

store = Store(Path(sys.argv[1]) / "checkpoints")
state = tf.train.Checkpoint(v=tf.Variable(tf.zeros([300_000])))
try:
    store.write(1, {}, lambda directory: state.write(str(directory / "state")))
except CheckpointError as error:
    print(error)
print(sorted(path.name for path in store.directory.iterdir()))
"""
    command = [sys.executable, "-c", script, str(small_disk)]
    run = run_command(command)
    assert "No space left on device" in run.stdout
    assert "free some space" in run.stdout
    assert run.stdout.endswith("[]\n")


# --- delete ---


def entries(*steps: int) -> list[Entry]:
    return [Entry(step, False, {"val_loss": 1.0}) for step in steps]


def test_retention_waits_for_the_newest_and_removes_only_what_it_was_told_about(store: Store):
    save(store, 1, 2)
    assert store.apply_retention([KeepLatest(1)], entries(1, 2, 3)) == []
    save(store, 3)
    assert store.apply_retention([KeepLatest(1)], entries(2, 3)) == [2]
    assert names(store) == ["step-00000001", "step-00000003"]
    assert store.apply_retention([KeepLatest(1)], entries(1, 2, 3)) == [1]
    assert store.apply_retention([KeepLatest(1)], []) == []


def test_abandoned_checkpoints_are_set_aside_and_never_found_again(store: Store):
    save(store, 1, 2, 3)
    os.truncate(store.directory / "step-00000003" / "state.index", 0)
    aside = store.set_aside_after(1)
    assert [path.name.split("-")[1] for path in aside] == ["00000002.bad", "00000003.bad"]
    assert newest(store).step == 1
    assert store.backend.clean() == []
    assert all(path.is_dir() for path in aside)
    assert store.set_aside_after(1) == []


def test_only_leftovers_are_cleaned(store: Store):
    save(store, 1)
    kept = ["notes.txt", "step-00000002.bad-01234567", "step-00000003.tmp-xyz", "x.tmp-01234567"]
    for name in kept:
        (store.directory / name).mkdir()
    orphans = ["step-00000004.tmp-01234567", "step-00000005.tmp-89abcdef"]
    for name in orphans:
        (store.directory / name / "state_temp").mkdir(parents=True)
        (store.directory / name / "state_temp" / "part").write_bytes(b"part")
    (store.directory / "step-00000006.tmp-01234567").write_bytes(b"a file")
    orphans.append("step-00000006.tmp-01234567")
    assert store.backend.clean() == [store.directory / name for name in orphans]
    assert names(store) == sorted([*kept, "step-00000001"])


# --- symlinks ---


def test_a_symlink_in_place_of_the_directory_is_refused(store: Store, tmp_path: Path):
    elsewhere = tmp_path / "elsewhere"
    save(Store(elsewhere), 1)
    store.directory.parent.mkdir()
    store.directory.symlink_to(elsewhere)
    before = snapshot(elsewhere)
    for use in (
        store.newest,
        store.all,
        store.backend.clean,
        lambda: store.at(1),
        lambda: save(store, 2),
        lambda: store.backend.delete(1),
        lambda: store.set_aside_after(0),
    ):
        with pytest.raises(CheckpointError, match=f"(?s)is a symlink.*{elsewhere}.*do: "):
            use()
    assert snapshot(elsewhere) == before


# --- cost ---


def test_no_file_is_read_into_memory_as_a_whole(tmp_path: Path):
    script = """
import resource, sys
from pathlib import Path
from loopwright.checkpoints.store import Store

def write_files(directory):
    with (directory / "state").open("wb") as file:
        for _ in range(64):
            file.write(bytes(2**20))

store = Store(Path(sys.argv[1]))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
store.write(1, {}, write_files)
store.newest()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    run = run_command(command)
    assert int(run.stdout) < 10 * KILOBYTE  # kilobytes, of a file of 64 MB


def too_large(into: Path) -> None:
    raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))


@pytest.mark.parametrize(
    ("write", "reason", "remedy"),
    [
        (too_large, "File too large", "ulimit -f"),
        (lambda into: bytearray(2**60), "Cannot allocate memory", "free memory"),
    ],
)
def test_a_limit_on_files_or_memory_is_named(store: Store, write: Any, reason: str, remedy: str):
    with pytest.raises(CheckpointError, match=rf"(?s)received: {reason}.*{remedy}") as caught:
        store.write(1, {}, write)
    assert isinstance(caught.value.__cause__, OSError | MemoryError)
    assert store.all() == []
