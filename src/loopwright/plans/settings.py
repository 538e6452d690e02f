"""Process settings: the part of a plan that TensorFlow reads once, and then never again.

A plan is what can change inside a process. oneDNN, XLA's flags and the sizes of thread pools
cannot: they are environment variables, read when TensorFlow is imported or first used. They change
the bits of a run, so `plan.json` records which settings ran which steps.
"""

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

ONEDNN = "TF_ENABLE_ONEDNN_OPTS"
"""Whether TensorFlow runs convolutions and matrix products by oneDNN; read at its import."""
XLA_FLAGS = ("XLA_FLAGS", "TF_XLA_FLAGS")
"""Flags of XLA, and of TensorFlow about XLA; read when XLA is first used."""
THREADS = {
    "intra_op_threads": "TF_NUM_INTRAOP_THREADS",
    "inter_op_threads": "TF_NUM_INTEROP_THREADS",
}

# They say where files are written and what is logged, not what is computed.
_WITHOUT_MEANING = ("dump", "persistent_cache", "log", "debug_options_file")

_MOST_THREADS = 1024
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

    def changed_from(self, other: "Settings") -> set[str]:
        """Return the variables that must change for a process that runs by `other`.

        >>> Settings(intra_op_threads=1).changed_from(Settings())
        {'TF_NUM_INTRAOP_THREADS'}
        """
        own, others = self.variables(), other.variables()
        return {name for name in {*own, *others} if own.get(name) != others.get(name)}

    def content(self) -> dict[str, Any]:
        """Return the settings as JSON values."""
        threads = {name: getattr(self, name) for name in THREADS if getattr(self, name)}
        return {"onednn": self.onednn, "xla_flags": list(self.xla_flags), **threads}


def parsed(content: Mapping[str, Any]) -> Settings:
    """Return the settings in the values of `Settings.content`; raise ValueError for others.

    >>> parsed({"onednn": "yes"})
    Traceback (most recent call last):
    ValueError: the process setting onednn is 'yes', not true or false
    """
    known = ("onednn", "xla_flags", *THREADS)
    unknown = [name for name in content if name not in known]
    if unknown:
        raise ValueError(f"unknown process setting {unknown[0]!r}; known are {', '.join(known)}")
    onednn, flags = content.get("onednn"), content.get("xla_flags", [])
    if not isinstance(onednn, bool):
        raise ValueError(f"the process setting onednn is {onednn!r}, not true or false")
    if not isinstance(flags, list) or not all(isinstance(flag, str) for flag in flags):
        raise ValueError(f"the process setting xla_flags is {flags!r}, not a list of flags")
    threads = {name: content.get(name, 0) for name in THREADS}
    for name, count in threads.items():
        if type(count) is not int or not 0 <= count <= _MOST_THREADS:
            text = f"{count!r:.20}, not a number of threads up to {_MOST_THREADS}"
            raise ValueError(f"the process setting {name} is {text}")
    return Settings(onednn, tuple(flags), **threads)


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
    threads = {name: _count(environment.get(variable)) for name, variable in THREADS.items()}
    return Settings(onednn, tuple(sorted(_meaningful(flags))), **threads)


def onednn_asked(environment: Mapping[str, str]) -> bool | None:
    """Return what the variable asks of TensorFlow; None if it is unset or TensorFlow ignores it.

    >>> onednn_asked({"TF_ENABLE_ONEDNN_OPTS": "1"}), onednn_asked({})
    (True, None)
    """
    words = {"1": True, "true": True, "0": False, "false": False}
    return words.get(environment.get(ONEDNN, "").lower())


def set_in(environment: Mapping[str, str]) -> set[str]:
    """Return the variables of `Settings.variables` that have an effect in this environment.

    >>> set_in({"TF_NUM_INTRAOP_THREADS": "2", "TF_ENABLE_ONEDNN_OPTS": "maybe"})
    {'TF_NUM_INTRAOP_THREADS'}
    """
    threads = {variable for variable in THREADS.values() if _count(environment.get(variable))}
    return threads if onednn_asked(environment) is None else {ONEDNN, *threads}


_BY_DEFAULT = ("avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_int8", "amx_bf16")


def onednn_by_default(cpu_flags: Iterable[str]) -> bool:
    """Return whether TensorFlow switches oneDNN on by itself on such a processor.

    >>> onednn_by_default(["avx2", "fma"]), onednn_by_default(["avx512f", "avx512_vnni"])
    (False, True)
    """
    return any(flag in _BY_DEFAULT for flag in cpu_flags)


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


def _meaningful(flags: Iterable[str]) -> set[str]:
    return {
        flag
        for flag in flags
        if not any(word in flag.partition("=")[0] for word in _WITHOUT_MEANING)
    }


def _count(text: str | None) -> int:
    is_number = text is not None and text.isdecimal() and len(text) < 10
    return min(int(text), _MOST_THREADS) if text is not None and is_number else 0
