"""Checkpoints that somebody made to do harm: rejected, quickly, and nothing outside is touched."""

import hashlib
import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loopwright.checkpoints.manifest import MOST_MANIFEST_BYTES
from loopwright.checkpoints.store import Store
from loopwright.errors import CheckpointError

MOST_SECONDS = 10
STATE = b"the state of a model"
STATE_ENTRY: dict[str, Any] = {"bytes": len(STATE), "sha256": hashlib.sha256(STATE).hexdigest()}


@pytest.fixture
def step(tmp_path: Path) -> Path:
    """The directory of a whole checkpoint, the only one of its run; beside it sits a canary."""
    store = Store(tmp_path / "run" / "checkpoints")
    path = store.write(1, {}, lambda directory: _write(directory / "state", STATE))
    (tmp_path / "canary").write_bytes(STATE)
    (tmp_path / "canaries").mkdir()
    (tmp_path / "canaries" / "state").write_bytes(STATE)
    assert store.newest() is not None
    return path


@pytest.fixture(autouse=True)
def _nothing_happens_outside(tmp_path: Path) -> Iterator[None]:
    yield
    assert (tmp_path / "canary").read_bytes() == STATE
    assert {path.name: path.read_bytes() for path in (tmp_path / "canaries").iterdir()} == {
        "state": STATE
    }
    assert {path.name for path in tmp_path.iterdir()} == {"run", "canary", "canaries"}


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def sign(manifest: dict[str, Any]) -> bytes:
    """A manifest with its own checksum: written here anew, so that only its content is wrong."""
    text = json.dumps(manifest, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f'{text[:-1]},"sha256":"{digest}"}}'.encode()


def manifest(**changes: Any) -> dict[str, Any]:
    return {"format": 1, "step": 1, "files": {"state": STATE_ENTRY}, "content": {}, **changes}


def rejected(step: Path, reason: str = "", *, only_by_reading: bool = False) -> None:
    """Asserts that nothing of it is used, in a short time, and that it can be deleted safely."""
    start = time.monotonic()
    store = Store(step.parent)
    with pytest.raises(CheckpointError) as refused:
        store.newest()
    assert reason in str(refused.value)
    assert len(str(refused.value)) < 2000
    with pytest.raises(CheckpointError, match="step 1 cannot be used"):
        store.at(1)
    (listed,) = store.all()
    assert listed.damage or only_by_reading
    assert listed.content == {}
    store.backend.clean()
    store.backend.delete(1)
    assert os.listdir(step.parent) == []
    assert time.monotonic() - start < MOST_SECONDS


def test_the_corpus_is_rejected_for_what_is_wrong_and_not_for_its_form(step: Path):
    (step / "manifest.json").write_bytes(sign(manifest()))
    assert Store(step.parent).newest() is not None


NO_FILE = "is not the name of a file in this directory"
NAMES = ["../../../canary", "../../../canaries/state", "..", ".", "", "/dev/zero", "a/b"]
NAMES += ["state/", "./state", "state\0", "manifest.json"]


@pytest.mark.parametrize(
    ("name", "reason"), [*((name, NO_FILE) for name in NAMES), ("\ud800", ""), ("x" * 100_000, "")]
)
def test_a_name_that_leads_elsewhere_is_rejected(step: Path, name: str, reason: str):
    files = {"state": STATE_ENTRY, name: STATE_ENTRY}
    (step / "manifest.json").write_bytes(sign(manifest(files=files)))
    (step / "a").mkdir()
    (step / "a" / "b").write_bytes(STATE)
    rejected(step, reason)


@pytest.mark.parametrize("target", ["../../../canary", "/dev/zero", "/dev/stdin", "state", "none"])
def test_a_symlink_in_place_of_a_file_is_rejected(step: Path, target: str):
    (step / "state").unlink()
    (step / "state").symlink_to(target)
    rejected(step, "a symlink")


@pytest.mark.parametrize("place", ["manifest.json", "more", ""])
def test_a_symlink_in_place_of_manifest_directory_or_step_is_rejected(
    step: Path, tmp_path: Path, place: str
):
    link, target = step / place, tmp_path / "canaries"
    if place == "manifest.json":
        target = link.rename(step / "state2")
    elif not place:
        shutil.rmtree(step)
    link.symlink_to(target)
    rejected(step, "not in the manifest: 'more'" if place == "more" else "a symlink")


@pytest.mark.parametrize("name", ["state", "manifest.json"])
@pytest.mark.parametrize("kind", ["pipe", "socket", "directory"])
def test_what_is_no_file_is_rejected_without_waiting(
    step: Path, name: str, kind: str, monkeypatch: pytest.MonkeyPatch
):
    (step / name).unlink()
    if kind == "pipe":
        os.mkfifo(step / name)
    elif kind == "directory":
        (step / name).mkdir()
    else:
        monkeypatch.chdir(step)  # the path of a socket has to be short
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(name)
    rejected(step, f"{name}: ")


@pytest.mark.parametrize("digest", ["", "0" * 64, STATE_ENTRY["sha256"].upper(), "x" * 10**6])
def test_a_checksum_of_something_else_is_rejected(step: Path, digest: str):
    files = {"state": {**STATE_ENTRY, "sha256": digest}}
    (step / "manifest.json").write_bytes(sign(manifest(files=files)))
    rejected(step, "checksum mismatch", only_by_reading=True)


MANY = {f"{number}": "x" for number in range(50_000)}


CONTENTS: list[tuple[dict[str, Any], str]] = [
    ({"leg": True}, "leg: expected a valid integer, received True"),
    ({"leg": -1}, "leg: expected greater than or equal to 0, received -1"),
    ({"leg": None}, "leg: expected a valid integer, received None"),
    ({"place": {"step": "three"}}, "place.step: expected a valid integer, received 'three'"),
    ({"place": {"steps": 3}}, "place: unknown field 'steps'"),
    ({"place": {"seconds": float("nan")}}, "place.seconds: expected a finite number"),
    ({"place": {"seconds": 1e300}}, "place.seconds: expected less than"),
    ({"place": {"is_over": 1}}, "place.is_over: expected a valid boolean, received 1"),
    ({"tally": {"totals": {"loss": [1.0]}, "last": {}}}, "tally.totals.loss: "),
    ({"tally": {"totals": {}}}, "tally.last: missing"),
    ({"tally": None}, "tally: expected "),
    ({"until": "for ever"}, "until: ConfigurationError: "),
    ({"plans": {"format": 1}}, "plans: ValueError: changes: missing"),
    ({"variables": [{"name": "w", "dtype": "int8", "shape": [-1]}]}, "variables.0.shape.0: "),
    ({"callbacks": [{"class": "Own"}]}, "callbacks.0.state: missing"),
    ({"declared": {"layers": []}}, "declared.layers: expected a valid dictionary"),
    ({"place": MANY}, "place: unknown field '0'"),
    ({"lengths": MANY}, "lengths: more than 10,000 names"),
    ({"passed_over": [*MANY]}, "passed_over.0: expected a valid integer, received '0'"),
]
ENTRIES: list[Any] = [
    *({**STATE_ENTRY, "bytes": size} for size in (2**62, 10**400, -1, 20.0, True, "20")),
    *({**STATE_ENTRY, "sha256": None}, {**STATE_ENTRY, "path": "/etc/passwd"}),
    *({"bytes": len(STATE)}, None),
]
MANY_DIGITS = "step: expected less than 9223372036854775808, received 1000000000"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        *(({"content": content}, reason) for content, reason in CONTENTS),
        *(({"files": {"state": entry}}, "") for entry in ENTRIES),
        *(({"format": value}, "") for value in (0, True, 1.0, "1", float("nan"), None)),
        *(({"step": value}, "") for value in (2, -1, True, 1.0, "1", float("nan"), [1])),
        *(({"files": value}, "") for value in (None, [["state", 20]], {})),
        *(({"content": value}, "") for value in (None, [], "text")),
        ({"more": 1}, ""),
        ({"step": 10**4000}, MANY_DIGITS),
    ],
    ids=lambda given: given if isinstance(given, str) else f"{given!r:.40}",
)
def test_the_first_value_that_no_version_wrote_is_rejected_and_named(
    step: Path, changes: dict[str, Any], reason: str
):
    (step / "manifest.json").write_bytes(sign(manifest(**changes)))
    rejected(step, reason)


def test_numbers_that_training_may_reach_are_read(step: Path):
    content = {
        "tally": {"totals": {"loss": [float("nan"), 1]}, "last": {"loss": float("inf")}},
        "scores": {"loss": float("nan")},
        "place": {"seconds": 3, "validated_step": None},
        "callbacks": [{"class": "Own", "state": {"seen": MANY}}],
    }
    (step / "manifest.json").write_bytes(sign(manifest(content=content)))
    assert repr(Store(step.parent).at(1).content) == repr(content)


@pytest.mark.parametrize("key", ["format", "step", "files", "content"])
def test_a_manifest_that_lacks_a_value_is_rejected(step: Path, key: str):
    lacking = manifest()
    del lacking[key]
    (step / "manifest.json").write_bytes(sign(lacking))
    rejected(step)


def _twice(key: str) -> bytes:
    """A signed manifest in which a key stands twice, the second time with the right value."""
    return sign(manifest()).replace(f'"{key}":'.encode(), f'"{key}":7,"{key}":'.encode(), 1)


GARBAGE: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "binary": lambda: os.urandom(100_000),
    "pickle": lambda: b"cos\nsystem\n(S'touch canary2'\ntR.",
    "list": lambda: b"[]",
    "object": lambda: b"{}",
    "half": lambda: sign(manifest())[:-20],
    "unsigned": lambda: json.dumps(manifest()).encode(),
    "signed wrongly": lambda: sign(manifest()).replace(b'"step":1', b'"step":2'),
    "signed with an object": lambda: sign(manifest()).replace(b'"sha256":"', b'"sha256":["', 1),
    "another spelling": lambda: sign(manifest()).replace(b":1", b": 1"),
    "a line more": lambda: sign(manifest()) + b"\n",
    "a second value": lambda: sign(manifest()) + b"{}",
    "utf-8": lambda: sign(manifest()).replace(b'"content":{}', '"content":{"ü":1}'.encode()),
    "utf-8 with mark": lambda: sign(manifest()).decode().encode("utf-8-sig"),
    "format twice": lambda: _twice("format"),
    "step twice": lambda: _twice("step"),
    "deep lists": lambda: b"[" * 1_000_000,
    "deep lists that end": lambda: b"[" * 100_000 + b"]" * 100_000,
    "deep objects": lambda: b'{"a":' * 500_000 + b"1" + b"}" * 500_000,
    "deep content": lambda: (
        b'{"format":1,"step":1,"files":{},"content":' + b'{"a":' * 900 + b"1" + b"}" * 901
    ),
    "a number of a million digits": lambda: b'{"format":' + b"9" * 1_000_000 + b"}",
    "a number beyond floats": lambda: b'{"format":1e999999999}',
    "many keys": lambda: json.dumps({str(n): n for n in range(300_000)}).encode(),
}


@pytest.mark.parametrize("garbage", GARBAGE)
def test_a_manifest_that_is_garbage_is_rejected(step: Path, garbage: str):
    (step / "manifest.json").write_bytes(GARBAGE[garbage]())
    rejected(step, "manifest.json: ")


def test_a_format_of_many_digits_is_refused_in_few_words(step: Path):
    (step / "manifest.json").write_bytes(sign(manifest(format=10**4000)))
    with pytest.raises(CheckpointError, match="newer version of Loopwright") as refused:
        Store(step.parent).newest()
    assert len(str(refused.value)) < 2000


def test_a_manifest_that_is_too_large_is_not_even_parsed(step: Path):
    os.truncate(step / "manifest.json", MOST_MANIFEST_BYTES + 1)
    rejected(step, f"more than {MOST_MANIFEST_BYTES:,} bytes")


def test_a_huge_file_is_rejected_by_its_size_before_any_other_is_read(step: Path):
    (step / "a").touch()
    os.truncate(step / "a", 2**40)  # sparse: it takes no room, and hours to read
    for size, reason in ((2**40, "20 bytes instead of 21"), (20, f"{2**40:,} bytes instead of 20")):
        files = {"a": {**STATE_ENTRY, "bytes": size}, "state": {**STATE_ENTRY, "bytes": 21}}
        (step / "manifest.json").write_bytes(sign(manifest(files=files)))
        with pytest.raises(CheckpointError, match=reason):
            Store(step.parent).newest()
    rejected(step, reason)


@pytest.mark.parametrize("name", ["state", "line\nbreak", "\x1b[31mred", "\u202eright to left"])
def test_what_is_said_about_it_holds_nothing_that_changes_a_terminal(step: Path, name: str):
    (step / (name + "2")).write_bytes(b"")
    with pytest.raises(CheckpointError) as refused:
        Store(step.parent).newest()
    assert all(line.isprintable() for line in str(refused.value).splitlines())
    assert len(str(refused.value).splitlines()) == 4
