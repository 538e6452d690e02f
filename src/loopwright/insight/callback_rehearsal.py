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
    """Give objects back the attributes that they have now, and lists, dicts and arrays their items.

    >>> class Counts:
    ...     def __init__(self):
    ...         self.seen = [1]
    >>> one = Counts()
    >>> with kept_attributes([one]):
    ...     one.seen.append(2)
    ...     one.extra = True
    >>> vars(one)
    {'seen': [1]}
    """
    before = [dict(vars(one)) for one in callbacks]
    items = [(value, _copied(value)) for each in before for value in each.values()]
    try:
        yield
    finally:
        for value, then in items:
            _put_back(value, then)
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


def _put_back(value: Any, then: Any) -> None:
    """Give a container its items back; it stays the same object, which others may hold."""
    if isinstance(value, np.ndarray):
        value[...] = then
    elif isinstance(value, list):
        value[:] = then
    elif isinstance(value, dict | set):
        value.clear()
        value.update(then)


@contextlib.contextmanager
def _leg(parts: Parts, request: FitRequest, callbacks: Sequence[Any]) -> Iterator[Leg]:
    """Yield a leg of a few steps that ends an epoch, and validates two batches if it can."""
    short = replace(request, validation_steps=min(2, request.validation_steps or 2))
    with scratch_leg(parts, short, until=Every(steps=_STEPS), callbacks=callbacks) as leg:
        yield leg
