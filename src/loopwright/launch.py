"""How a process is launched: the settings that TensorFlow reads once, and who has set them.

A plan is what can change inside a process. oneDNN, XLA's flags and the sizes of thread pools
cannot: they are environment variables, read when TensorFlow is imported or first used. They change
the bits of a run, so `plan.json` records which settings ran which steps. `train`, `resume` and
`run` set variables and mark the process by its PID: an exec keeps the mark, children do not count
as marked.
"""

import functools
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from loopwright.processor import cpu_flags

ONEDNN = "TF_ENABLE_ONEDNN_OPTS"
"""Whether TensorFlow runs convolutions and matrix products by oneDNN; read at its import."""
XLA_FLAGS = ("XLA_FLAGS", "TF_XLA_FLAGS")
"""Flags of XLA, and of TensorFlow about XLA; read when XLA is first used."""
THREADS = {
    "intra_op_threads": "TF_NUM_INTRAOP_THREADS",
    "inter_op_threads": "TF_NUM_INTEROP_THREADS",
}
MOST_THREADS = 1024
MARK = "LOOPWRIGHT_SETTINGS"
"""The PID of the process, the key of a remembered choice or "-", the variables that were set."""
PARENT = "LOOPWRIGHT_PARENT"
"""In the environment of a child that answers: the PID of its parent, and a socket to it."""
MEASURED = "LOOPWRIGHT_MEASURED"
"""Set for a child that answers how fast it trains."""

_ONEDNN_BY_DEFAULT = frozenset(
    {"avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_int8", "amx_bf16"}
)

# They say where files are written and what is logged, not what is computed.
_WITHOUT_MEANING = ("dump", "persistent_cache", "log", "debug_options_file")


@final
@dataclass(frozen=True)
class Settings:
    """What is fixed for a process.

    >>> Settings(onednn=True).in_words, Settings(onednn=True).variables()
    ('oneDNN on', {'TF_ENABLE_ONEDNN_OPTS': '1'})
    """

    onednn: bool = False
    xla_flags: tuple[str, ...] = ()
    """Sorted, without those that only name files."""
    intra_op_threads: int = 0
    """Set by a variable; 0: TensorFlow decides."""
    inter_op_threads: int = 0

    def __post_init__(self) -> None:
        if not all(0 <= getattr(self, name) <= MOST_THREADS for name in THREADS):
            raise ValueError(f"expected up to {MOST_THREADS} threads, received {self}")

    @property
    def threads(self) -> dict[str, int]:
        """The sizes of thread pools that are set, by field."""
        return {name: size for name in THREADS if (size := getattr(self, name))}

    @property
    def in_words(self) -> str:
        """The settings in words."""
        pools = {name.removesuffix("_op_threads"): size for name, size in self.threads.items()}
        threads = [f"{n} {pool}-op thread{'s' * (n > 1)}" for pool, n in pools.items()]
        return ", ".join([f"oneDNN {'on' if self.onednn else 'off'}", *self.xla_flags, *threads])

    def variables(self) -> dict[str, str]:
        """Return the variables that Loopwright sets to start a process by these settings.

        Never XLA's flags: they are what the user has set. Some name files to write or programs to
        run, and a record may come from anyone.

        >>> Settings(intra_op_threads=1).variables()
        {'TF_ENABLE_ONEDNN_OPTS': '0', 'TF_NUM_INTRAOP_THREADS': '1'}
        """
        threads = {THREADS[name]: str(size) for name, size in self.threads.items()}
        return {ONEDNN: "1" if self.onednn else "0", **threads}

    def content(self) -> dict[str, Any]:
        """Return the settings as JSON values."""
        return {"onednn": self.onednn, "xla_flags": list(self.xla_flags), **self.threads}


def current() -> Settings:
    """Return the settings of this process, by its variables and its processor."""
    return replace(from_environment(os.environ), onednn=onednn_is_on())


@functools.cache
def onednn_is_on() -> bool:
    """Return whether TensorFlow runs oneDNN here; asked once: it reads the variable once."""
    return from_environment(os.environ).onednn


def from_environment(environment: Mapping[str, str]) -> Settings:
    """Return the settings of a process with these variables, on this processor.

    >>> from_environment({"XLA_FLAGS": "--b=1 --xla_dump_to=/tmp --a=2"}).xla_flags
    ('--a=2', '--b=1')
    """
    words = {"1": True, "true": True, "0": False, "false": False}  # others are ignored
    onednn = words.get(environment.get(ONEDNN, "").lower(), onednn_by_default())
    flags = [flag for name in XLA_FLAGS for flag in environment.get(name, "").split()]
    meaningful = {
        flag
        for flag in flags
        if not any(word in flag.partition("=")[0] for word in _WITHOUT_MEANING)
    }
    threads = {name: _count(environment.get(variable, "")) for name, variable in THREADS.items()}
    return Settings(onednn, tuple(sorted(meaningful)), **threads)


def onednn_by_default() -> bool:
    """Return whether TensorFlow switches oneDNN on by itself on this processor."""
    return bool(_ONEDNN_BY_DEFAULT & cpu_flags())


# -- the mark of a process -------------------------------------------------------------------------


def unmarked(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables as the user has set them, without those of a Loopwright above."""
    ours = [*environment.get(MARK, "").split()[2:], MARK, PARENT, MEASURED]
    return {name: value for name, value in environment.items() if name not in ours}


def apply(settings: Settings | None, key: str = "-") -> None:
    """Give this process the settings, before TensorFlow is imported; None: as it decides.

    What the user has set is left as it is. `key`: of the remembered choice that is applied.
    """
    given = unmarked(os.environ)
    wanted = {} if settings is None else settings.variables()
    ours = {name: value for name, value in wanted.items() if name not in given}
    for name in {*os.environ} - {*given, PARENT, MEASURED}:
        del os.environ[name]
    os.environ.update(ours, **{MARK: " ".join([str(os.getpid()), key, *ours])})


def own_key() -> str | None:
    """Return the key of the choice that this process has; "-": none; None: not started by us."""
    words = os.environ.get(MARK, "").split()
    return words[1] if len(words) > 1 and words[0] == str(os.getpid()) else None


def parent_socket() -> int | None:
    """Return the socket of this process to its parent; None unless it was started to answer."""
    parent, _, descriptor = os.environ.get(PARENT, "").partition(" ")
    return int(descriptor) if parent == str(os.getppid()) and descriptor.isdecimal() else None


def is_measured() -> bool:
    """Return whether this process was started to answer how fast it trains."""
    return MEASURED in os.environ and parent_socket() is not None


def program() -> list[str]:
    """Return the program of this process and its arguments, as `loopwright run` takes them."""
    words = sys.orig_argv[1:]
    while words and words[0].startswith("-") and words[0] != "-m":
        words = words[2 if words[0] in ("-X", "-W") else 1 :]
    return words


def is_command_line() -> bool:
    """Return whether this process is the program `loopwright`, and not one that calls it.

    >>> is_command_line()
    False
    """
    path = Path(sys.argv[0]) if sys.argv else Path()
    return path.stem == "loopwright" or path.parts[-2:] == ("loopwright", "__main__.py")


def _count(text: str) -> int:
    return min(int(text), MOST_THREADS) if text.isdecimal() and len(text) < 10 else 0
