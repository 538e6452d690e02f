"""Compiled programs on disk: found by program, checked by their checksums, limited in size.

    store = Store(directory, kind="0f3a...")
    store.put(program, "loopwright__17__4__XLA_CPU_JIT.pb", content)
    store.take(program)     # {"loopwright__17__4__XLA_CPU_JIT.pb": content}

A program is code that will be run: only files and directories that no other user can change are
used. The checksum of a file is part of its name, so that a file is complete and listed, or not
there: whoever is killed while writing, and whoever else writes at the same time.
"""

import contextlib
import hashlib
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import final

from loopwright import disk

MOST_BYTES = 2**30
_NAME = re.compile(r"(?P<program>[0-9a-f]{16})-(?P<checksum>[0-9a-f]{64})-(?P<name>[\w.-]+)")
_KIND = re.compile(r"[0-9a-f]{32}")
_FAILURES = (OSError, disk.UnsafeFileError)


def unsafe(path: Path) -> str | None:
    """Return why another user could change what is in a directory; None if no one can.

    It need not exist yet: those above it are looked at.
    """
    user = os.geteuid()
    for each in filter(Path.exists, (path, *path.parents)):
        found = os.stat(each)
        if found.st_uid not in ((user,) if each == path else (user, 0)):
            return f"{each} belongs to another user"
        is_sticky = found.st_mode & stat.S_ISVTX and each != path
        if found.st_mode & stat.S_IWOTH and not is_sticky:
            return f"{each} can be written by every user"
        # Some systems give each user a group of its own, and directories that it can write.
        is_own_group = found.st_gid == os.getegid() and each != path
        if found.st_mode & stat.S_IWGRP and not is_sticky and not is_own_group:
            return f"{each} can be written by a group"
    return None


@final
@dataclass(frozen=True)
class Store:
    """The compiled programs of one kind: of one version, processor and set of flags."""

    root: Path
    kind: str

    def take(self, program: str) -> dict[str, bytes]:
        """Return the files of a program; delete those that are not as they were written."""
        taken = dict[str, bytes]()
        for entry in self._entries(program):
            content = self._checked(entry)
            if content is not None:
                taken[_parsed(entry)["name"]] = content
        return taken

    def has(self, program: str) -> bool:
        """Return whether there are files of a program, as they were written or not."""
        return bool(self._entries(program))

    def put(self, program: str, name: str, content: bytes) -> None:
        """Add a file of a program; do nothing where it cannot be written."""
        checksum = hashlib.sha256(content).hexdigest()
        entry = f"{self.kind}/{_short(program)}-{checksum}-{name}"
        if _NAME.fullmatch(entry.partition("/")[2]):
            with contextlib.suppress(*_FAILURES):
                disk.make_directory(self.root, self.kind)
                disk.write_whole(self.root, entry, content, shared=True)

    def drop(self, program: str) -> None:
        """Delete the files of a program."""
        for entry in self._entries(program):
            self._delete(entry)

    def _entries(self, program: str) -> list[str]:
        with contextlib.suppress(*_FAILURES):
            found = disk.names(self.root, self.kind)
            return [n for n in found if _NAME.fullmatch(n) and n.startswith(_short(program))]
        return []

    def _checked(self, entry: str) -> bytes | None:
        with contextlib.suppress(*_FAILURES):
            handle = disk.opened(self.root, f"{self.kind}/{entry}")
            with os.fdopen(handle, "rb") as file:
                if os.fstat(handle).st_uid == os.geteuid():
                    content = file.read()
                    if hashlib.sha256(content).hexdigest() == _parsed(entry)["checksum"]:
                        os.utime(handle)  # the last use, for `trim`
                        return content
        self._delete(entry)
        return None

    def _delete(self, entry: str) -> None:
        with contextlib.suppress(*_FAILURES):
            disk.delete(self.root, f"{self.kind}/{entry}")


def _short(program: str) -> str:
    return hashlib.sha256(program.encode()).hexdigest()[:16]


def _parsed(entry: str) -> dict[str, str]:
    found = _NAME.fullmatch(entry)
    return {} if found is None else found.groupdict()


def files(root: Path) -> dict[str, os.stat_result]:
    """Return every file of every kind, also what a killed process left behind."""
    found = dict[str, os.stat_result]()
    for kind in filter(_KIND.fullmatch, disk.names(root)):
        with contextlib.suppress(*_FAILURES):
            for name in disk.names(root, kind):
                with contextlib.suppress(*_FAILURES):
                    known = disk.status(root, f"{kind}/{name}")
                    if known is not None:
                        found[f"{kind}/{name}"] = known
    return found


def trim(root: Path, most_bytes: int = MOST_BYTES) -> None:
    """Delete what was not used for longest, until the rest is not larger than this."""
    found = files(root)
    excess = sum(each.st_size for each in found.values()) - most_bytes
    for name in sorted(found, key=lambda each: found[each].st_mtime_ns):
        if excess <= 0:
            return
        with contextlib.suppress(*_FAILURES):
            disk.delete(root, name)
        excess -= found[name].st_size
