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
    runner: StepRunner,
    feed: Feed,
    *,
    strategy: tf.distribute.Strategy,
    clock: Callable[[], float],
) -> dict[str, Any]:
    """Runs the test step over all of a feed; means are weighted by examples."""
    tally, pace, scored = Tally(task), Pace(), 0
    iterator = iter(feed.dataset)
    with undisturbed(task, strategy):
        tally.start()
        while True:
            began, asked = clock(), pace.at_most_steps
            ran, outputs = runner.run(iterator, feed.end, asked)
            pace.add(steps=ran, seconds=clock() - began)
            scored += ran
            if ran:
                tally.add(outputs)
            if ran < asked:
                break
        _raise_if_cut_short(feed, scored)
        return tally.numbers()


def predict(
    task: Task, data: Data, *, steps: int | None, strategy: tf.distribute.Strategy, plan: Plan
) -> Any:
    """The predictions for all of a data set, as NumPy arrays in the nest the step returns."""
    feed = data.one_pass(steps=steps)

    is_graph = plan.step == "graph"
    step = adaptations.autograph(task.predict_step) if is_graph else task.predict_step

    def one_batch(batch: Any) -> Any:
        shares = runtime.split(nests.to_floatx(batch), strategy)
        outputs = strategy.run(step, args=(shares,))
        local = strategy.experimental_local_results
        return tf.nest.map_structure(lambda v: _join(local(v)), outputs)

    run = one_batch
    if is_graph:
        run = adaptations.compiled(one_batch, input_signature=(feed.batch_spec,))
    with undisturbed(task, strategy), explanations.explained(_name(task), feed.batch_spec):
        outputs = [run(batch) for batch in feed.dataset]
    _raise_if_cut_short(feed, len(outputs))
    return tf.nest.map_structure(lambda *parts: _as_numpy(_join(parts)), *outputs)


def _name(task: Task) -> str:
    return f"{type(task).__name__}.predict_step"


def _raise_if_cut_short(feed: Feed, batches: int) -> None:
    failure = feed.failure()
    if failure is not None:
        raise failure
    if feed.reopened() is not None or batches == 0:
        raise DataError(
            message(
                "This data gave no batch."
                if batches == 0
                else f"Batch {batches + 1} has another shape than the ones before.",
                expected="at least one batch, and all of the same shape but for their length",
                received="data that ended at once" if batches == 0 else "a batch that does not fit",
                do="a generator can be read only once: pass arrays, a dataset, or an iterable"
                if batches == 0
                else "pad the batches to one shape",
            )
        )


def _join(parts: Any) -> Any:
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], tf.SparseTensor):
        return tf.sparse.concat(0, list(parts), expand_nonconcat_dims=True)
    return tf.concat(list(parts), axis=0)


def _as_numpy(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, tf.Tensor) else value
