"""Train on one batch until the loss is small, or measure why it does not fall."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from loopwright.checkpoints import tensors
from loopwright.compat import keras_optimizers
from loopwright.data.source import Epochs
from loopwright.data.stream import Stream
from loopwright.errors import ConfigurationError, NotFiniteError, message
from loopwright.fit.leg import Leg
from loopwright.fit.parts import Parts
from loopwright.fit.request import FitRequest
from loopwright.insight.rehearsal_report import Overfit
from loopwright.insight.rehearsed_leg import differing
from loopwright.insight.scratch import preserved, scratch_leg
from loopwright.loop.schedule import Every
from loopwright.task import variables
from loopwright.task.optimizers import optimizers
from loopwright.task.task import has_step

_MOST_STEPS, _MOST_SECONDS = 1000, 8.0
_PROBE_STEPS, _PROBE_SECONDS = 100, 2.0
_FALL = 0.9
"""The share of the first loss by which it has to fall."""
_MOST_RATES = 8
"""How often the learning rate is raised, or lowered, to ten times as much."""
_DEAD = 0.9
"""The share of units that are zero for every example, above which a layer counts as dead."""


@dataclass(frozen=True)
class _Curve:
    """The losses of one training on one batch."""

    steps: tuple[int, ...]
    losses: tuple[float, ...]

    @property
    def first(self) -> float:
        return self.losses[0]

    @property
    def last(self) -> float:
        return self.losses[-1]

    @property
    def falls(self) -> bool:
        return has_fallen(self.first, self.last)

    def at(self, step: int) -> float:
        """Return the loss at the last point up to this step."""
        return [loss for s, loss in zip(self.steps, self.losses, strict=True) if s <= step][-1]


def has_fallen(first: float, last: float, share: float = _FALL) -> bool:
    """Return whether a loss has fallen by this share of its first value.

    >>> has_fallen(2.3, 0.2), has_fallen(2.3, 1.9), has_fallen(2.3, math.nan)
    (True, False, False)
    """
    return last < first - share * abs(first)


def overfit(
    parts: Parts, request: FitRequest, clock: Callable[[], float] = time.perf_counter
) -> Overfit:
    """Train a copy of the task on its first batch; the task itself is as before."""
    batch = _first_batch(request, parts.seed)
    one = replace(
        request,
        data=Stream(tf.data.Dataset.from_tensors(batch)),
        sets={},
        steps_per_epoch=None,
        validation_steps=None,
        class_weight=None,
    )
    with scratch_leg(parts, one, until=Every(steps=_MOST_STEPS)) as leg:
        trained = {id(variables.variables(v)[0]) for v in _trained(leg)}
        named = {n: v for n, v in variables.named(parts.task).items() if id(v) in trained}
        with preserved(parts.task):
            before = tensors.snapshot(named)
            metric, curve = _curve(leg, _MOST_STEPS, _MOST_SECONDS, clock)
            curve = _without_dropout(leg, one, metric, curve)
            reasons = list[str]()
            if not curve.falls:
                reasons += _frozen(before, tensors.snapshot(named))
                reasons += _dead(leg, batch)
        if not curve.falls:
            reasons += list(_rates(leg, curve, clock)) or _chance(batch, curve.last)
    return Overfit(metric, curve.first, curve.last, curve.steps[-1], curve.falls, tuple(reasons))


def _first_batch(request: FitRequest, seed: int) -> Any:
    if request.data is None:
        raise ConfigurationError(
            message(
                "A step without data has no batch to train on.",
                expected="data, with overfit",
                received='overfit="1 batch" and no data',
                do="leave overfit out",
            )
        )
    feed = request.data.training(
        Epochs(
            seed=seed,
            shuffle=request.shuffle,
            steps_per_epoch=request.steps_per_epoch,
            may_be_endless=True,  # only its first batch is read
        )
    )
    first = next(iter(feed.dataset()))
    return first.get_value() if feed.end == "marked" else first


def _trained(leg: Leg) -> list[Any]:
    """Return the variables that the optimizers of a task were built for."""
    held = optimizers(leg.parts.task).values()
    return [v for one in held if one.built for v in keras_optimizers.trained_by(one)]


def _curve(
    leg: Leg, most_steps: int, most_seconds: float, clock: Callable[[], float]
) -> tuple[str, _Curve]:
    """Train until the loss is small, not finite, or it takes too long; ever more steps a call."""
    began, some, done = clock(), 1, 0
    steps, losses, metric = list[int](), list[float](), ""
    while done < most_steps and (clock() - began < most_seconds or len(losses) < 2):
        leg.stepper.start_epoch()
        try:
            done += leg.stepper.run_steps(min(some, most_steps - done))
        except NotFiniteError:
            losses.append(math.nan)
            steps.append(done + some)
            break
        numbers = leg.stepper.report()
        metric = metric or _loss_of(numbers)
        losses.append(float(numbers[metric]))
        steps.append(done)
        if has_fallen(losses[0], losses[-1]):
            break
        some = min(2 * some, 50)
    return metric or "loss", _Curve(tuple(steps), tuple(losses))


def _without_dropout(leg: Leg, one: FitRequest, metric: str, curve: _Curve) -> _Curve:
    """Return the curve with the loss of the test step in the end, if that has fallen.

    A model with dropout has learned its batch before the losses of its training show it.
    """
    parts = leg.parts
    is_scored = has_step(parts.task, "test_step")
    if curve.falls or one.data is None or not is_scored or not math.isfinite(curve.last):
        return curve
    scores = parts.scorer.score(one.data, 1, leg.agreement) or {}
    if metric not in scores or not has_fallen(curve.first, float(scores[metric])):
        return curve
    return _Curve(curve.steps, (*curve.losses[:-1], float(scores[metric])))


def _loss_of(numbers: Mapping[str, Any]) -> str:
    losses = [name for name in numbers if "loss" in name]
    return "loss" if "loss" in numbers else next(iter([*losses, *numbers]))


# --- the usual reasons, measured ---


def _frozen(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    if not before:
        yield "frozen: no optimizer trains a variable"
        return
    changed = {*differing(before, after)}
    same = [name for name in before if name not in changed]
    if same:
        named = ", ".join(same[:3]) + (", ..." if len(same) > 3 else "")
        yield (
            f"frozen: {len(same)} of {len(before)} trained variables got no gradient, or zeros "
            f"({named})"
        )


def _dead(leg: Leg, batch: Any) -> Iterator[str]:
    """Run the step once more, and look at what its ReLUs give."""
    names = list[str]()

    def fetch(graph: Any) -> list[Any]:
        found = [op for op in graph.get_operations() if op.type in ("Relu", "Relu6")]
        names.extend(op.name for op in found)
        return [_dead_share(op.outputs[0]) for op in found]

    spec = tf.nest.map_structure(tf.type_spec_from_value, batch)
    probe = leg.parts.compiled.probe("train_step", spec, fetch)
    _, shares = probe(batch)
    for name, share in zip(names, shares, strict=True):
        if float(share) >= _DEAD:
            yield (f"dead ReLUs: {float(share):.0%} of the units of {name} are 0 for every example")


def _dead_share(output: Any) -> Any:
    """Return the share of units that are zero for all examples."""
    axes = list(range(output.shape.rank - 1))
    return tf.reduce_mean(tf.cast(tf.reduce_all(output == 0, axes), tf.float32))


def _rates(leg: Leg, curve: _Curve, clock: Callable[[], float]) -> Iterator[str]:
    """Try other learning rates from the same state, until one is much better."""
    rates = [
        rate
        for one in optimizers(leg.parts.task).values()
        if isinstance(rate := keras_optimizers.learning_rate_of(one), keras.Variable | tf.Variable)
    ]
    grows = not curve.last <= curve.first
    for size, factor in [("large", 0.1)] if grows else [("small", 10.0), ("large", 0.1)]:
        for power in range(1, 1 + _MOST_RATES) if rates else ():
            with preserved(leg.parts.task):
                given = float(tf.convert_to_tensor(rates[0]))
                for rate in rates:
                    rate.assign(factor**power * tf.convert_to_tensor(rate))
                _, tried = _curve(leg, _PROBE_STEPS, _PROBE_SECONDS, clock)
            as_given = curve.at(tried.steps[-1])
            if has_fallen(tried.first, tried.last, 0.5) and not as_given < 1.5 * tried.last:
                yield (
                    f"learning rate too {size}: with {factor**power * given:.2g} instead of "
                    f"{given:.2g} the loss is {tried.last:.3g} after {tried.steps[-1]} steps, not "
                    f"{as_given:.3g}"
                )
                return
            if factor > 1 and not tried.last <= 2 * tried.first:
                break  # larger ones are worse


def _chance(batch: Any, last: float) -> Iterator[str]:
    found = _constant_answer(batch)
    if found is None or not math.isfinite(last):
        return
    chance, what = found
    if abs(last - chance) <= 0.1 * chance:
        yield (
            f"no better than a constant answer, which has {chance:.3g} ({what}): the outputs do "
            "not depend on the inputs"
        )
    elif last > chance:
        yield (
            f"wrong loss: {last:.3g} is above {chance:.3g}, which a constant answer has ({what}); "
            "check from_logits, the last activation, and the labels"
        )


def _constant_answer(batch: Any) -> tuple[float, str] | None:
    """Return the loss of the best constant answer to labels, and what it is; None if unknown."""
    if not (isinstance(batch, Sequence) and len(batch) > 1 and isinstance(batch[1], tf.Tensor)):
        return None
    labels = batch[1].numpy()
    is_one_hot = labels.ndim == 2 and labels.shape[1] > 1 and np.all(labels.sum(1) == 1)
    if is_one_hot and np.isin(labels, (0, 1)).all():
        labels = labels.argmax(1)
    if np.issubdtype(labels.dtype, np.integer) or np.isin(labels, (0, 1)).all():
        shares = np.unique(labels, return_counts=True)[1] / labels.size
        chance, what = float(-(shares * np.log(shares)).sum()), "the entropy of the labels"
    else:
        chance, what = float(labels.var(axis=0).mean()), "the variance of the labels"
    return (chance, what) if chance > 0 else None
