"""A scratch leg: steps in memory that leave no trace in the task, its seeds or the run."""

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from loopwright.checkpoints.snapshot import Snapshot
from loopwright.engine.inference import Inference
from loopwright.engine.predictor import Predictor
from loopwright.engine.scorer import Scorer
from loopwright.errors import ConfigurationError, message
from loopwright.fit.leg import Leg
from loopwright.fit.options import FitOptions
from loopwright.fit.parts import Parts
from loopwright.fit.request import FitRequest, fit_request
from loopwright.loop.schedule import Every
from loopwright.plans.plan import Plan
from loopwright.plans.plan_history import PlanHistory
from loopwright.sinks.history import History
from loopwright.task import variables
from loopwright.task.task import Task


@contextlib.contextmanager
def scratch_leg(
    parts: Parts,
    request: FitRequest,
    *,
    plan: Plan | None = None,
    plans: PlanHistory | None = None,
    until: Every | None = None,
    first_epoch: int = 0,
    snapshot: Snapshot | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    recorded: Sequence[Any] | None = None,
) -> Iterator[Leg]:
    """Yield a leg that trains in memory; the task has its state back when the block ends.

    It runs by `plan`, by recorded `plans`, or by the plan of the trainer; it measures and records
    no plans. Building
    the leg creates what the task creates lazily, at the values that `fit` would give it: that
    stays. Use `leg.looped` and not `leg.told`, which would note what training left. With
    `recorded`, `leg.stepper.recorded` has the numbers of each step, and NaN does not end the leg.
    """
    require_readable_again(request)
    aside = parts_aside(parts, plan)
    if plans is not None and plans.changes:
        aside.selector.follow(plans)
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
    leg = Leg(aside, alone, first_epoch=first_epoch, snapshot=snapshot, recorded=recorded)
    leg.stepper.tells_data = False
    parts.state.start_from_given_weights()  # now that what is built lazily is there
    with preserved(parts.task, parts.strategy):
        try:
            yield leg
        finally:
            leg.feed = None
            leg.stepper.close()


def request_aside(options: FitOptions, parts: Parts, *, saves: bool = False) -> FitRequest:
    """Return what `fit` would be asked for, with no sink to tell."""
    return fit_request(
        options,
        parts.task,
        parts.team,
        saves=saves,
        sinks=[],
        is_observed=False,
        history=History(),
    )


def parts_aside(parts: Parts, plan: Plan | PlanHistory | None = None) -> Parts:
    """Return the parts of a trainer with plans of their own: what they run is not recorded."""
    selector = parts.selector.aside(plan)
    scorer = Scorer(parts.task, parts.strategy, parts.compiled, selector)
    predictor = Predictor(parts.task, parts.strategy)
    inference = Inference(parts.task, parts.team, selector, scorer, predictor)
    return replace(parts, selector=selector, scorer=scorer, inference=inference)


@contextlib.contextmanager
def preserved(task: Task, strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Restore every variable of a task, and the random states of Python and NumPy, on exit."""
    put_back = held_state(task, strategy)
    drawn: tuple[Any, Any] = (random.getstate(), np.random.get_state())
    try:
        yield
    finally:
        put_back()
        random.setstate(drawn[0])
        np.random.set_state(drawn[1])


def held_state(task: Task, strategy: tf.distribute.Strategy) -> Callable[[], None]:
    """Hold the value of every variable of a task; return a function that assigns them again."""
    # A read is a copy-on-write view: cheap, and unchanged by what comes.
    kept = [
        (own, own.read_value())
        for variable in variables.named(task).values()
        for own in strategy.experimental_local_results(variable)
    ]

    def put_back() -> None:
        for variable, value in kept:
            variable.assign(value)

    return put_back


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
