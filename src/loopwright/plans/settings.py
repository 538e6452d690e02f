"""Process settings: the part of a plan that TensorFlow reads once, and then never again.

A plan is what can change inside a process. oneDNN, XLA's flags and the sizes of thread pools
cannot: they are environment variables, read when TensorFlow is imported or first used. They change
the bits of a run, so `plan.json` records which settings ran which steps.
"""

import functools
import os
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from loopwright.plans.processor import cpu_flags

if TYPE_CHECKING:
    from loopwright.plans.records import SettingsFields

ONEDNN = "TF_ENABLE_ONEDNN_OPTS"
"""Whether TensorFlow runs convolutions and matrix products by oneDNN; read at its import."""
XLA_FLAGS = ("XLA_FLAGS", "TF_XLA_FLAGS")
"""Flags of XLA, and of TensorFlow about XLA; read when XLA is first used."""
THREADS = {
    "intra_op_threads": "TF_NUM_INTRAOP_THREADS",
    "inter_op_threads": "TF_NUM_INTEROP_THREADS",
}
MOST_THREADS = 1024

_SHORT_SECONDS = 0.0005  # waking a second thread takes as long as the work that it takes over
_ONEDNN_BY_DEFAULT = frozenset(
    {"avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_int8", "amx_bf16"}
)

# They say where files are written and what is logged, not what is computed.
_WITHOUT_MEANING = ("dump", "persistent_cache", "log", "debug_options_file")

# What a record may set in a process: numbers and switches only. Other flags of XLA name files to
# write, or directories with compiled programs to run, and a record may come from anyone.
_SWITCHES = (
    *("cpu_multi_thread_eigen", "cpu_enable_fast_math", "cpu_enable_fast_min_max"),
    *(f"cpu_fast_math_honor_{what}" for what in ("nans", "infs", "division", "functions")),
    *("gpu_deterministic_ops", "gpu_exclude_nondeterministic_ops", "allow_excess_precision"),
)
_APPLICABLE = re.compile(
    rf"--xla_({'|'.join(_SWITCHES)})(=(true|false|0|1))?"
    r"|--xla_(gpu_autotune|backend_optimization)_level=[0-4]"
    r"|--xla_force_host_platform_device_count=[1-9][0-9]?"
    r"|--tf_xla_auto_jit=[0-2]"
)


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

    @property
    def in_words(self) -> str:
        """The settings in words."""
        parts = [f"oneDNN {'on' if self.onednn else 'off'}", *self.xla_flags]
        for name, words in {"intra_op_threads": "intra-op", "inter_op_threads": "inter-op"}.items():
            if count := getattr(self, name):
                parts.append(f"{count} {words} {'thread' if count == 1 else 'threads'}")
        return ", ".join(parts)

    def variables(self) -> dict[str, str]:
        """Return the variables that Loopwright sets to start a process by these settings.

        XLA's flags are never chosen: they are what the user has set.

        >>> Settings(intra_op_threads=1).variables()
        {'TF_ENABLE_ONEDNN_OPTS': '0', 'TF_NUM_INTRAOP_THREADS': '1'}
        """
        counts = {variable: getattr(self, name) for name, variable in THREADS.items()}
        threads = {variable: str(count) for variable, count in counts.items() if count}
        return {ONEDNN: "1" if self.onednn else "0", **threads}

    def applicable_flags(self, own: Iterable[str] = ()) -> list[str]:
        """Return the flags that a record may set: harmless by name and value, or set by the user.

        >>> flags = ("--a=1", "--xla_cpu_enable_fast_math=true", "--xla_dump_to=/home/me")
        >>> Settings(xla_flags=flags).applicable_flags(own=["--a=1"])
        ['--a=1', '--xla_cpu_enable_fast_math=true']
        """
        known = {*own}
        return [flag for flag in self.xla_flags if flag in known or _APPLICABLE.fullmatch(flag)]

    def content(self) -> dict[str, Any]:
        """Return the settings as JSON values."""
        threads = {name: getattr(self, name) for name in THREADS if getattr(self, name)}
        return {"onednn": self.onednn, "xla_flags": list(self.xla_flags), **threads}


def parsed(content: Any) -> Settings:
    """Return the settings in the values of `Settings.content`; raise ValueError for others."""
    from loopwright.plans import records

    return of_record(records.read(records.SettingsRecord, content))


def of_record(found: "SettingsFields") -> Settings:
    """Return the settings in a record."""
    flags, threads = tuple(found.xla_flags), (found.intra_op_threads, found.inter_op_threads)
    return Settings(found.onednn, flags, *threads)


def current() -> Settings:
    """Return the settings of this process, by its variables and its processor."""
    return from_environment(os.environ, onednn=onednn_is_on())


@functools.cache
def onednn_is_on() -> bool:
    """Return whether TensorFlow runs oneDNN here; asked once: it reads the variable once."""
    asked = onednn_asked(os.environ)
    return onednn_by_default() if asked is None else asked


def from_environment(
    environment: Mapping[str, str], *, onednn: bool, is_recorded: bool = False
) -> Settings:
    """Return the settings of a process with these variables, of which oneDNN is known.

    `is_recorded`: the variables are of a record, and no file that they name is read.

    >>> from_environment({"XLA_FLAGS": "--b=1 --xla_dump_to=/tmp --a=2"}, onednn=False).xla_flags
    ('--a=2', '--b=1')
    """
    texts = [environment.get(name, "") for name in XLA_FLAGS]
    flags = [flag for text in texts for flag in _flags(text, reads_file=not is_recorded)]
    meaningful = {
        flag
        for flag in flags
        if not any(word in flag.partition("=")[0] for word in _WITHOUT_MEANING)
    }
    threads = {name: _count(environment.get(variable)) for name, variable in THREADS.items()}
    return Settings(onednn, tuple(sorted(meaningful)), **threads)


def onednn_asked(environment: Mapping[str, str]) -> bool | None:
    """Return what the variable asks of TensorFlow; None if it is unset or TensorFlow ignores it.

    >>> onednn_asked({"TF_ENABLE_ONEDNN_OPTS": "1"}), onednn_asked({})
    (True, None)
    """
    words = {"1": True, "true": True, "0": False, "false": False}
    return words.get(environment.get(ONEDNN, "").lower())


def onednn_by_default() -> bool:
    """Return whether TensorFlow switches oneDNN on by itself on this processor."""
    return bool(_ONEDNN_BY_DEFAULT & cpu_flags())


def onednn_is_left_off(environment: Mapping[str, str]) -> bool:
    """Return whether TensorFlow leaves oneDNN off on this processor, and the user has not set it.

    >>> onednn_is_left_off({"TF_ENABLE_ONEDNN_OPTS": "1"})
    False
    """
    return not onednn_by_default() and ONEDNN not in environment


def candidates(
    now: Settings, given: Mapping[str, str], *, step_seconds: float, cores: int
) -> list[Settings]:
    """Return the settings to compare with those of a process; what the user has set stays.

    >>> [other.in_words for other in candidates(Settings(), {}, step_seconds=6e-5, cores=2)]
    ['oneDNN on', 'oneDNN off, 1 intra-op thread']
    >>> candidates(Settings(), {"TF_ENABLE_ONEDNN_OPTS": "0"}, step_seconds=0.1, cores=2)
    []
    """
    others = [] if ONEDNN in given else [replace(now, onednn=not now.onednn)]
    is_open = THREADS["intra_op_threads"] not in given and cores > 1
    if is_open and 0 < step_seconds < _SHORT_SECONDS:
        others.append(replace(now, intra_op_threads=1))
    return others


def _flags(text: str, *, reads_file: bool) -> list[str]:
    if text and not text.lstrip().startswith("-") and reads_file:  # the name of a file of flags
        try:
            text = Path(text.strip()).read_text(encoding="utf-8")
        except (OSError, ValueError):
            return [text]
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _count(text: str | None) -> int:
    is_number = text is not None and text.isdecimal() and len(text) < 10
    return min(int(text), MOST_THREADS) if text is not None and is_number else 0
