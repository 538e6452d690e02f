"""TensorFlow's persistent cache of XLA programs: its directory, its keys, its messages.

TensorFlow reads `TF_XLA_FLAGS` when it first looks for devices: before there is a model, and so
long before there is a trainer. Its own parser sets the same flags later, from a variable of
another name. Nothing stays in the environment: neither a child process nor the record of a run's
environment sees the directory.
"""

import contextlib
import ctypes
import functools
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

import tensorflow as tf

from loopwright.plans import processor
from loopwright.plans.settings import ONEDNN, THREADS

PREFIX = "loopwright"
_VARIABLE = "LOOPWRIGHT_XLA_CACHE_FLAGS"
# A C++ name contains the types of its arguments: with others, it is not found.
_FLAGS = "_ZN10tensorflow33AppendMarkForCompilationPassFlagsEPSt6vectorIN3tsl4FlagESaIS2_EE"
_PARSE = (
    "_ZN3xla33ParseFlagsFromEnvAndIgnoreUnknown"
    "ESt17basic_string_viewIcSt11char_traitsIcEERKSt6vectorIN3tsl4FlagESaIS6_EEb"
)
_LEVEL = "_ZN4absl12lts_2025081411MinLogLevelEv"
_SET_LEVEL = "_ZN4absl12lts_2025081414SetMinLogLevelENS0_18LogSeverityAtLeastE"
_FATAL = 3


@final
class _Text(ctypes.Structure):
    """A `std::string_view`."""

    _fields_ = (("length", ctypes.c_size_t), ("start", ctypes.c_char_p))


def use_directory(path: Path) -> bool:
    """Have TensorFlow keep its XLA programs for CPUs in a directory; return whether it can.

    It has no effect once TensorFlow has compiled a program in this process.
    """
    append, parse = _function(_FLAGS), _function(_PARSE)
    if append is None or parse is None:
        return False
    append.argtypes, append.restype = [ctypes.c_void_p], None
    parse.argtypes, parse.restype = [_Text, ctypes.c_void_p, ctypes.c_bool], None
    flags = (ctypes.c_void_p * 3)()  # an empty std::vector
    append(ctypes.byref(flags))
    name = _VARIABLE.encode()
    quoted = str(path).replace("\\", "\\\\").replace('"', '\\"')
    os.environ[_VARIABLE] = (
        f'--tf_xla_persistent_cache_directory="{quoted}" '
        f"--tf_xla_persistent_cache_prefix={PREFIX} --tf_xla_persistent_cache_device_types=CPU"
    )
    try:
        parse(_Text(len(name), name), ctypes.byref(flags), True)
    finally:
        del os.environ[_VARIABLE]
    return True


def can_use_directory() -> bool:
    """Return whether the installed TensorFlow has what `use_directory` calls."""
    return _function(_FLAGS) is not None and _function(_PARSE) is not None


def names_cache(flags: str) -> bool:
    """Return whether `TF_XLA_FLAGS` may name a cache of its own; a file of flags may.

    >>> names_cache("--tf_xla_auto_jit=2"), names_cache("/etc/flags")
    (False, True)
    """
    return "persistent_cache" in flags or bool(flags and not flags.lstrip().startswith("--"))


def kind_of_programs() -> str:
    """Return a digest of what the code that XLA generates depends on, besides the program.

    To be read when XLA compiles for the first time, as XLA itself reads its flags.
    """
    known = [
        *(tf.version.VERSION, tf.version.GIT_VERSION, tf.version.COMPILER_VERSION),
        *(processor.name(), " ".join(sorted(processor.cpu_flags())), processor.cores()),
        tf.config.threading.get_intra_op_parallelism_threads(),
        *(_meaning(os.environ.get(name, "")) for name in ("XLA_FLAGS", "TF_XLA_FLAGS")),
        *(os.environ.get(name) for name in (ONEDNN, THREADS["intra_op_threads"])),
    ]
    return hashlib.sha256(repr(known).encode()).hexdigest()[:32]


def _meaning(flags: str) -> list[str]:
    """Return flags without those that say where to write, in order; of two, the last counts."""
    if flags and not flags.lstrip().startswith("--"):
        with contextlib.suppress(OSError):
            flags = Path(flags.strip()).read_text(encoding="utf-8", errors="replace")
    by_name = {flag.partition("=")[0]: flag for flag in flags.split()}
    return sorted(flag for name, flag in by_name.items() if not re.search("_dump_|_cache_", name))


def is_failure_of_cache(error: Exception, directory: Path, *, has_files: bool) -> bool:
    """Return whether an error came from reading or writing a program in this directory.

    A truncated file raises `OutOfRangeError`, as the end of data does, and names no file: only
    where the program `has_files`, and nothing says that a batch was being read.
    """
    if not isinstance(error, tf.errors.OpError):
        return False
    text = str(error)
    if str(directory) in text:
        return True
    return has_files and "IteratorGetNext" not in text and bool(re.search(_FAILURES, text))


_FAILURES = (
    r"Read less bytes than requested|Serialized (cache key|HLO) does not match"
    r"|No binary found in serialized entry"
)


@contextlib.contextmanager
def without_load_messages() -> Iterator[None]:
    """Leave out what TensorFlow logs while it loads a program.

    It tries to read each file as text first, and logs an error. A real one is an exception.
    """
    level, set_level = _function(_LEVEL), _function(_SET_LEVEL)
    if level is None or set_level is None:
        yield
        return
    before = level()
    set_level(max(before, _FATAL))
    try:
        yield
    finally:
        set_level(before)


@functools.cache
def _function(name: str) -> Any:
    """Return a function of TensorFlow's libraries by its C++ name; None if it has moved."""
    for library in sorted(Path(tf.sysconfig.get_lib()).glob("libtensorflow_*.so.*")):
        with contextlib.suppress(OSError, AttributeError):
            # Only one that is loaded already.
            return getattr(ctypes.CDLL(str(library), mode=os.RTLD_NOLOAD), name)
    return None
