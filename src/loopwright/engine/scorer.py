"""Scorer: the test step over whole data sets, by a plan that suits the training."""

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, final

from loopwright.data.read_errors import read_errors_explained
from loopwright.data.source import Data, Feed
from loopwright.distribute.team import Agreement
from loopwright.engine.compiled_loop import CompiledLoop
from loopwright.engine.compiled_steps import CompiledSteps
from loopwright.engine.epoch_metrics import EpochMetrics
from loopwright.engine.plan_selector import PlanSelector
from loopwright.engine.state import undisturbed
from loopwright.errors import DataError
from loopwright.loop.clock import Pace, Stopwatch
from loopwright.plans.plan import nearest, settled
from loopwright.task.task import Task


@final
class Scorer:
    """Scores a task, for `evaluate` and for validation during `fit`."""

    def __init__(self, task: Task, compiled: CompiledSteps, selector: PlanSelector) -> None:
        self._task, self._compiled, self._selector = task, compiled, selector

    def score(
        self,
        data: Data,
        steps: int | None,
        agreement: Agreement,
        on_batch: Callable[[int, Mapping[str, Any]], None] | None = None,
        watch: Stopwatch | None = None,
    ) -> dict[str, Any] | None:
        """Return the scores on a data set, by examples; None if all workers agreed to stop.

        `on_batch` is called after every batch, with its number and the scores so far.
        """
        watch = watch or Stopwatch(time.perf_counter)
        tally = EpochMetrics(self._task, "test_step", self._compiled.updates)
        pace, scored, rest = Pace(), 0, data.one_pass(steps=steps)
        with contextlib.ExitStack() as undoing:
            while rest is not None:
                with watch.timing("compile"):
                    feed, loop = rest, self._loop(rest)
                reader = loop.open(feed)
                if not scored:
                    # Only now: building the loop makes what the step makes lazily.
                    undoing.enter_context(undisturbed(self._task))
                    tally.start()
                asked, ran = 0, 0
                while ran == asked:
                    if agreement.interrupted():
                        return None
                    began, asked = agreement.now(), pace.at_most_steps if on_batch is None else 1
                    with read_errors_explained(feed):
                        result = loop.run(reader, asked, clock=watch.clock)
                    for part, seconds in result.seconds.items():
                        watch.add(part, seconds)
                    ran = result.steps
                    pace.add(steps=ran, seconds=agreement.now() - began)
                    scored += ran
                    if ran:
                        tally.add(result.totals)
                        if on_batch is not None:
                            on_batch(scored - 1, tally.numbers())
                rest = feed_after(feed, scored)
            return tally.numbers()

    def build(self, data: Data, steps: int | None) -> None:
        """Trace the test step for this data, so that what is wrong with it shows now."""
        self._loop(data.one_pass(steps=steps))

    def _loop(self, feed: Feed) -> CompiledLoop:
        # Any data can be scored, whatever plan the training runs by.
        terms = self._compiled.terms(feed)
        plan = self._selector.plan_in_force  # a trial is no reason to compile a test step
        plan = settled(nearest(replace(plan, feed=None), terms), terms)
        return self._compiled.loop("test_step", feed, plan)


def feed_after(feed: Feed, batches: int) -> Feed | None:
    """Return the feed after one that ran out: None at the end, another if its shape changed."""
    failure = feed.failure()
    if failure is not None:
        raise failure
    wider = feed.reopened()
    if wider is None and batches == 0:
        raise DataError(
            "This data gave no batch.",
            expected="at least one batch",
            received="data that ended at once",
            do="a generator can be read only once: pass arrays, a dataset, or an iterable",
        )
    return None if wider is None else wider[0]
