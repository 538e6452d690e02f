"""Scores over whole data sets, without a trace left in the training."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from loopwright.data.read_errors import read_errors_explained
from loopwright.data.source import Feed
from loopwright.engine.epoch_metrics import Tally
from loopwright.engine.runner import StepRunner
from loopwright.errors import DataError, message
from loopwright.loop.clock import Stopwatch
from loopwright.loop.meter import Pace
from loopwright.task import variables
from loopwright.task.metric_updates import Updates
from loopwright.task.task import Task


@contextlib.contextmanager
def undisturbed(task: Task, strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Puts back every variable that no optimizer trains: metrics, seeds, statistics."""
    # A read is a copy-on-write view: cheap, and unchanged by what comes.
    kept = [
        (own, own.read_value())
        for variable in variables.untrained_variables(task)
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
    updates: Updates,
    *,
    strategy: tf.distribute.Strategy,
    clock: Callable[[], float],
    watch: Stopwatch,
    interrupted: Callable[[], bool] = lambda: False,
    on_batch: Callable[[int, Mapping[str, Any]], None] | None = None,
) -> dict[str, Any] | None:
    """Runs the test step over all of a feed; means are weighted by examples. None: interrupted.

    `on_batch` is called after every batch, with its number and the scores so far.
    """
    tally = Tally(task, "test_step", updates)
    pace, scored, rest = Pace(), 0, feed
    with contextlib.ExitStack() as undoing:
        while rest is not None:
            with watch.timing("compile"):
                feed, runner = rest, runner_for(rest)
            reader = runner.open(feed)
            if not scored:
                # Only now: a runner makes what the step makes lazily.
                undoing.enter_context(undisturbed(task, strategy))
                tally.start()
            asked, ran = 0, 0
            while ran == asked:
                if interrupted():
                    return None
                began, asked = clock(), pace.at_most_steps if on_batch is None else 1
                with read_errors_explained(feed):
                    run = runner.run(reader, asked, watch)
                ran = run.steps
                pace.add(steps=ran, seconds=clock() - began)
                scored += ran
                if ran:
                    tally.add(run.outputs)
                    if on_batch is not None:
                        on_batch(scored - 1, tally.numbers())
            rest = feed_after(feed, scored)
        return tally.numbers()


def feed_after(feed: Feed, batches: int) -> Feed | None:
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
