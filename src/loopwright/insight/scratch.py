"""A scratch leg: steps in memory that leave no trace in the task, its seeds or the run."""

import contextlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from loopwright.engine.inference import Inference
from loopwright.engine.predictor import Predictor
from loopwright.engine.scorer import Scorer
from loopwright.errors import ConfigurationError, message
from loopwright.fit.leg import Leg
from loopwright.fit.parts import Parts
from loopwright.fit.request import FitRequest
from loopwright.loop.schedule import Every
from loopwright.plans.plan import Plan
from loopwright.sinks.history import History
from loopwright.task import variables
from loopwright.task.task import Task


@contextlib.contextmanager
def scratch_leg(
    parts: Parts,
    request: FitRequest,
    *,
    plan: Plan | None = None,
    until: Every | None = None,
    first_epoch: int = 0,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    recorded: Sequence[Any] | None = None,
) -> Iterator[Leg]:
    """Yield a leg that trains in memory; the task has its state back when the block ends.

    It runs by `plan`, or by the plan of the trainer, and measures and records no plans. Building
    the leg creates what the task creates lazily, at the values that `fit` would give it: that
    stays. Use `leg.looped` and not `leg.told`, which would note what training left. With
    `recorded`, `leg.stepper.recorded` has the numbers of each step, and NaN does not end the leg.
    """
    require_readable_again(request)
    parts.state.start_from_given_weights()
    aside = parts_aside(parts, plan)
    alone = replace(
        request,
        until=until or request.until,
        save_every=None,
        callbacks=callbacks,
        sinks=[],
        history=History(),
        is_observed=False,
        run_dir=None,
    )
    leg = Leg(aside, alone, first_epoch=first_epoch, recorded=recorded)
    with preserved(parts.task, parts.strategy):
        try:
            yield leg
        finally:
            leg.feed = None
            leg.stepper.close()


def parts_aside(parts: Parts, plan: Plan | None = None) -> Parts:
    """Return the parts of a trainer with plans of their own: what they run is not recorded."""
    selector = parts.selector.aside(plan)
    scorer = Scorer(parts.task, parts.strategy, parts.compiled, selector)
    predictor = Predictor(parts.task, parts.strategy)
    inference = Inference(parts.task, parts.team, selector, scorer, predictor)
    return replace(parts, selector=selector, scorer=scorer, inference=inference)


@contextlib.contextmanager
def preserved(task: Task, strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Restore every variable of a task, and the random states of Python and NumPy, on exit."""
    # A read is a copy-on-write view: cheap, and unchanged by what comes.
    kept = [
        (own, own.read_value())
        for variable in variables.named(task).values()
        for own in strategy.experimental_local_results(variable)
    ]
    drawn: tuple[Any, Any] = (random.getstate(), np.random.get_state())
    try:
        yield
    finally:
        for variable, value in kept:
            variable.assign(value)
        random.setstate(drawn[0])
        np.random.set_state(drawn[1])


def require_readable_again(request: FitRequest) -> None:
    """Raise for data that reading would use up."""
    data = (request.data, *request.sets.values())
    if all(each is None or each.can_be_read_again for each in data):
        return
    raise ConfigurationError(
        message(
            "This data can be read only once, and fit needs it.",
            expected="arrays, a tf.data.Dataset, a PyDataset, or a function that makes a generator",
            received="a generator or iterator",
            do="pass the function that makes the generator, or a dataset",
        )
    )
