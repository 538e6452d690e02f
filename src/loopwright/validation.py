"""Scores and predictions over whole data sets, without a trace left in the training."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from loopwright import adaptations, explanations, runtime, state
from loopwright.data import Data, Feed, nests
from loopwright.errors import DataError, message
from loopwright.meter import Pace
from loopwright.plans import Plan
from loopwright.running import StepRunner
from loopwright.stopwatch import Stopwatch
from loopwright.tally import Tally
from loopwright.task import Task


@contextlib.contextmanager
def undisturbed(task: Task, strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Puts back every variable that no optimizer trains: metrics, seeds, statistics."""
    # A read is a copy-on-write view: cheap, and unchanged by what comes.
    kept = [
        (own, own.read_value())
        for variable in state.untrained_variables(task)
        for own in strategy.experimental_local_results(variable)
    ]
    try:
        yield
    finally:
        for variable, value in kept:
            variable.assign(value)


def score(
    task: Task,
    runner_for: Callable[[Feed], StepRunner],
    feed: Feed,
    *,
    strategy: tf.distribute.Strategy,
    clock: Callable[[], float],
) -> dict[str, Any]:
    """Runs the test step over all of a feed; means are weighted by examples."""
    tally, pace, watch, scored, rest = Tally(task), Pace(), Stopwatch(clock), 0, feed
    with contextlib.ExitStack() as undoing:
        while rest is not None:
            feed, runner = rest, runner_for(rest)
            reader = runner.open(feed)
            if not scored:
                # Only now: a runner makes what the step makes lazily.
                undoing.enter_context(undisturbed(task, strategy))
                tally.start()
            asked, ran = 0, 0
            while ran == asked:
                began, asked = clock(), pace.at_most_steps
                ran, outputs = runner.run(reader, asked, watch)
                pace.add(steps=ran, seconds=clock() - began)
                scored += ran
                if ran:
                    tally.add(outputs)
            rest = _rest(feed, scored)
        return tally.numbers()


def predict(
    task: Task, data: Data, *, steps: int | None, strategy: tf.distribute.Strategy, plan: Plan
) -> Any:
    """The predictions for all of a data set, as NumPy arrays in the nest the step returns."""
    is_graph = plan.step != "eager"
    step = adaptations.autograph(task.predict_step) if is_graph else task.predict_step

    def one_batch(batch: Any) -> Any:
        shares = runtime.split(nests.to_floatx(batch), strategy)
        outputs = strategy.run(step, args=(shares,))
        local = strategy.experimental_local_results
        return tf.nest.map_structure(lambda v: _join(local(v)), outputs)

    outputs: list[Any] = []
    feed: Feed | None = data.one_pass(steps=steps)
    title = f"{type(task).__name__}.predict_step"
    while feed is not None:
        spec = (feed.batch_spec,)
        run = adaptations.compiled(one_batch, input_signature=spec) if is_graph else one_batch
        with undisturbed(task, strategy), explanations.explained(title, feed.batch_spec):
            outputs += [run(batch) for batch in feed.open()]
        feed = _rest(feed, len(outputs))
    return tf.nest.map_structure(lambda *parts: _as_numpy(_join(parts)), *outputs)


def _rest(feed: Feed, batches: int) -> Feed | None:
    """What comes after a feed that ran out: None at the end, more if its shape changed."""
    failure = feed.failure()
    if failure is not None:
        raise failure
    wider = feed.reopened()
    if wider is None and batches == 0:
        raise DataError(
            message(
                "This data gave no batch.",
                expected="at least one batch",
                received="data that ended at once",
                do="a generator can be read only once: pass arrays, a dataset, or an iterable",
            )
        )
    return None if wider is None else wider[0]


def _join(parts: Any) -> Any:
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], tf.SparseTensor):
        return tf.sparse.concat(0, list(parts), expand_nonconcat_dims=True)
    try:
        return tf.concat(list(parts), axis=0)
    except (ValueError, tf.errors.InvalidArgumentError):
        raise DataError(
            message(
                "Predictions of different shapes cannot be joined.",
                expected="predictions that differ in their first axis only",
                received=", ".join(str(tuple(part.shape)) for part in parts[:4]),
                do="pad the data to one shape, or predict batch by batch",
            )
        ) from None


def _as_numpy(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, tf.Tensor) else value
