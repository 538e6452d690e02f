"""One checkpoint: a directory whose manifest lists every file with its size and checksum."""

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopwright import disk, untrusted
from loopwright.checkpoints.manifest_fields import require_right_kinds
from loopwright.compat.out_of_memory import out_of_memory_explained
from loopwright.errors import CheckpointError, message

FORMAT = 1
MANIFEST = "manifest.json"
MOST_MANIFEST_BYTES = disk.MOST_BYTES

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
            with _opened(directory, MANIFEST) as handle:
                manifest = _parsed(handle)
            _refuse_newer(path, manifest["format"])
            step, files = _checked(manifest)
            require_right_kinds(manifest["content"])
            if path.name.split(".")[0] != f"step-{step:08d}":
                raise ValueError(f"the manifest belongs to step {step}")
            at = path
            _compare_names(set(files), set(disk.names(directory)) - {MANIFEST})
            # Sizes first: they are cheap.
            for name, expected in files.items():
                at = path / name
                with _opened(directory, name) as handle:
                    if os.fstat(handle).st_size != expected["bytes"]:
                        n = os.fstat(handle).st_size
                        raise ValueError(f"{n:,} bytes instead of {expected['bytes']:,}")
            for name, expected in files.items() if read_files else ():
                at = path / name
                with _opened(directory, name) as handle:
                    if _sha256(handle) != expected["sha256"]:
                        raise ValueError("checksum mismatch")
    except disk.UnsafeFileError as error:
        raise DamagedError(f"{at}: {error.reason}") from error
    except OSError as error:
        if error.errno in _DAMAGE:
            file = error.errno == errno.ENOTDIR
            raise DamagedError(f"{at}: {'not a directory' if file else error.strerror}") from error
        do = "fix the cause and start again; nothing was changed"
        what = f"The checkpoint {path} could not be read."
        raise CheckpointError(message(what, received=f"{at}: {error.strerror}", do=do)) from error
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{at}: {str(error)[:300]}") from error
    return Checkpoint(path, step, manifest["content"])


def in_run(path: Path) -> tuple[Path, str]:
    """Return the run directory of a checkpoint, and the checkpoint's name in it."""
    run_dir = path.parent.parent
    return run_dir, path.relative_to(run_dir).as_posix()


def _parsed(handle: int) -> dict[str, Any]:
    with os.fdopen(handle, "rb", closefd=False) as file:
        raw = file.read(MOST_MANIFEST_BYTES + 1)
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
    return manifest


def signed(manifest: Mapping[str, Any]) -> bytes:
    """Return the bytes of a manifest with its own checksum."""
    digest = hashlib.sha256(_json(manifest)).hexdigest()
    return _json({**manifest, "sha256": digest})


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def _refuse_newer(path: Path, found: Any) -> None:
    if type(found) is int and found > FORMAT:
        raise CheckpointError(
            message(
                f"The checkpoint {path} was written by a newer version of Loopwright.",
                expected=f"format {FORMAT} or older",
                received=f"format {found}"[:100],
                do="install the version of Loopwright that wrote it, or choose another run_dir",
            )
        )


def _checked(manifest: Mapping[str, Any]) -> tuple[int, dict[str, dict[str, Any]]]:
    """Return step and files of a manifest; raise if it does not have the form of this format."""
    step, files = manifest.get("step"), manifest.get("files")
    right = (
        manifest.keys() == {"format", "step", "files", "content", "sha256"}
        and type(manifest["format"]) is int
        and manifest["format"] == FORMAT
        and type(step) is int
        and step >= 0
        and isinstance(manifest["content"], dict)
        and isinstance(files, dict)
        and all(_is_file_entry(entry) for entry in files.values())
    )
    if not right or not isinstance(step, int) or not isinstance(files, dict):
        raise ValueError("not a manifest of this format")
    for name in files:
        if name in ("", ".", "..", MANIFEST) or "/" in name or "\0" in name:
            raise ValueError(f"{name[:100]!a} is not the name of a file in this directory")
    return step, files


def _is_file_entry(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and entry.keys() == {"bytes", "sha256"}
        and type(entry["bytes"]) is int
        and entry["bytes"] >= 0
        and isinstance(entry["sha256"], str)
    )


def _compare_names(listed: set[str], present: set[str]) -> None:
    missing, extra = sorted(listed - present), sorted(present - listed)
    if missing or extra:
        parts = ["missing " + ascii(name) for name in missing]
        parts += ["not in the manifest: " + ascii(name) for name in extra]
        raise ValueError(", ".join(parts[:5]))


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of a verified checkpoint."""
    return json.loads(disk.read(*_within(path, MANIFEST)))


def same_manifest(one: Path, other: Path) -> bool:
    """Return whether two directories hold the same checkpoint."""
    first, second = (disk.read(*_within(path, MANIFEST)) for path in (one, other))
    return first == second


def _within(path: Path, name: str) -> tuple[Path, str]:
    run_dir, checkpoint = in_run(path)
    return run_dir, f"{checkpoint}/{name}"


@contextlib.contextmanager
def _opened(directory: int, name: str) -> Iterator[int]:
    handle = disk.opened(directory, name)
    try:
        yield handle
    finally:
        os.close(handle)


def _sha256(handle: int) -> str:
    with os.fdopen(handle, "rb", buffering=0, closefd=False) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(directory: Path, step: int, content: Mapping[str, Any]) -> None:
    """Write the manifest of the files in a directory, which makes it a checkpoint."""
    with disk.directory(*in_run(directory)) as handle:
        files = {name: _file_entry(handle, name) for name in disk.names(handle)}
    manifest = {"format": FORMAT, "step": step, "files": files, "content": dict(content)}
    raw = signed(manifest)
    if len(raw) > MOST_MANIFEST_BYTES or untrusted.is_deep(manifest):
        raise CheckpointError(
            message(
                f"The manifest {directory / MANIFEST} would be too large to read.",
                expected=f"at most {MOST_MANIFEST_BYTES:,} bytes and {untrusted.MOST_DEPTH} levels",
                received=f"{len(raw):,} bytes",
                do="keep large values as variables or files, not in the state of callbacks",
            )
        )
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with os.fdopen(disk.opened(*_within(directory, MANIFEST), flags), "wb") as file:
        file.write(raw)


def _file_entry(directory: int, name: str) -> dict[str, Any]:
    with _opened(directory, name) as handle:
        return {"bytes": os.fstat(handle).st_size, "sha256": _sha256(handle)}
