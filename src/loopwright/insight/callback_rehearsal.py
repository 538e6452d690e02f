"""Copies of callbacks called for a few steps: what each hook costs."""

import contextlib
import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import keras

from loopwright.events import Finished
from loopwright.fit.leg import Leg
from loopwright.fit.leg_loop import NoCheckpoints
from loopwright.fit.parts import Parts
from loopwright.fit.request import FitRequest
from loopwright.insight.scratch import preserved_attributes, scratch_leg
from loopwright.loop.schedule import Every, Place
from loopwright.task import variables
from loopwright.task.task import Task

_STEPS = 2


def rehearse_callbacks(parts: Parts, request: FitRequest) -> dict[str, float]:
    """Train a few steps with copies of a request's callbacks; return the seconds of each hook.

    A hook that is called for every batch counts once.
    """
    own = list(keras.tree.flatten(request.callbacks))
    callbacks = copies(own, parts.task)
    with preserved_attributes(map(vars, own)), _leg(parts, request, callbacks) as leg:
        finished = Finished(leg.stepper.step, 0.0, "failed")
        try:
            for event, _, _ in leg.looped(Place(), {}, NoCheckpoints()):
                if isinstance(event, Finished):
                    finished = event
                else:
                    leg.bridge(event)
        finally:
            leg.bridge(finished)  # gives the model back what callbacks were lent
        found = leg.watch.details("callbacks")
    names = tuple({f"{type(callback).__name__}." for callback in callbacks})
    return {
        hook: seconds / (_STEPS if "_batch_" in hook else 1)
        for hook, seconds in found.items()
        if hook.startswith(names)
    }


def copies(callbacks: Sequence[Any], task: Task) -> list[Any]:
    """Return copies that share variables, models and metrics, and what cannot be copied."""
    # Keras would copy a metric without its values; the variables of all these are restored.
    held = [part.value for part in variables.parts((task, *callbacks))]
    models = [getattr(one, "model", None) for one in callbacks]
    memo = {id(value): value for value in (task, *held, *models)}
    found = [memo.setdefault(id(one), copy.copy(one)) for one in callbacks]
    for one in found:
        for name, value in vars(one).items():
            with contextlib.suppress(Exception):
                vars(one)[name] = copy.deepcopy(value, memo)
    return found


@contextlib.contextmanager
def _leg(parts: Parts, request: FitRequest, callbacks: Sequence[Any]) -> Iterator[Leg]:
    """Yield a leg of a few steps that ends an epoch, and validates two batches if it can."""
    short = replace(request, validation_steps=min(2, request.validation_steps or 2))
    with scratch_leg(parts, short, until=Every(steps=_STEPS), callbacks=callbacks) as leg:
        yield leg
