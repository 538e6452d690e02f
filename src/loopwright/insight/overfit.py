"""Train on one batch until the loss is small, or measure why it does not fall."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from loopwright.checkpoints import tensors
from loopwright.compat import keras_optimizers
from loopwright.data.stream import Stream
from loopwright.errors import NotFiniteError
from loopwright.fit.parts import Parts
from loopwright.fit.request import FitRequest
from loopwright.fit.session import Session
from loopwright.insight.rehearsal_report import Overfit
from loopwright.insight.scratch import preserved, scratch_session
from loopwright.loop.schedule import Every
from loopwright.task import variables
from loopwright.task.optimizers import optimizers
from loopwright.task.task import has_step

if TYPE_CHECKING:
    from loopwright.fit.parts import Parts
    from loopwright.fit.request import FitRequest

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

    metric: str
    steps: Sequence[int]
    losses: Sequence[float]

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


def overfit(parts: "Parts", request: "FitRequest", batch: Any) -> Overfit:
    """Train a copy of the task on one batch; the task itself is as before."""
    repeated = replace(
        request,
        data=Stream(tf.data.Dataset.from_tensors(batch)),
        sets={},
        steps_per_epoch=None,
        validation_steps=None,
        class_weight=None,
        until=Every(steps=_MOST_STEPS),
    )
    with scratch_session(parts, repeated) as session:
        built = [held for held in optimizers(parts.task).values() if held.built]
        own = [v for optimizer in built for v in keras_optimizers.trained_by(optimizer)]
        trained = {id(variables.variables(v)[0]) for v in own}
        named = {n: v for n, v in variables.named(parts.task).items() if id(v) in trained}
        with preserved(parts.task):
            before = tensors.snapshot(named)
            curve = _without_dropout(session, _curve(session, _MOST_STEPS, _MOST_SECONDS))
            reasons = list[str]()
            if not curve.falls:
                reasons += _frozen(before, tensors.snapshot(named))
                reasons += _dead(session, batch)
        if not curve.falls:
            reasons += list(_rates(session, curve)) or _chance(batch, curve.last)
    steps = curve.steps[-1]
    return Overfit(curve.metric, curve.first, curve.last, steps, curve.falls, tuple(reasons))


def _curve(session: Session, most_steps: int, most_seconds: float) -> _Curve:
    """Train until the loss is small, not finite, or it takes too long; ever more steps a call."""
    began, some, done = time.perf_counter(), 1, 0
    steps, losses, metric = list[int](), list[float](), ""
    while done < most_steps and (time.perf_counter() - began < most_seconds or len(losses) < 2):
        session.stepper.start_epoch(session.position)
        try:
            done += session.run(min(some, most_steps - done))
        except NotFiniteError:
            losses.append(math.nan)
            steps.append(done + some)
            break
        numbers = session.report()
        metric = metric or min(numbers, key=lambda name: (name != "loss", "loss" not in name))
        losses.append(float(numbers[metric]))
        steps.append(done)
        if has_fallen(losses[0], losses[-1]):
            break
        some = min(2 * some, 50)
    return _Curve(metric or "loss", steps, losses)


def _without_dropout(session: Session, curve: _Curve) -> _Curve:
    """Return the curve with the loss of the test step in the end, if that has fallen.

    A model with dropout has learned its batch before the losses of its training show it.
    """
    data, is_scored = session.request.data, has_step(session.parts.task, "test_step")
    if curve.falls or data is None or not is_scored or not math.isfinite(curve.last):
        return curve
    score = (session.parts.engine.score(data, 1, session.agreement) or {}).get(curve.metric)
    if score is None or not has_fallen(curve.first, float(score)):
        return curve
    return replace(curve, losses=[*curve.losses[:-1], float(score)])


# --- the usual reasons, measured ---


def _frozen(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    if not before:
        yield "frozen: no optimizer trains a variable"
        return
    changed = {*tensors.differing(before, after)}
    same = [name for name in before if name not in changed]
    if same:
        named = ", ".join(same[:3]) + (", ..." if len(same) > 3 else "")
        yield (
            f"frozen: {len(same)} of {len(before)} trained variables got no gradient, or zeros "
            f"({named})"
        )


def _dead(session: Session, batch: Any) -> Iterator[str]:
    """Run the step once more, and look at what its ReLUs give."""
    names = list[str]()

    def fetch(graph: Any) -> list[Any]:
        found = [op for op in graph.get_operations() if op.type in ("Relu", "Relu6")]
        names.extend(op.name for op in found)
        outputs = [op.outputs[0] for op in found]
        are_zero = [tf.reduce_all(o == 0, list(range(o.shape.rank - 1))) for o in outputs]
        return [tf.reduce_mean(tf.cast(zero, tf.float32)) for zero in are_zero]

    spec = tf.nest.map_structure(tf.type_spec_from_value, batch)
    probe = session.parts.engine.probe("train_step", spec, fetch)
    _, shares = probe(batch)
    for name, share in zip(names, shares, strict=True):
        if float(share) >= _DEAD:
            yield (f"dead ReLUs: {float(share):.0%} of the units of {name} are 0 for every example")


def _rates(session: Session, curve: _Curve) -> Iterator[str]:
    """Try other learning rates from the same state, until one is much better."""
    rates = [
        rate
        for one in optimizers(session.parts.task).values()
        if isinstance(rate := keras_optimizers.learning_rate_of(one), keras.Variable | tf.Variable)
    ]
    grows = not curve.last <= curve.first
    for size, factor in [("large", 0.1)] if grows else [("small", 10.0), ("large", 0.1)]:
        for power in range(1, 1 + _MOST_RATES) if rates else ():
            with preserved(session.parts.task):
                given = float(tf.convert_to_tensor(rates[0]))
                for rate in rates:
                    rate.assign(factor**power * tf.convert_to_tensor(rate))
                tried = _curve(session, _PROBE_STEPS, _PROBE_SECONDS)
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
    """Compare the loss with that of the best constant answer to the labels."""
    if not (isinstance(batch, Sequence) and len(batch) > 1 and isinstance(batch[1], tf.Tensor)):
        return
    labels = batch[1].numpy()
    is_one_hot = labels.ndim == 2 and labels.shape[1] > 1 and np.all(labels.sum(1) == 1)
    if is_one_hot and np.isin(labels, (0, 1)).all():
        labels = labels.argmax(1)
    if np.issubdtype(labels.dtype, np.integer) or np.isin(labels, (0, 1)).all():
        shares = np.unique(labels, return_counts=True)[1] / labels.size
        chance, what = float(-(shares * np.log(shares)).sum()), "the entropy of the labels"
    else:
        chance, what = float(labels.var(axis=0).mean()), "the variance of the labels"
    if chance <= 0 or not math.isfinite(last):
        return
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
