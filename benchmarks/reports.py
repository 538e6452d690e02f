"""Write measurements as Markdown and JSON, with date, machine and versions."""

import contextlib
import datetime
import json
import os
import platform
from argparse import Namespace
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def measured_on(versions: Mapping[str, str] | None = None) -> str:
    """Return date, machine and versions: those of TensorFlow and Keras here, unless given."""
    ours = {"TensorFlow": version("tensorflow"), "Keras": version("keras")}
    named = ", ".join(f"{name} {number}" for name, number in (versions or ours).items())
    return f"{day_and_machine()}, {named}."


def day_and_machine() -> str:
    """Return the date, and what this machine is."""
    machine = f"{os.cpu_count()} cores, {_processor()}, {platform.system()}"
    return f"{datetime.date.today()}, {machine}"


def _processor() -> str:
    """Return the processor's name and its widest vector instructions, as far as they are known."""
    with contextlib.suppress(OSError):
        lines = [line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines()]
        about = {name.strip(): value.strip() for name, _, value in lines}
        flags = about.get("flags", "").split()
        widest = {"avx512f": "AVX-512", "avx2": "AVX2", "avx": "AVX"}
        known = next((word for flag, word in widest.items() if flag in flags), "")
        parts = [platform.machine(), about.get("model name", ""), known]
        return " ".join(filter(None, parts))
    return platform.machine()


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table.

    >>> print(table(["a", "b"], [["1", "2"]]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    lines = [header, *rows]
    text = [f"| {' | '.join(cells)} |" for cells in lines]
    return "\n".join([text[0], "|---" * len(header) + "|", *text[1:]])


def times(value: float | None) -> str:
    """Return a ratio, or a dash if it is unknown."""
    return "-" if value is None else f"{value:.2f}x"


def count(value: float | None) -> str:
    """Return a rate or a count with at least three digits and a thousands separator."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def listed(parts: Sequence[str]) -> str:
    """Return `a, b and c`."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


def directory(arguments: Namespace) -> Path | None:
    """Return the output directory; only complete measurements replace committed results."""
    is_part = bool(getattr(arguments, "only", None))
    return arguments.results or (None if is_part else RESULTS)


def save(into: Path | None, name: str, report: str, data: Any) -> None:
    """Write `name.md` and `name.json`."""
    if into is None:
        return
    into.mkdir(parents=True, exist_ok=True)
    (into / f"{name}.md").write_text(report)
    (into / f"{name}.json").write_text(json.dumps(data, indent=2) + "\n")
