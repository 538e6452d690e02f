"""Callbacks called for a few steps: what each hook costs; their attributes are put back."""

import contextlib
import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np

from loopwright.events import Finished
from loopwright.fit.leg import Leg
from loopwright.fit.leg_loop import NoCheckpoints
from loopwright.fit.parts import Parts
from loopwright.fit.request import FitRequest
from loopwright.insight.scratch import scratch_leg
from loopwright.loop.schedule import Every, Place

_STEPS = 2


def rehearse_callbacks(parts: Parts, request: FitRequest) -> dict[str, float]:
    """Train a few steps with the callbacks of a request; return the seconds of each hook.

    A hook that is called for every batch counts once.
    """
    callbacks = list(keras.tree.flatten(request.callbacks))
    with kept_attributes(callbacks), _leg(parts, request, callbacks) as leg:
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


@contextlib.contextmanager
def kept_attributes(callbacks: Sequence[Any]) -> Iterator[None]:
    """Give objects back the attributes that they have now; lists, dicts and arrays as copies.

    >>> class Counts:
    ...     seen = []
    >>> one = Counts()
    >>> one.seen = [1]
    >>> with kept_attributes([one]):
    ...     one.seen.append(2)
    ...     one.extra = True
    >>> vars(one)
    {'seen': [1]}
    """
    before = [{name: _copied(value) for name, value in vars(one).items()} for one in callbacks]
    try:
        yield
    finally:
        for one, attributes in zip(callbacks, before, strict=True):
            vars(one).clear()
            vars(one).update(attributes)


def _copied(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.copy()
    if not isinstance(value, list | dict | set):
        return value
    try:
        return copy.deepcopy(value)
    except Exception:  # it holds a model, a file or a lock: the callback's own
        return copy.copy(value)


@contextlib.contextmanager
def _leg(parts: Parts, request: FitRequest, callbacks: Sequence[Any]) -> Iterator[Leg]:
    """Yield a leg of a few steps that ends an epoch, and validates two batches if it can."""
    short = replace(request, validation_steps=min(2, request.validation_steps or 2))
    with scratch_leg(parts, short, until=Every(steps=_STEPS), callbacks=callbacks) as leg:
        yield leg
