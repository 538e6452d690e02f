"""Find a batch size: examples per second and memory by size, tried in a child process."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, final

import keras
import tensorflow as tf

from loopwright.compat.out_of_memory import bytes_in_words
from loopwright.data.arrays import Arrays
from loopwright.errors import ConfigurationError, message
from loopwright.fit.options import FitOptions
from loopwright.fit.parts import Parts
from loopwright.fit.settings_trial import Child
from loopwright.insight import figures
from loopwright.plans import launch

_FIRST, _MOST = 8, 2**20
_PAYS = 1.1
"""A larger size pays if it trains this many times as many examples per second."""
_OWN_BATCHES = (keras.utils.PyDataset, Iterator)
_MOST_START_SECONDS = 300.0
_MOST_SECONDS = 300.0


@final
@dataclass(frozen=True)
class BatchSizeOptions:
    """The arguments of `find_batch_size`, as they were passed."""

    x: Any
    y: Any = None
    sample_weight: Any = None
    _: KW_ONLY
    class_weight: Mapping[int, float] | None = None
    sizes: Sequence[int] | None = None
    seconds: float = 1.0

    def for_fit(self, size: int) -> FitOptions:
        """Return the options of a `fit` with batches of this size."""
        is_batched = isinstance(self.x, tf.data.Dataset)
        return FitOptions(
            self.x.rebatch(size) if is_batched else self.x,
            self.y,
            self.sample_weight,
            batch_size=None if is_batched else size,
            class_weight=self.class_weight,
        )


@final
@dataclass(frozen=True)
class BatchSize:
    """How one batch size trains."""

    size: int
    examples_per_second: float
    steps_per_second: float
    memory_bytes: int
    """The peak of the first GPU; without one, of the whole process."""


@final
@dataclass(frozen=True)
class BatchSizes:
    """How fast each batch size trains, and the size that it suggests.

    >>> sizes = [BatchSize(8, 100.0, 12.5, 2**30), BatchSize(16, 190.0, 11.9, 2**30)]
    >>> print(BatchSizes(tuple(sizes), 16, "Larger sizes were not tried."))
    batch size  examples/s  steps/s    memory
             8         100     12.5    1.0 GB
            16         190     11.9    1.0 GB  <- suggestion
    Suggestion: batch_size=16. Larger sizes were not tried.
    """

    sizes: tuple[BatchSize, ...]
    suggestion: int | None
    """The smallest size that trains nearly as fast as the fastest."""
    note: str
    """Why the search ended."""

    def __str__(self) -> str:
        lines = [f"{'batch size':>10}  {'examples/s':>10}  {'steps/s':>7}  {'memory':>8}"]
        for one in self.sizes:
            memory = bytes_in_words(one.memory_bytes)
            steps = (
                f"{one.steps_per_second:,.1f}"
                if one.steps_per_second < 100
                else (f"{one.steps_per_second:,.0f}")
            )
            mark = "  <- suggestion" if one.size == self.suggestion else ""
            lines.append(
                f"{one.size:>10,}  {one.examples_per_second:>10,.0f}  {steps:>7}  {memory:>8}{mark}"
            )
        return "\n".join([*lines, *figures.wrapped(self.sentence)])

    @property
    def sentence(self) -> str:
        """The suggestion, and why the search ended."""
        if self.suggestion is None:
            return f"No suggestion. {self.note}"
        return f"Suggestion: batch_size={self.suggestion}. {self.note}"

    def plot(self, path: Any = None) -> Any:
        """Draw speed and memory by batch size, and return the figure; write it to `path`.

        Needs matplotlib: `pip install 'loopwright[plot]'`.
        """
        figure = figures.new("A plot of batch sizes")
        left, right = figure.subplots(1, 2)
        sizes = [one.size for one in self.sizes]
        left.plot(sizes, [one.examples_per_second for one in self.sizes], marker="o")
        left.set_ylabel("examples per second")
        right.plot(sizes, [one.memory_bytes / 2**30 for one in self.sizes], marker="o", color="C1")
        right.set_ylabel("peak memory (GB)")
        for axes in (left, right):
            axes.set_xscale("log", base=2)
            axes.set_ylim(bottom=0)
            axes.set_xlabel("batch size")
            if self.suggestion is not None:
                label = f"suggestion {self.suggestion}"
                axes.axvline(self.suggestion, color="C3", linestyle="--", label=label)
        if self.suggestion is not None:
            left.legend()
        return figures.saved(figure, path)


def find_batch_size(parts: Parts, options: BatchSizeOptions) -> BatchSizes:
    """Let a child train with one size after the other, until it stops paying or does not fit."""
    _require_possible(parts)
    sizes, seconds, most = options.sizes, options.seconds, _most(options.x)
    tried = list(sizes) if sizes is not None else list(_doubled(most))
    _require_sizes(tried, most)
    environment = launch.unmarked(os.environ)
    child = Child(launch.command(), environment, launch.BATCH_SIZES)
    found: list[BatchSize] = []
    end = ""
    try:
        if child.answer(_MOST_START_SECONDS) is None:
            raise ChildProcessError(f"did not start within {_MOST_START_SECONDS:.0f} s")
        for size in tried:
            child.ask(seconds, size)
            answer = child.answer(_MOST_SECONDS)
            if answer is None:
                end = f"{size:,} took more than {_MOST_SECONDS:.0f} s."
            elif "out_of_memory" in answer:
                end = f"{size:,} does not fit in memory."
            else:
                found.append(_row(size, answer))
                end = "" if sizes is not None else _stops_paying(found)
            if end:
                break
    except ChildProcessError as error:
        end = _died(error, found, tried[len(found)])
    finally:
        child.end()
    return BatchSizes(tuple(found), _suggested(found), end or _all_tried(tried[-1], most))


def _row(size: int, answer: dict[str, Any]) -> BatchSize:
    examples, steps = (answer[name] / answer["seconds"] for name in ("examples", "steps"))
    return BatchSize(size, examples, steps, answer["bytes"])


def _stops_paying(found: Sequence[BatchSize]) -> str:
    """Return why no larger size is tried: the last two have gained little; empty if they have."""
    if len(found) < 4:
        return ""
    before = max(one.examples_per_second for one in found[:-2])
    if max(one.examples_per_second for one in found[-2:]) >= _PAYS * before:
        return ""
    return "Larger sizes train less than 10% more examples per second."


def _suggested(found: Sequence[BatchSize]) -> int | None:
    most = max((one.examples_per_second for one in found), default=0.0)
    return next((one.size for one in found if _PAYS * one.examples_per_second >= most), None)


def _died(error: ChildProcessError, found: Sequence[BatchSize], size: int) -> str:
    """Return why the search ended with its child; raise if nothing was measured."""
    text = str(error)
    if found and "SIGKILL" in text:
        return f"{size:,} does not fit in memory: the system ended the process that tried it."
    if found:
        return f"{size:,} failed: {text}"
    raise ConfigurationError(
        message(
            "No batch size could be tried in a child process.",
            expected="this program, run again, reaches find_batch_size and trains",
            received=text,
            do="call find_batch_size before fit, without arguments that differ between two runs, "
            "and check that the program runs without a terminal",
        )
    ) from error


def _all_tried(last: int, most: int | None) -> str:
    if most is not None and 2 * last > most:
        return f"The data has {most:,} examples: larger sizes were not tried."
    return "Larger sizes were not tried."


def _doubled(most: int | None) -> Iterator[int]:
    size = _FIRST
    while size <= min(_MOST, _MOST if most is None else max(most, _FIRST)):
        yield size
        size *= 2


def _most(x: Any) -> int | None:
    """Return how many examples there are; None if unknown. Raise for data that cannot be split."""
    if isinstance(x, tf.data.Dataset):
        return None
    if isinstance(x, Arrays):
        return len(x)
    leaves: list[Any] = [] if isinstance(x, _OWN_BATCHES) else tf.nest.flatten(x)
    for leaf in leaves[:1]:
        if getattr(leaf, "shape", ()):
            return int(leaf.shape[0])  # without a copy of the data, which the child makes
    raise ConfigurationError(
        message(
            "The batch size of this data cannot be changed.",
            expected="arrays, or a batched tf.data.Dataset",
            received="no data" if x is None else type(x).__name__,
            do="pass arrays, or a tf.data.Dataset; a PyDataset or generator makes its own batches",
        )
    )


def _require_sizes(sizes: Sequence[int], most: int | None) -> None:
    is_valid = bool(sizes) and all(isinstance(size, int) and size > 0 for size in sizes)
    if is_valid and (most is None or min(sizes) <= most):
        return
    raise ConfigurationError(
        message(
            "These batch sizes cannot be tried.",
            expected="positive whole numbers" + ("" if most is None else f" up to {most:,}"),
            received=f"sizes={list(sizes)!r}",
            do="leave sizes out: they double from 8",
        )
    )


def _require_possible(parts: Parts) -> None:
    if parts.team.is_alone and launch.can_run_again():
        return
    raise ConfigurationError(
        message(
            "find_batch_size runs this program again in a child process, and cannot do so here.",
            expected="a script, or the command loopwright, in one process",
            received="several workers"
            if not parts.team.is_alone
            else "a notebook, an interactive session, or a program from standard input",
            do="put the task and its data into a function in a file, and run: "
            "loopwright find batch-size MODULE:FUNCTION",
        )
    )
