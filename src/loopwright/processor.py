"""The processor of this machine, for what is remembered of it."""

import functools
import os
import platform
from pathlib import Path

_VECTORS = ("fma", "avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "sve")


def name() -> str:
    """Return the name of the processor."""
    return _described("model name") or platform.processor() or platform.machine()


@functools.cache
def cpu_flags() -> frozenset[str]:
    """Return the instruction sets of the processor, as Linux names them; none elsewhere."""
    return frozenset(_described("flags", "Features").split())


def _described(*fields: str) -> str:
    """Return what Linux says of the first processor; empty elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(fields)), "")


def vectors() -> str | None:
    """Return the vector instructions that kernels choose by; None if they are not known.

    They change how sums are rounded, and the name may not tell: "AMD EPYC" has AVX-512 or not.
    """
    names = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
    limits = [f"at most {os.environ[name]}" for name in names if os.environ.get(name)]
    return " ".join([*(v for v in _VECTORS if v in cpu_flags()), *limits[:1]]) or None


def cores() -> int | None:
    """Return how many cores this process may use.

    >>> cores() >= 1
    True
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()
