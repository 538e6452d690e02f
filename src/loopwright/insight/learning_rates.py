"""Find a learning rate: raise it at each step of a scratch leg, see where the loss falls.

The rate is a `Scheduled` number inside the compiled loop. The optimizers, their rates and their
schedules are as before when the sweep ends, and so is every variable of the task.
"""

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import keras
import numpy as np
import tensorflow as tf

from loopwright.compat import keras_optimizers
from loopwright.engine.stepper import StepNumbers
from loopwright.errors import ConfigurationError
from loopwright.insight.rehearsal_report import wrapped
from loopwright.insight.scratch import request_aside, scratch_session, trained_events
from loopwright.plans.plan import WORDS
from loopwright.sinks import figures
from loopwright.task.optimizers import optimizers, with_rates
from loopwright.task.scheduled import Scheduled
from loopwright.task.task import Task, class_name

if TYPE_CHECKING:
    from loopwright.fit.options import LearningRateOptions
    from loopwright.fit.parts import Parts

_FEWEST_STEPS = 20
_DIVERGED = 3.0
"""How far above its lowest value the loss may rise, in units of what it fell or of its size."""
_SMOOTHED_DECADES = 0.15
"""The standard deviation of the weights that smooth the losses."""
_SIGNIFICANT = 5.0
"""How many standard deviations of the smoothed losses a fall has to be: the lowest of many."""
_ROWS = 12


@final
@dataclass(frozen=True)
class LearningRates:
    """The losses of a sweep of the learning rate, and the rate that it suggests.

    >>> found = LearningRates((1e-3, 1e-2, 1e-1), (1.0, 0.5, 0.8), (1.0, 0.5, 0.8), 0.01, "")
    >>> print(found)
    learning rate      loss
            0.001         1
             0.01       0.5  <- suggestion
              0.1       0.8
    Suggestion: learning_rate=0.01.
    """

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    """Smoothed over neighbouring rates."""
    raw_losses: tuple[float, ...]
    suggestion: float | None
    """Where the loss falls fastest; None if it does not fall."""
    note: str
    """What to know about the suggestion, in words."""
    monitor: str = "loss"
    """The number that was watched."""

    def __str__(self) -> str:
        rows = {int(place) for place in np.linspace(0, len(self.rates) - 1, _ROWS)}
        chosen = -1
        if self.suggestion is not None:
            chosen = int(np.argmin(np.abs(np.subtract(self.rates, self.suggestion))))
        lines = [f"{'learning rate':>13}  {self.monitor[:24]:>8}"]
        for place in sorted(rows | ({chosen} - {-1})):
            mark = "  <- suggestion" if place == chosen else ""
            lines.append(f"{self.rates[place]:>13.3g}  {self.losses[place]:>8.4g}{mark}")
        return "\n".join([*lines, *wrapped(self.sentence)])

    @property
    def sentence(self) -> str:
        """The suggestion and its note."""
        if self.suggestion is None:
            return f"No suggestion. {self.note}".strip()
        return f"Suggestion: learning_rate={self.suggestion:.2g}. {self.note}".strip()

    def plot(self, path: Any = None) -> Any:
        """Draw the losses by learning rate, and return the matplotlib figure; write it to `path`.

        Needs matplotlib: `pip install 'loopwright[plot]'`.
        """
        figure = figures.new("A plot of learning rates")
        axes = figure.subplots()
        axes.plot(self.rates, self.raw_losses, color="0.75", linewidth=1, label="each step")
        axes.plot(self.rates, self.losses, color="C0", linewidth=2, label="smoothed")
        if self.suggestion is not None:
            label = f"suggestion {self.suggestion:.2g}"
            axes.axvline(self.suggestion, color="C3", linestyle="--", label=label)
        axes.set_xscale("log")
        low, high = min(self.losses), max(self.losses[: max(1, len(self.losses) // 2)])
        axes.set_ylim(low - 0.1 * (high - low) - 1e-12, high + 0.6 * (high - low) + 1e-12)
        axes.set_xlabel("learning rate")
        axes.set_ylabel(self.monitor)
        axes.legend()
        return figures.saved(figure, path)


def find_learning_rate(parts: "Parts", options: "LearningRateOptions") -> LearningRates:
    """Train a copy of the state while the rate rises from `start` to `stop`; return the losses."""
    start, stop, steps, monitor = options.start, options.stop, options.steps, options.monitor
    if not 0 < start < stop or steps < _FEWEST_STEPS:
        raise ConfigurationError(
            "The range of learning rates is not valid.",
            expected=f"0 < start < stop, and at least {_FEWEST_STEPS} steps",
            received=f"start={start}, stop={stop}, steps={steps}",
            do="leave them out for a sweep from 1e-7 to 10 in 200 steps",
        )
    task = parts.task
    held, swept = _swept(task, options.optimizer)
    first = int(task.step_counter.read_value())
    rate = Scheduled(
        lambda step: start * (stop / start) ** (tf.cast(step - first, tf.float32) / (steps - 1))
    )
    # The ratios of several rates stay: the first one goes from start to stop.
    current = [float(tf.convert_to_tensor(one.learning_rate)) for one in swept]
    factors = [now / current[0] if current[0] > 0 and now > 0 else 1.0 for now in current]
    watched = _tracker(task, monitor)
    records, values = list[StepNumbers](), list[float]()
    # A trace holds the rate that it was made with: the leg has traces of its own.
    plan = parts.engine.plans.plan if parts.engine.plans.plan.step == "eager" else WORDS["graph"]
    request = request_aside(options.for_steps(steps), parts)
    with contextlib.ExitStack() as stack:
        for optimizer, factor in zip(swept, factors, strict=True):
            moving = _times(rate, factor, task)
            stack.enter_context(keras_optimizers.rate_replaced(optimizer, moving))
        session = stack.enter_context(
            scratch_session(parts, request, plan=plan, recorded=watched, on_steps=records.extend)
        )
        before = (0.0, 0.0)
        for _ in trained_events(session):
            for numbers in records[len(values) :]:
                value, before = _value(numbers, monitor, before, task)
                values.append(value)
            if first_diverged(values) < len(values):
                break
    rates = [start * (stop / start) ** (place / (steps - 1)) for place in range(len(values))]
    notes = _notes(held, swept, current, options.optimizer)
    return suggested(rates, values, monitor, notes)


def first_diverged(losses: Sequence[float]) -> int:
    """Return the place of the first loss that belongs to a divergence; the length if none does.

    >>> first_diverged([2.0] * 10 + [1.0] * 10), first_diverged([2.0] * 10 + [float("nan")])
    (20, 10)
    >>> first_diverged([2.0] * 10 + [1.0] * 10 + [50.0] * 9)
    20
    """
    running = lowest = first = losses[0] if losses else 0.0
    for place, loss in enumerate(losses):
        if not math.isfinite(loss):
            return place
        running += 0.3 * (loss - running)
        # A few steps to settle: the first batches say little about the level of the loss.
        first = max(first, running) if place < _FEWEST_STEPS // 2 else first
        lowest = min(lowest, running)
        if running > lowest + _DIVERGED * max(abs(lowest), first - lowest):
            return place
    return len(losses)


def suggested(
    rates: Sequence[float], raw: Sequence[float], monitor: str, notes: Sequence[str] = ()
) -> LearningRates:
    """Return the sweep with its losses smoothed and the steepest place on the way down."""
    end = first_diverged(raw)
    if end < _FEWEST_STEPS // 2:
        raise ConfigurationError(
            f"The {monitor} is not finite, or diverges, at the lowest rates already.",
            expected="a few steps with a finite loss before it diverges",
            received=f"{monitor} {raw[min(end, len(raw) - 1)]:.4g} at a rate of "
            f"{rates[min(end, len(rates) - 1)]:.2g}, after {end} steps",
            do="lower start=, and check the data: trainer.fit names the batch and the cause",
        )
    has_ended = end < len(raw)
    rates, raw = rates[:end], raw[:end]
    width = _SMOOTHED_DECADES / (math.log10(rates[-1] / rates[0]) / (len(rates) - 1))
    # Means over neighbours, weighted by a bell curve: no lag, unlike a running mean.
    places = np.arange(len(raw))
    apart = (places[:, None] - places[None, :]) / max(1.0, width)
    weights = np.exp(-0.5 * apart**2)
    losses = weights @ np.asarray(raw, float) / weights.sum(axis=1)
    lowest = int(np.argmin(losses))
    # By neighbours, and by their median: neither the fall nor a divergence counts as noise.
    noise = float(np.median(np.abs(np.diff(raw)))) * 1.05
    noise /= math.sqrt(2 * math.sqrt(math.pi) * max(1.0, width))
    fall = float(np.median(losses[: max(3, len(losses) // 10)]) - losses[lowest])
    if lowest < 3 or fall <= _SIGNIFICANT * noise:
        found = None
        about = "The loss does not fall more than it varies from batch to batch, "
        if has_ended:
            about += f"and diverges at {rates[-1]:.2g}: the state is already trained, or the "
            about += "batches are too small to see it. Raise steps= or batch_size=."
        else:
            about += f"between {rates[0]:.2g} and {rates[-1]:.2g}: raise stop=, steps= or "
            about += "batch_size=, or check the step with lw.check_gradients."
    else:
        found = rates[int(np.argmin(np.gradient(losses)[: lowest + 1]))]
        about = f"The {monitor} falls fastest there, and is lowest at {rates[lowest]:.2g}"
        if has_ended:
            about += f"; it diverges from {rates[-1]:.2g} on."
        else:
            about += ". It does not diverge up to the highest rate: a higher stop= shows more."
    return LearningRates(
        rates=tuple(map(float, rates)),
        losses=tuple(map(float, losses)),
        raw_losses=tuple(map(float, raw)),
        suggestion=found,
        note=" ".join([about, *notes]),
        monitor=monitor,
    )


# -- optimizers ----------------------------------------------------------------------------------


def _swept(task: Task, name: str | None) -> tuple[Mapping[str, Any], list[Any]]:
    """Return the optimizers of a task, and those whose rate is changed."""
    held = optimizers(task)
    if not held or (name is not None and name not in held):
        raise ConfigurationError(
            f"{class_name(task)} has no such optimizer."
            if held
            else f"{class_name(task)} has no optimizer.",
            expected=" or ".join(f"optimizer={path!r}" for path in held)
            or "a Keras optimizer as an attribute of the task",
            received="none" if name is None else f"optimizer={name!r}",
            do="use one of these names, or leave optimizer out to scale all rates together"
            if held
            else "keep the optimizer in the task: self.optimizer = keras.optimizers.Adam()",
        )
    chosen = held.values() if name is None else [held[name]]
    return held, [own for one in chosen for own in with_rates(one)]


def _times(rate: Scheduled, factor: float, task: Task) -> Any:
    return lambda: tf.cast(factor, tf.float32) * tf.cast(rate.at(task.step), tf.float32)


def _notes(
    held: Mapping[str, Any], swept: Sequence[Any], current: Sequence[float], name: str | None
) -> list[str]:
    """Return what the sweep did with schedules and with several optimizers."""
    notes: list[str] = []
    given = [keras_optimizers.learning_rate_of(one) for one in swept]
    schedules = [g for g in given if isinstance(g, keras.optimizers.schedules.LearningRateSchedule)]
    if schedules:
        kind = type(schedules[0]).__name__
        notes.append(f"The sweep replaced {kind}: use the suggestion as its highest rate.")
    if len(swept) > 1:
        first = next(iter(held))
        of = f"of {first!r}" if name is None else "of the first optimizer inside"
        notes.append(
            f"The rate is that {of}; {len(swept) - 1} more kept their ratio to it (now "
            f"{', '.join(f'{rate:.2g}' for rate in current)})."
        )
    elif len(held) > 1:
        notes.append(f"Only {name!r} was changed; the others kept their rates.")
    elif not schedules:
        notes.append(f"Now it is {current[0]:.2g}.")
    return notes


# -- the losses of each step ---------------------------------------------------------------------


def _tracker(task: Task, monitor: str) -> list[Any]:
    """Return total and count of the metric that reports this number; empty if none does.

    What a compiled Keras model returns is the mean since the epoch began, and not of the step.
    """
    for metric in task.metrics:
        if metric.name == monitor and isinstance(metric, keras.metrics.Mean):
            return [metric.total.value, metric.count.value]
    return []


def _value(
    numbers: StepNumbers, monitor: str, before: tuple[float, float], task: Task
) -> tuple[float, tuple[float, float]]:
    """Return the number of one step, and what its metric has counted after it."""
    if len(numbers.variables) == 2:
        total, count = (float(value) for value in numbers.variables)
        if count < before[1]:  # a new epoch has reset it
            before = (0.0, 0.0)
        if count > before[1]:
            return (total - before[0]) / (count - before[1]), (total, count)
    if monitor in numbers.outputs:
        return float(numbers.outputs[monitor]), before
    names = sorted({*numbers.outputs, *numbers.logs})
    losses = [name for name in names if "loss" in name] or names
    raise ConfigurationError(
        f"{class_name(task)}.train_step reports no {monitor!r}.",
        expected=" or ".join(f"monitor={name!r}" for name in losses) or "a number",
        received=f"monitor={monitor!r}",
        do="say which number to watch: find_learning_rate(..., monitor=...)",
    )
