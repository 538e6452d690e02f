"""One checkpoint: a directory whose manifest lists every file with its size and checksum.

A manifest may come from a stranger, and its checksum only proves that it is complete: values that
no version of Loopwright wrote are refused before anything else is read.
"""

# ruff: noqa: RUF012  (pydantic copies defaults)
# pyright: reportUninitializedInstanceVariable=false
# Of pydantic's own attributes, in classes with an abstract base.

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Annotated, Any, final

from pydantic import AfterValidator, AllowInfNan, BeforeValidator, Field, ValidationError

from loopwright import disk, untrusted
from loopwright.compat.messages import is_out_of_memory, reason_in
from loopwright.errors import CheckpointError, first_line
from loopwright.loop.schedule import every
from loopwright.plans import record as plan_record
from loopwright.records import Record, in_words

FORMAT = 1
MANIFEST = "manifest.json"
MOST_MANIFEST_BYTES = disk.MOST_BYTES
_MOST_NAMES = 10_000

# Errors that mean damage. Any other, like too many open files, says nothing about the checkpoint,
# and must not make a run fall back to an older one.
_DAMAGE = {errno.EIO, errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO}


class DamagedError(Exception):
    """A directory is not a valid checkpoint."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk; `content` is what was given to `Store.write`."""

    path: Path
    step: int
    content: Mapping[str, Any]
    damage: str = ""
    """What is damaged; empty if the checkpoint is valid."""
    files: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The size and the checksum of each file, by name."""

    @property
    def is_usable(self) -> bool:
        """Whether it is valid, and the checkpoint of a training."""
        return not self.damage and {"leg", "place"} <= self.content.keys()

    @property
    def ends_leg(self) -> bool:
        """Whether it is the end of a call of `fit`."""
        return bool(self.content["place"].get("is_over"))


@contextlib.contextmanager
def out_of_memory_explained(what: str) -> Iterator[None]:
    """Raise a `CheckpointError` that begins with `what` where memory runs out."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise CheckpointError(
            f"{what}: out of memory.",
            expected="enough free memory for the whole state of the run",
            received=reason_in(str(error) or "no memory left"),
            do="free memory or use a machine with more, then start again; the checkpoints are "
            "untouched",
        ) from error


def verified(path: Path, *, read_files: bool = True) -> Checkpoint:
    """Return the checkpoint in a directory, compared with its manifest: names, sizes, every byte.

    Nothing outside the directory is opened, whatever the manifest says.
    """
    at, (run_dir, name) = path, in_run(path)
    try:
        with (
            out_of_memory_explained(f"The checkpoint {path} cannot be read"),
            disk.directory(run_dir, name) as directory,
        ):
            at = path / MANIFEST
            with _opened(directory, MANIFEST) as file:
                manifest = _parsed(path, file.read(MOST_MANIFEST_BYTES + 1))
            step, files = manifest["step"], manifest["files"]
            if path.name.split(".")[0] != f"step-{step:08d}":
                raise ValueError(f"the manifest belongs to step {step}")
            at = path
            listed, present = set(files), set(disk.names(directory)) - {MANIFEST}
            missing = ["missing " + ascii(name) for name in sorted(listed - present)]
            extra = ["not in the manifest: " + ascii(n) for n in sorted(present - listed)]
            if listed != present:
                raise ValueError(", ".join([*missing, *extra][:5]))
            # Sizes first: they are cheap.
            for name, expected in files.items():
                at = path / name
                with _opened(directory, name) as file:
                    size = os.fstat(file.fileno()).st_size
                    if size != expected["bytes"]:
                        raise ValueError(f"{size:,} bytes instead of {expected['bytes']:,}")
            for name, expected in files.items() if read_files else ():
                at = path / name
                with _opened(directory, name) as file:
                    if hashlib.file_digest(file, "sha256").hexdigest() != expected["sha256"]:
                        raise ValueError("checksum mismatch")
    except disk.UnsafeFileError as error:
        raise DamagedError(f"{at}: {error.reason}") from error
    except OSError as error:
        if error.errno in _DAMAGE:
            file = error.errno == errno.ENOTDIR
            raise DamagedError(f"{at}: {'not a directory' if file else error.strerror}") from error
        do = "fix the cause and start again; nothing was changed"
        what = f"The checkpoint {path} could not be read."
        raise CheckpointError(what, received=f"{at}: {error.strerror}", do=do) from error
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{at}: {str(error)[:300]}") from error
    return Checkpoint(path, step, manifest["content"], files=files)


def in_run(path: Path) -> tuple[Path, str]:
    """Return the run directory of a checkpoint, and the checkpoint's name in it."""
    run_dir = path.parent.parent
    return run_dir, path.relative_to(run_dir).as_posix()


def _parsed(path: Path, raw: bytes) -> dict[str, Any]:
    """Return a manifest; raise for the first value that is not of this format."""
    if len(raw) > MOST_MANIFEST_BYTES:
        raise ValueError(f"more than {MOST_MANIFEST_BYTES:,} bytes")
    manifest = json.loads(raw.decode("ascii"))
    if untrusted.is_deep(manifest):
        raise ValueError(f"more than {untrusted.MOST_DEPTH} levels")
    if not isinstance(manifest, dict) or "format" not in manifest:
        raise ValueError("not a manifest")
    # Byte for byte what would be written now: no duplicate key, no other spelling, its own sha256.
    # This holds for every format, so that damage is not mistaken for a newer format.
    if signed({key: value for key, value in manifest.items() if key != "sha256"}) != raw:
        raise ValueError("checksum mismatch")
    written = manifest["format"]
    if type(written) is int and written > FORMAT:
        raise CheckpointError(
            f"The checkpoint {path} was written by a newer version of Loopwright.",
            expected=f"format {FORMAT} or older",
            received=f"format {written}"[:100],
            do="install the version of Loopwright that wrote it, or choose another run_dir",
        )
    try:
        _Manifest.model_validate(manifest)
    except ValidationError as error:
        raise ValueError(in_words(error).removeprefix("content.")) from None
    for name in manifest["files"]:
        if name in ("", ".", "..", MANIFEST) or "/" in name or "\0" in name:
            raise ValueError(f"{name[:100]!a} is not the name of a file in this directory")
    return manifest


def signed(manifest: Mapping[str, Any]) -> bytes:
    """Return the bytes of a manifest with its own checksum."""
    digest = hashlib.sha256(_json(manifest)).hexdigest()
    return _json({**manifest, "sha256": digest})


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def _require_few(value: Any) -> Any:
    """Bound the names in a mapping: pydantic collects an error for each before it raises."""
    if isinstance(value, dict) and len(value) > _MOST_NAMES:
        raise ValueError(f"more than {_MOST_NAMES:,} names")
    return value


def _parse_by(parse: Callable[[Any], object]) -> AfterValidator:
    """Require that a value can be parsed; it stays as it is."""

    def check(value: Any) -> Any:
        try:
            parse(value)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise ValueError(first_line(error)) from None
        return value

    return AfterValidator(check)


_Count = Annotated[int, Field(ge=0, lt=2**63)]
_Seconds = Annotated[float, Field(ge=0, lt=1e12)]  # datetime can show a sum of many
_Number = Annotated[float, AllowInfNan()]
_Counts = Annotated[list[_Count], Field(fail_fast=True)]
_Texts = Annotated[list[str], Field(fail_fast=True)]
_Values = dict[str, Any]
_Columns = Annotated[dict[str, list[Any]], BeforeValidator(_require_few)]


@final
class _File(Record):
    bytes: _Count
    sha256: str


@final
class _Place(Record):
    step: _Count = 0
    epoch: _Count = 0
    step_in_epoch: _Count = 0
    seconds: _Seconds = 0
    epoch_began_seconds: _Seconds = 0
    validated_step: _Count | None = None
    validated_seconds: _Seconds = 0
    saved_seconds: _Seconds = 0
    is_due: bool = False
    epoch_ended: bool = False
    is_over: bool = False


@final
class _Read(Record):
    batches: _Count = 0
    ends: _Count = 0
    last_digest: str | None = None


_Pair = Annotated[list[_Number], Field(min_length=2, max_length=2)]


@final
class _Tally(Record):
    totals: Annotated[dict[str, _Pair], BeforeValidator(_require_few)]
    last: _Values
    updated: _Counts | None = None


@final
class _History(Record):
    epoch: _Counts
    epoch_steps: _Counts
    validation_steps: _Counts
    training: _Columns
    validation: _Columns


@final
class _Callback(Record):
    kind: str = Field(alias="class")
    state: Any
    """Anything: a custom callback returns it from get_state."""


@final
class _Variable(Record):
    name: str
    dtype: str
    shape: _Counts | None


@final
class _Inexact(Record):
    reasons: _Texts = []
    loses_position: bool = False
    restarts_epoch: bool = False


@final
class _End(Record):
    is_due: bool = False
    changed: _Texts = []
    callbacks: Annotated[list[_Callback], Field(fail_fast=True)] = []


@final
class _Declared(Record, extra="allow"):
    """Beside these, the arguments of trainer and `fit`."""

    learning_rate: _Values = {}
    optimizer: _Values = {}
    loss: _Values = {}
    schedules: _Values = {}
    layers: _Values = {}
    step: _Values = {}
    versions: _Values = {}


@final
class _Content(Record, extra="allow"):
    """What `Store.write` was given; a `Snapshot` refuses other names."""

    leg: _Count = 0
    until: Annotated[str, _parse_by(every)] = ""
    place: _Place = _Place()
    scores: _Values = {}
    first_step: _Count = 0
    first_epoch: _Count = 0
    read: _Read = _Read()
    data: _Values = {}
    has_data: bool = False
    lengths: Annotated[dict[str, _Count], BeforeValidator(_require_few)] = {}
    passed_over: _Counts = []
    tally: _Tally = Field(default_factory=_Tally.model_construct)
    history: _History = Field(default_factory=_History.model_construct)
    callbacks: Annotated[list[_Callback], Field(fail_fast=True)] = []
    plans: Annotated[_Values, _parse_by(plan_record.parsed)] = {}
    variables: Annotated[list[_Variable], Field(fail_fast=True)] = []
    environment: _Values = {}
    exact_until_step: _Count | None = None
    measured: _Values | None = None
    inexact: _Inexact = _Inexact()
    end: _End = _End()
    declared: _Declared = _Declared()


@final
class _Manifest(Record):
    format: Annotated[int, Field(ge=FORMAT, le=FORMAT)]
    step: _Count
    files: Annotated[dict[str, _File], BeforeValidator(_require_few)]
    content: _Content
    sha256: str


def same_manifest(one: Path, other: Path) -> bool:
    """Return whether two directories hold the same checkpoint."""
    first, second = (disk.read(run, f"{at}/{MANIFEST}") for run, at in map(in_run, (one, other)))
    return first == second


def _opened(directory: int, name: str) -> FileIO:
    return os.fdopen(disk.opened(directory, name), "rb", buffering=0)


def write_manifest(directory: Path, step: int, content: Mapping[str, Any]) -> None:
    """Write the manifest of the files in a directory, which makes it a checkpoint."""
    files, (run_dir, checkpoint) = dict[str, Any](), in_run(directory)
    with disk.directory(run_dir, checkpoint) as handle:
        for name in disk.names(handle):
            with _opened(handle, name) as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                files[name] = {"bytes": os.fstat(file.fileno()).st_size, "sha256": digest}
    manifest = {"format": FORMAT, "step": step, "files": files, "content": dict(content)}
    raw = signed(manifest)
    if len(raw) > MOST_MANIFEST_BYTES or untrusted.is_deep(manifest):
        raise CheckpointError(
            f"The manifest {directory / MANIFEST} would be too large to read.",
            expected=f"at most {MOST_MANIFEST_BYTES:,} bytes and {untrusted.MOST_DEPTH} levels",
            received=f"{len(raw):,} bytes",
            do="keep large values as variables or files, not in the state of callbacks",
        )
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with os.fdopen(disk.opened(run_dir, f"{checkpoint}/{MANIFEST}", flags), "wb") as file:
        file.write(raw)
