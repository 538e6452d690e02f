"""A scratch session: steps in memory that leave no trace in the task, its seeds or the run."""

import contextlib
import functools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from loopwright import History
from loopwright.compat import keras_internals, tensorflow_internals
from loopwright.errors import ConfigurationError
from loopwright.events import Trained
from loopwright.fit.options import FitOptions
from loopwright.fit.parts import Parts
from loopwright.fit.request import FitRequest, Start, fit_request
from loopwright.fit.session import Session
from loopwright.plans.plan import Plan
from loopwright.plans.record import PlanHistory
from loopwright.task import state, variables
from loopwright.task.task import Task

_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)
_LONG = 1000


@contextlib.contextmanager
def scratch_session(
    parts: Parts,
    request: FitRequest,
    *,
    plan: Plan | PlanHistory | None = None,
    start: Start | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    recorded: Sequence[Any] | None = None,
    on_steps: Callable[[Sequence[Any]], None] = lambda numbers: None,
) -> Iterator[Session]:
    """Yield a session that trains in memory; the task has its state back when the block ends.

    It runs by `plan`, or by the plan of the trainer; it measures and records no plans. Building
    the session creates what the task creates lazily, at the values that `fit` would give it: that
    stays. Use `trained_events` and not `session.events`, which would note what training left. With
    `recorded`, `on_steps` gets the numbers of each step, and NaN does not end it.
    """
    require_readable_again(request)
    aside = _parts_aside(parts, plan, ignores_nan=recorded is not None)
    alone = replace(request, save_every=None, callbacks=callbacks)
    drawn, made = hold_draws(), _made_lazily(parts.task)
    numpy_state = np.random.get_state()
    data = [each for each in (request.data, *request.sets.values()) if each is not None]
    # Opening the data reads a batch.
    with preserved_attributes(each.attributes() for each in data):
        session = Session(aside, alone, start or Start(), recorded=recorded, on_steps=on_steps)
        session.stepper.leave_data_alone()
        if start is None or start.snapshot is None:
            parts.state.start_from_given_weights()  # now that what is built lazily is there
        if _made_lazily(parts.task) != made:
            # New weights and seeds stay, and so does what was drawn for them: not by NumPy.
            np.random.set_state(numpy_state)
            drawn = hold_draws()
        with preserved(parts.task, *_used(session), draws=drawn):
            try:
                yield session
            finally:
                session.close()


def trained_events(session: Session) -> Iterator[Trained]:
    """Train a session to its end, and yield how many steps each call ran."""
    return (event for event, _, _ in session.loop() if isinstance(event, Trained))


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


def _parts_aside(parts: Parts, plan: Plan | PlanHistory | None, *, ignores_nan: bool) -> Parts:
    """Return the parts of a trainer with plans and traces of their own.

    What they run is not recorded, and the stateful operations of the real run are not used.
    """
    return replace(parts, engine=parts.engine.aside(plan, ignores_nan=ignores_nan))


def peek(session: Session) -> Any:
    """Return the batch that comes next, None if there is none; then `apply` or `seek`."""
    if session.stepper.reader is None:
        session.stepper.start_epoch(session.position)
    following = session.stepper.next_step(session.position)
    return None if following is None else following.batch


@contextlib.contextmanager
def preserved(
    task: Task, *used: tf.Variable, draws: Callable[[], None] | None = None
) -> Iterator[None]:
    """Restore on exit every variable of a task, others that it uses, and all global seeds."""
    held = [*variables.named(task).values(), *used, *variables.global_seeds()]
    with contextlib.ExitStack() as undo:
        undo.callback(draws or hold_draws())
        undo.enter_context(state.preserved(held))
        yield


@contextlib.contextmanager
def preserved_attributes(owners: Iterable[dict[str, Any]]) -> Iterator[None]:
    """Restore on exit the attributes of objects, and the variables and generators in them.

    A long list is not searched: it has examples, or the names of their files.
    """
    with contextlib.ExitStack() as undo:
        for owner in owners:
            undo.callback(owner.update, dict(owner))
            undo.callback(owner.clear)  # called before the line above
            short = [
                v
                for v in owner.values()
                if not isinstance(v, list | tuple | dict) or len(v) <= _LONG
            ]
            for part in variables.parts(short, *_GENERATORS):
                undo.callback(_hold(part.value))
        yield


def hold_draws() -> Callable[[], None]:
    """Hold the random states of Python, NumPy and TensorFlow; return what restores them."""
    with contextlib.ExitStack() as undo:
        undo.callback(random.setstate, random.getstate())
        undo.callback(np.random.set_state, np.random.get_state())
        undo.callback(tensorflow_internals.hold_operation_seeds())
        return undo.pop_all().close


def _hold(part: Any) -> Callable[[], None]:
    """Hold the state of a generator, or the values of other parts; return what restores them."""
    match part:
        case np.random.Generator():
            bits = part.bit_generator
            return functools.partial(setattr, bits, "state", bits.state)
        case np.random.RandomState():
            return functools.partial(part.set_state, part.get_state())
        case random.Random():
            return functools.partial(part.setstate, part.getstate())
        case _:
            return functools.partial(state.apply, state.capture(variables.variables(part)))


def _used(session: Session) -> list[tf.Variable]:
    """Return the variables that the steps use, held by the task or not: Keras' seed."""
    engine = session.parts.engine
    built = [*engine.traces("train_step"), *engine.traces("test_step")]
    return [v for each in built for v in each.captured if isinstance(v, tf.Variable)]


def _made_lazily(task: Task) -> tuple[int, bool]:
    weights = sum(len(layer.variables) for layer in variables.of_kind(keras.Layer, task))
    return weights, keras_internals.global_seed() is not None


def require_readable_again(request: FitRequest) -> None:
    """Raise for data that reading would use up."""
    data = (request.data, *request.sets.values())
    if all(each is None or each.can_be_read_again for each in data):
        return
    raise ConfigurationError(
        "This data can be read only once, and fit needs it.",
        expected="arrays, a tf.data.Dataset, a PyDataset, or an object with __iter__",
        received="a generator or iterator",
        do="pass tf.data.Dataset.from_generator(function, output_signature=...), or an object "
        "whose __iter__ calls the function that makes the generator",
    )
