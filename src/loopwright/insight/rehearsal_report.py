"""The parts of a rehearsal, and its page: what was found, as values and in words."""

import contextlib
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import final

from loopwright.errors import LoopwrightError, LoopwrightWarning

_WIDTH = 80
_NAME = 12


@dataclass(frozen=True)
class Check:
    """One part of a rehearsal: what was done, or why it was left out."""

    name: str
    found: str
    seconds: float = 0.0
    is_done: bool = True
    """False: left out, and `found` says why."""

    def __str__(self) -> str:
        mark = "ok" if self.is_done else "-"
        seconds = f"{self.seconds:5.1f} s" if self.is_done else ""
        room = _WIDTH - 4 - _NAME - len("  12.3 s")
        first, *more = textwrap.wrap(self.found, room) or [""]
        lines = [f"{mark:4}{self.name:{_NAME}}{first:{room}} {seconds}".rstrip()]
        return "\n".join([*lines, *(f"{'':{4 + _NAME}}{line}" for line in more)])


@dataclass(frozen=True)
class Overfit:
    """How the loss fell on one batch, and why it did not."""

    metric: str
    first: float
    last: float
    steps: int
    falls: bool
    """Whether the loss became small: a tenth of what it was."""
    reasons: tuple[str, ...] = ()
    """What was measured of the usual reasons, if it does not fall."""

    def __str__(self) -> str:
        went = f"{self.metric} {self.first:.4g} -> {self.last:.4g} in {self.steps:,} steps"
        if self.falls:
            return f"{went}: the step can learn one batch"
        is_lower = self.last < 0.8 * self.first
        said = "falls too slowly on one batch" if is_lower else "does not fall on one batch"
        whys = self.reasons or ("none of the usual reasons was measured",)
        return "; ".join([f"{went}: the loss {said}", *whys])


@dataclass(frozen=True)
class Rehearsal:
    """What a rehearsal of `fit` found; as text, a page of 80 columns.

    A number that is None could not be known beforehand.
    """

    checks: tuple[Check, ...]
    """What was rehearsed, in order, and what was left out."""
    trainable: int
    """Parameters that training changes."""
    frozen: int
    """Parameters of layers that are not trainable."""
    statistics: int
    """Numbers that layers keep by themselves, like those of batch normalization."""
    examples: int | None
    """In a batch."""
    steps_per_second: float
    data_wait: float
    """The share of the time in which steps wait for data."""
    total_steps: int | None
    seconds: float | None
    """Of the whole run."""
    length: str
    """What the time of the run consists of, or why it is not known."""
    peak_bytes: int
    """Memory of this process at its peak, with TensorFlow and the data."""
    machine_bytes: int | None
    checkpoint_bytes: int
    """Of one checkpoint."""
    kept: int
    """How many checkpoints are on disk in the end, at most."""
    free_bytes: int | None
    """Free space where the run is written."""
    schedule: str
    """When the run ends, validates and saves."""
    plans: str
    start: str
    """Where the real run begins, resumes, or that it is complete."""
    callbacks: Mapping[str, float] = field(default_factory=dict)
    """Seconds per call of each hook of a callback that was rehearsed."""
    warnings: tuple[str, ...] = ()
    """What the guards warn of."""
    overfit: Overfit | None = None

    @property
    def disk_bytes(self) -> int:
        """The space that the checkpoints of the run take in the end."""
        return self.kept * self.checkpoint_bytes

    def __str__(self) -> str:
        return "\n".join([*map(str, self.checks), "", self.page()])

    def page(self) -> str:
        """Return the page without the list of checks."""
        lines = list[str]()
        for name, text in self._rows():
            first = f"{name:{_NAME}}"
            lines += textwrap.wrap(
                text, _WIDTH, initial_indent=first, subsequent_indent=" " * _NAME
            )
        return "\n".join([*lines, *(textwrap.indent(text, "    ") for text in self.warnings)])

    def _rows(self) -> Iterator[tuple[str, str]]:
        parts = [f"{self.trainable:,} trainable", f"{self.frozen:,} frozen"]
        if self.statistics:
            parts.append(f"{self.statistics:,} statistics")
        yield "parameters", ", ".join(parts)
        yield "speed", self._speed()
        yield "schedule", self.schedule
        time = "" if self.seconds is None else f"{in_time(self.seconds)}: "
        yield "whole run", f"{time}{self.length}"
        machine = "" if self.machine_bytes is None else f" of {in_bytes(self.machine_bytes)}"
        yield "memory", f"{in_bytes(self.peak_bytes)}{machine} at the peak, TensorFlow included"
        yield "disk", self._disk()
        yield "plans", self.plans
        if self.callbacks:
            costs = sorted(self.callbacks.items(), key=lambda item: -item[1])
            yield "callbacks", ", ".join(f"{name} {in_time(s)}" for name, s in costs)
        if self.overfit is not None:
            yield "one batch", str(self.overfit)
        yield "start", self.start
        yield "warnings", f"{len(self.warnings)}:" if self.warnings else "none"

    def _speed(self) -> str:
        words = [f"about {in_rate(self.steps_per_second)} steps/s"]
        if self.examples is not None:
            words.append(f"{in_rate(self.examples * self.steps_per_second)} examples/s")
        if self.data_wait > 0.2:
            words.append(f"waiting for data {self.data_wait:.0%} of the time")
        return ", ".join(words)

    def _disk(self) -> str:
        each = f"{in_bytes(self.checkpoint_bytes)} a checkpoint"
        if not self.kept:
            return f"{each}; no run directory, nothing is saved"
        free = "" if self.free_bytes is None else f" of {in_bytes(self.free_bytes)} free"
        return f"{each}, {self.kept} kept in the end: {in_bytes(self.disk_bytes)}{free}"


def wrapped(text: str, indent: str = "") -> list[str]:
    """Return the lines of a text that fits a terminal.

    >>> [len(line) for line in wrapped("a word " * 20)]
    [78, 60]
    """
    return textwrap.wrap(
        text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def in_bytes(count: float) -> str:
    """Return a number of bytes in words.

    >>> in_bytes(734_003), in_bytes(16_500_000_000)
    ('734 KB', '16.5 GB')
    """
    for unit in ("bytes", "KB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def in_rate(rate: float) -> str:
    """Return a rate with as many digits as can be trusted.

    >>> in_rate(1234.5), in_rate(0.512)
    ('1,230', '0.51')
    """
    return f"{float(f'{rate:.3g}'):,.0f}" if rate >= 100 else f"{rate:.2g}"


def in_time(seconds: float) -> str:
    """Return a duration in words.

    >>> in_time(0.0021), in_time(12.3), in_time(200), in_time(9000)
    ('2.1 ms', '12 s', '3 min 20 s', '2 h 30 min')
    """
    if seconds < 1:
        return f"{1000 * seconds:.2g} ms" if seconds < 0.0995 else f"{1000 * seconds:.0f} ms"
    if seconds < 99.5:
        return f"{seconds:.2g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} days {hours % 24} h"


@final
class Stages:
    """The parts of a rehearsal, in order; an error says in which of them it was raised."""

    def __init__(self, *, is_verbose: bool) -> None:
        self._is_verbose = is_verbose
        self.checks: list[Check] = []

    @contextlib.contextmanager
    def part(self, name: str, *, is_shown: bool = True) -> Iterator[Callable[[str], None]]:
        """Time a part; what it notes is its result."""
        began, found = time.perf_counter(), list[str]()
        try:
            yield found.append
        except Exception as error:
            where = f'The rehearsal failed in the part "{name}".'
            if isinstance(error, LoopwrightError) and error.args:
                error.args = (f"{where}\n{error.args[0]}", *error.args[1:])
            else:
                error.add_note(where)
            raise
        if is_shown:
            self._add(Check(name, "; ".join(found), time.perf_counter() - began))

    def leave_out(self, name: str, why: str) -> None:
        """Note a part that is not rehearsed."""
        self._add(Check(name, why, is_done=False))

    def _add(self, check: Check) -> None:
        self.checks.append(check)
        if self._is_verbose:
            print(check, flush=True)


@contextlib.contextmanager
def collected() -> Iterator[list[str]]:
    """Collect the warnings of Loopwright; give all others at the end, and all after an error."""
    found, caught = list[str](), list[warnings.WarningMessage]()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield found
    except BaseException:
        for each in caught:
            with contextlib.suppress(Warning):  # where warnings are errors, the first error counts
                _give(each)
        raise
    own = [each for each in caught if isinstance(each.message, LoopwrightWarning)]
    found += dict.fromkeys(str(each.message) for each in own)
    for each in caught:
        if each not in own:
            _give(each)


def _give(warning: warnings.WarningMessage) -> None:
    warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
