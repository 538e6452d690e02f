"""Scorer: the test step over whole data sets, by a plan that suits the training."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, final

import tensorflow as tf

from loopwright.data.read_errors import read_errors_explained
from loopwright.data.source import Data, Feed
from loopwright.distribute.team import Agreement
from loopwright.engine.compiled_steps import CompiledSteps
from loopwright.engine.epoch_metrics import EpochMetrics
from loopwright.engine.plan_selector import PlanSelector
from loopwright.engine.runner import StepRunner
from loopwright.errors import DataError, message
from loopwright.loop.clock import Pace, Stopwatch
from loopwright.plans.plan import nearest, settled
from loopwright.task import variables
from loopwright.task.metric_updates import Updates
from loopwright.task.task import Task


@contextlib.contextmanager
def undisturbed(task: Task, strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Restore on exit what no optimizer trains: metrics, statistics, seeds, also global ones."""
    # A read is a copy-on-write view: cheap, and unchanged by what comes.
    kept = [
        (own, own.read_value())
        for variable in [*variables.untrained_variables(task), *variables.global_seeds()]
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
    """Run the test step over a whole feed; means are weighted by examples. None: interrupted.

    `on_batch` is called after every batch, with its number and the scores so far.
    """
    tally = EpochMetrics(task, "test_step", updates)
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
    """Return the feed after one that ran out: None at the end, another if its shape changed."""
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


@final
class Scorer:
    """Scores a task, for `evaluate` and for validation during `fit`."""

    def __init__(
        self,
        task: Task,
        strategy: tf.distribute.Strategy,
        compiled: CompiledSteps,
        selector: PlanSelector,
    ) -> None:
        self._task = task
        self._strategy = strategy
        self._compiled = compiled
        self._selector = selector

    def score(
        self,
        data: Data,
        steps: int | None,
        agreement: Agreement,
        on_batch: Callable[[int, Mapping[str, Any]], None] | None = None,
        watch: Stopwatch | None = None,
    ) -> dict[str, Any] | None:
        """Return the scores on a data set; None if all workers agreed to stop."""
        return score(
            self._task,
            self._runner,
            data.one_pass(steps=steps),
            self._compiled.updates,
            strategy=self._strategy,
            clock=agreement.now,
            watch=watch or Stopwatch(time.perf_counter),
            interrupted=agreement.interrupted,
            on_batch=on_batch,
        )

    def build(self, data: Data, steps: int | None) -> None:
        """Trace the test step for this data, so that what is wrong with it shows now."""
        self._runner(data.one_pass(steps=steps))

    def _runner(self, feed: Feed) -> StepRunner:
        # Any data can be scored, whatever plan the training runs by.
        terms = self._compiled.terms(feed)
        plan = self._selector.plan_in_force  # a trial is no reason to compile a test step
        plan = settled(nearest(replace(plan, feed=None), terms), terms)
        return self._compiled.runner("test_step", feed, plan)
