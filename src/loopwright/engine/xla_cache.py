"""Compiled XLA programs kept from one process to the next (decision 0021).

TensorFlow reads and writes programs in a directory that belongs to this process alone. Before a
program is compiled, its files come there from the store, checked; afterwards, new ones go to the
store. So no process sees a file that another process is writing, or has left half written.
"""

import atexit
import contextlib
import functools
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import final

import tensorflow as tf

from loopwright import disk
from loopwright.compat import xla_programs
from loopwright.compat.runtime_errors import plain_text, reason_in
from loopwright.engine import program_names
from loopwright.engine.xla_store import Store, files, trim, unsafe
from loopwright.errors import LoopwrightError, message
from loopwright.plans.memory import cache_directory

_PREFIX = "process-"
_LEAST_FREE_BYTES = 2**28


@final
class ProgramCacheError(LoopwrightError):
    """A compiled program could not be read from the cache or written to it."""

    def __init__(self, text: str, *, was_read: bool) -> None:
        super().__init__(text)
        self.was_read = was_read
        """Whether there was a file of it: now there is none, and it can be compiled."""


@contextlib.contextmanager
def compiling(program: str) -> Iterator[None]:
    """Compile a program in this scope, or load it from the cache.

    `program` describes it in the same words in every process. It decides which files TensorFlow
    may look at, not which one fits: TensorFlow compares the whole program.
    """
    process = _process()
    if process is None:
        yield
        return
    with process.compiling(program):
        yield


def has(program: str) -> bool:
    """Return whether a program is likely to be compiled already, here or by an earlier process.

    Whether it fits shows when it is traced: files are of its first trace in a process.
    """
    if program_names.was_traced(program):
        return program_names.is_known(program)
    process = _process()
    return process is not None and process.has(program)


def directory() -> Path | None:
    """Return where programs are kept; None if the cache is disabled or there is no home."""
    with contextlib.suppress(RuntimeError):
        plans = cache_directory()
        return None if plans is None else plans.parent.resolve() / "xla"
    return None


def why_off() -> str | None:
    """Return why programs are not kept; None if they are."""
    root = directory()
    if root is None:
        return "LOOPWRIGHT_CACHE_DIR is empty, or there is no home directory"
    if xla_programs.names_cache(os.environ.get("TF_XLA_FLAGS", "")):
        return "TF_XLA_FLAGS names a cache, or a file"
    if tf.config.list_physical_devices("GPU"):
        return "there is a GPU"
    if not xla_programs.can_use_directory():
        return f"TensorFlow {tf.__version__} has moved the flags of its cache"
    nearest = next(each for each in (root, *root.parents) if each.exists())
    if not (nearest.is_dir() and os.access(nearest, os.W_OK)):
        return f"{nearest} cannot be written"
    free = disk.free_bytes(nearest)
    if free is not None and free < _LEAST_FREE_BYTES:
        return "the disk is nearly full"
    return unsafe(root)


def described() -> str:
    """Describe the cache in one line, for `loopwright doctor`."""
    why, root = why_off(), directory()
    if why is not None or root is None:
        return f"off: {why}"
    found = files(root)
    size = sum(each.st_size for each in found.values())
    return f"on, {len(found)} programs, {size / 1e6:,.1f} MB in {root}"


@final
class _Process:
    """The directory of this process, and the store that its programs come from and go to."""

    def __init__(self, root: Path, own: Path) -> None:
        self._root, self._own = root, own
        self._lock, self._open = threading.Lock(), 0
        self._store: Store | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a program is being compiled."""
        return bool(self._open)

    def has(self, program: str) -> bool:
        """Return whether the store has files of a program."""
        store = self._store or Store(self._root, xla_programs.kind_of_programs())
        return store.has(program)

    @contextlib.contextmanager
    def compiling(self, program: str) -> Iterator[None]:
        """Give TensorFlow the files of a program, and keep those that it writes."""
        with self._lock:
            self._open += 1
            # XLA reads its flags now, if this is its first program.
            self._store = store = self._store or Store(self._root, xla_programs.kind_of_programs())
            taken = store.take(program)
            given = [name for name, content in taken.items() if self._give(name, content)]
        quiet = xla_programs.without_load_messages() if given else contextlib.nullcontext()
        try:
            with quiet:
                yield
        except Exception as error:
            has_files = bool(given)
            if not xla_programs.is_failure_of_cache(error, self._own, has_files=has_files):
                raise
            store.drop(program)
            raise ProgramCacheError(_failed(error, self._root), was_read=has_files) from error
        else:
            with self._lock:
                self._keep(store, program, given)
        finally:
            with self._lock:
                self._open -= 1
                self._remove(given)

    def _give(self, name: str, content: bytes) -> bool:
        with contextlib.suppress(OSError, disk.UnsafeFileError):
            disk.write_whole(self._own, name, content)
            return True
        return False

    def _keep(self, store: Store, program: str, given: list[str]) -> None:
        with contextlib.suppress(OSError, disk.UnsafeFileError):
            # TensorFlow gives a file this ending when it is complete.
            found = [name for name in disk.names(self._own) if name.endswith(".pb")]
            made = [name for name in found if name not in given]
            for name in made:
                store.put(program, name, disk.read(self._own, name, -1))
            self._remove(made)
            if made:
                trim(self._root)

    def _remove(self, names: list[str]) -> None:
        for name in names:
            with contextlib.suppress(OSError, disk.UnsafeFileError):
                disk.delete(self._own, name)


@functools.cache
def _process() -> _Process | None:
    """Return the cache of this process, made when it first compiles; None if it is off."""
    root = directory()
    if root is None or why_off() is not None:
        return None
    with contextlib.ExitStack() as stack, contextlib.suppress(OSError, disk.UnsafeFileError):
        disk.make_run_directory(root)
        if unsafe(root) is not None:  # made by another user meanwhile
            return None
        disk.delete_abandoned(root, _PREFIX)
        own = stack.enter_context(disk.staged(root, _PREFIX))
        if xla_programs.use_directory(own):
            process, kept = _Process(root, own), stack.pop_all()
            atexit.register(_end, process, kept, os.getpid())
            return process
    return None


def _end(process: _Process, kept: contextlib.ExitStack, pid: int) -> None:
    # What is still being compiled is waited for after this, and the next process tidies up.
    if os.getpid() == pid and not process.is_busy:
        with contextlib.suppress(OSError, disk.UnsafeFileError):
            kept.close()


def _failed(error: Exception, root: Path) -> str:
    return message(
        "A compiled XLA program could not be read from the cache, or written to it.",
        expected="a directory with free space, whose files only Loopwright changes",
        received=f"{type(error).__name__}: {reason_in(plain_text(error))}",
        do=f"start again: the program was deleted from {root} and will be compiled; "
        'LOOPWRIGHT_CACHE_DIR="" disables the cache',
    )
