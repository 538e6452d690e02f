"""Checkpoints as directories: a kill at any instant leaves whole ones, only whole ones are read.

    store = Store(run_dir / "checkpoints")
    store.write(1200, {"epoch": 3}, write_files)      # durable when it returns
    store.newest()                                    # verified to the last byte

Beside `step-00001200` there can be
    step-00001200.tmp-<id>      being written or deleted: `clean` removes it
    step-00001200.old-<id>      being replaced: counts until the new one is in place
    step-00001200.bad-<id>      set aside, damaged or abandoned: only a person deletes it
"""

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from loopwright import disk
from loopwright.checkpoints import retention
from loopwright.checkpoints.manifest import (
    FORMAT,
    MANIFEST,
    Checkpoint,
    DamagedError,
    same_manifest,
    sealed,
    signed,
    verified,
    write_manifest,
)
from loopwright.compat.messages import system_error_number
from loopwright.compat.out_of_memory import is_out_of_memory
from loopwright.errors import CheckpointError, message
from loopwright.step_warnings import warn_at_call

_NAME = re.compile(r"(step-([0-9]{8,18}))(?:\.(tmp|old|bad)-[0-9a-f]{8})?")
# A full disk and the like, also where TensorFlow reports them in its own errors.
_REMEDIES = {
    errno.ENOSPC: "free some space, or keep fewer checkpoints",
    errno.EDQUOT: "free some space, keep fewer checkpoints, or ask for a larger quota",
    errno.EROFS: "make the directory writable, or choose another run_dir",
    errno.EACCES: "make the directory writable, or choose another run_dir",
    errno.EPERM: "make the directory writable, or choose another run_dir",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f), or choose another file system",
    errno.ENOMEM: "free memory, or raise the limit on it (ulimit -v, or that of the container)",
    errno.EIO: "check the disk (dmesg), or choose another run_dir",
}


@final
class Store:
    """The checkpoints of one run. One process at a time changes them: `run_lock`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write(
        self, step: int, content: Mapping[str, Any], write_files: Callable[[Path], None]
    ) -> Path:
        """Makes a durable checkpoint of `content`, as JSON, and the files that are written for it.

        `write_files` gets an empty directory. The very same checkpoint is not written again;
        another one of the same step is replaced.
        """
        final_path = self.directory / f"step-{step:08d}"
        temporary = _aside(final_path, "tmp")
        with self._explaining(f"The checkpoint {final_path} could not be written", temporary):
            disk.make_run_directory(self.directory.parent)
            disk.make_directory(*self._in_run())
            self._check_free_space(final_path)
            disk.make_directory(*self._in_run(temporary), new=True)
            write_files(temporary)
            names = disk.names(*self._in_run(temporary))
            files = {name: sealed(temporary / name) for name in names}
            manifest = {"format": FORMAT, "step": step, "files": files, "content": dict(content)}
            write_manifest(temporary / MANIFEST, signed(manifest))
            disk.sync(*self._in_run(temporary))
            replaced = self._commit(temporary, final_path)
        if replaced is not None:
            self._delete(replaced)
        return final_path

    def least_free_bytes(self) -> int:
        """The room that `write` asks for: 1.2 times the newest checkpoint."""
        steps = self._steps()
        return int(1.2 * disk.bytes_in(steps[max(steps)])) if steps else 0

    def newest(self) -> Checkpoint | None:
        """The newest whole checkpoint, verified to the last byte; None if there is none at all.

        A damaged one is passed over with a warning. Raises if none is whole: a run never starts
        over by accident.
        """
        steps, damages = self._steps(), list[str]()
        for step in sorted(steps, reverse=True):
            try:
                found = verified(steps[step])
            except DamagedError as damage:
                damages.append(str(damage))
                continue
            for damage in damages:
                what = f"A checkpoint is damaged: the one of step {step} is taken instead."
                do = "nothing, unless it happens again: then check the disk"
                text = message(what, received=damage, do=do)
                warn_at_call(text)
            return found
        if not damages:
            return None
        raise CheckpointError(
            message(
                f"No checkpoint in {self.directory} can be used; nothing was deleted.",
                expected="at least one that is whole",
                received="; ".join(damages),
                do="put a copy back, or choose another run_dir",
            )
        )

    def at(self, step: int) -> Checkpoint:
        """The checkpoint of this step, verified to the last byte."""
        steps = self._steps()
        try:
            if step not in steps:
                raise DamagedError(f"{self.directory} has none of this step")
            return verified(steps[step])
        except DamagedError as damage:
            others = ", ".join(str(other) for other in sorted(steps) if other != step)
            raise CheckpointError(
                message(
                    f"The checkpoint of step {step} cannot be used.",
                    received=str(damage),
                    do=f"choose another step: {others or 'but there is none'}",
                )
            ) from damage

    def all(self) -> list[Checkpoint]:
        """Every checkpoint, the oldest first; damage only as far as manifests and sizes tell."""
        found = list[Checkpoint]()
        for step, path in sorted(self._steps().items()):
            try:
                found.append(verified(path, read_files=False))
            except (DamagedError, CheckpointError) as error:
                found.append(Checkpoint(path, step, {}, damage=str(error)))
        return found

    def remove(self, step: int) -> None:
        """Deletes a checkpoint, if there is one; a kill never leaves half of one under its name."""
        path = self._steps().get(step)
        if path is not None:
            self._delete(path)

    def apply_retention(
        self, rules: Sequence[retention.Rule], entries: Sequence[retention.Entry]
    ) -> list[int]:
        """Removes those of the entries that no rule keeps; says which.

        Removes nothing while the newest entry is not on disk.
        """
        steps, kept = self._steps(), retention.kept(entries, rules)
        if not kept or max(kept) not in steps:
            return []
        removed = sorted({entry.step for entry in entries} & steps.keys() - kept)
        for step in removed:
            self._delete(steps[step])
        return removed

    def set_aside_after(self, step: int) -> list[Path]:
        """Renames later checkpoints, damaged or abandoned, to `.bad-<id>`; says their new names.

        Who continues from `step` calls this first: the next start must not find them.
        """
        later = {path: _aside(path, "bad") for s, path in self._steps().items() if s > step}
        with self._explaining(f"The checkpoints in {self.directory} could not be renamed"):
            for path, aside in later.items():
                disk.rename(*self._in_run(path), aside.name)
            if later:
                disk.sync(*self._in_run())
        return sorted(later.values())

    def move_after(self, step: int, into: Path) -> None:
        """Moves later checkpoints into another run directory, the newest first."""
        with self._explaining(f"The checkpoints in {self.directory} could not be moved"):
            name = self.directory.name
            disk.make_directory(into, name)
            for each, path in sorted(self._steps().items(), reverse=True):
                if each > step:
                    disk.move(*self._in_run(path), into, f"{name}/step-{each:08d}")
            disk.sync(into, name)
            disk.sync(*self._in_run())

    def clean(self) -> list[Path]:
        """Removes what killed processes left half written, half replaced or half deleted."""
        named, steps = self._named(), self._steps()
        interrupted = [path for path, kind in named if kind == "old" and path in steps.values()]
        leftovers = [path for path, kind in named if kind in ("tmp", "old")]
        leftovers = [path for path in leftovers if path not in interrupted]
        with self._explaining(f"{self.directory} could not be cleaned"):
            for path in interrupted:
                disk.rename(*self._in_run(path), path.stem)
            if interrupted:
                disk.sync(*self._in_run())
            for path in leftovers:
                disk.delete(*self._in_run(path))
        return leftovers

    def _in_run(self, path: Path | None = None) -> tuple[Path, str]:
        """The run directory, and the name there of a checkpoint, or of the directory of all."""
        name = self.directory.name
        return self.directory.parent, name if path is None else f"{name}/{path.name}"

    def _named(self) -> list[tuple[Path, str | None]]:
        """Every path with a name of ours, and which kind of name it is."""
        with self._explaining(f"The directory {self.directory} could not be read"):
            try:
                with disk.directory(*self._in_run()) as handle:
                    names = disk.names(handle)
            except FileNotFoundError:
                return []
        found = [match for match in map(_NAME.fullmatch, names) if match]
        own = [match for match in found if match[1] == f"step-{int(match[2]):08d}"]
        return [(self.directory / match[0], match[3]) for match in own]

    def _steps(self) -> dict[int, Path]:
        """The directory of each step."""
        ours = [path for path, kind in self._named() if kind in (None, "old")]
        # Plain names sort first and win: an old one counts only while its successor is missing.
        return {_step_of(path): path for path in reversed(ours)}

    def _commit(self, temporary: Path, final_path: Path) -> Path | None:
        """Gives a finished checkpoint its name; the one that had it, if that is to be deleted."""
        old = _aside(final_path, "old")
        damaged = False
        if os.path.lexists(final_path):
            try:
                verified(final_path)
            except DamagedError:
                damaged = True
            if not damaged and same_manifest(final_path, temporary):
                disk.delete(*self._in_run(temporary))
                return None
            # Killed between the two renames, the run still has a checkpoint of this step.
            disk.rename(*self._in_run(final_path), old.name)
        disk.rename(*self._in_run(temporary), final_path.name, durable=True)
        if damaged:
            disk.rename(*self._in_run(old), _aside(final_path, "bad").name)
        return old if os.path.lexists(old) else None

    def _delete(self, path: Path) -> None:
        with self._explaining(f"The checkpoint {path} could not be deleted"):
            doomed = _aside(path, "tmp")
            disk.rename(*self._in_run(path), doomed.name, durable=True)
            disk.delete(*self._in_run(doomed))

    def _check_free_space(self, path: Path) -> None:
        needed, free = self.least_free_bytes(), disk.free_bytes(self.directory)
        if free is not None and free < needed:
            raise CheckpointError(
                message(
                    f"There is no room for the checkpoint {path}.",
                    expected=f"{needed:,} bytes free: 1.2 times the newest checkpoint",
                    received=f"{free:,} bytes free",
                    do=f"{_REMEDIES[errno.ENOSPC]}; the earlier checkpoints are untouched",
                )
            )

    @contextlib.contextmanager
    def _explaining(self, what: str, temporary: Path | None = None) -> Iterator[None]:
        """Turns errors of the disk into words; `temporary` does not outlive any error."""
        try:
            yield
        except BaseException as error:
            written = disk.bytes_in(temporary) if temporary else 0
            if temporary:
                with contextlib.suppress(OSError, disk.UnsafeFileError):
                    disk.delete(*self._in_run(temporary))
            reason, remedy = _reason(error)
            if not reason:
                raise
            expected = ""
            if temporary:
                needed, free = written, disk.free_bytes(self.directory)
                with contextlib.suppress(CheckpointError):  # of an unreadable directory
                    needed = max(needed, self.least_free_bytes())
                expected = f"room for at least {needed:,} bytes, and leave to write them"
                reason += "" if free is None else f"; {free:,} bytes are free"
            do = f"{remedy}; the earlier checkpoints are untouched"
            text = message(f"{what}.", expected=expected, received=reason, do=do)
            raise CheckpointError(text) from error


def _aside(path: Path, kind: str) -> Path:
    return path.with_name(f"{path.name.split('.')[0]}.{kind}-{secrets.token_hex(4)}")


def _step_of(path: Path) -> int:
    return int(path.name.split(".")[0].removeprefix("step-"))


def _reason(error: BaseException) -> tuple[str, str]:
    """Why the disk refused, and what helps; empty if it was not the disk."""
    if isinstance(error, CheckpointError):
        return "", ""
    number = error.errno if isinstance(error, OSError) else None
    if number is None:  # TensorFlow puts the words of the system into errors of its own
        number = system_error_number(error, _REMEDIES)
    if number is None and is_out_of_memory(error):
        number = errno.ENOMEM
    if number is None:
        return "", ""
    return os.strerror(number), _REMEDIES.get(number, "remove the cause, then start again")
