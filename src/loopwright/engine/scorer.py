"""Scorer: the test step over whole data sets, by a plan that suits the training."""

import time
from collections.abc import Callable, Mapping
from typing import Any, final

import tensorflow as tf

from loopwright.data.source import Data, Feed
from loopwright.distribute.team import Agreement
from loopwright.engine.plan_selector import Piloting
from loopwright.engine.runner import StepRunner
from loopwright.engine.runners import Runners
from loopwright.engine.validation import score
from loopwright.loop.clock import Stopwatch
from loopwright.plans.plan import Plan, nearest, settled
from loopwright.task.task import Task


@final
class Scorer:
    """Scores a task, for `evaluate` and for validation during `fit`."""

    def __init__(
        self, task: Task, strategy: tf.distribute.Strategy, runners: Runners, piloting: Piloting
    ) -> None:
        self._task = task
        self._strategy = strategy
        self._runners = runners
        self._piloting = piloting

    def score(
        self,
        data: Data,
        steps: int | None,
        agreement: Agreement,
        on_batch: Callable[[int, Mapping[str, Any]], None] | None = None,
        watch: Stopwatch | None = None,
    ) -> dict[str, Any] | None:
        """The scores of a data set; None if all workers agreed to stop. See `validation.score`."""
        return score(
            self._task,
            self._runner,
            data.one_pass(steps=steps),
            self._runners.updates,
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
        # Scores are wanted of any data, whatever plan the training runs by.
        terms = self._runners.terms(feed)
        plan = self._piloting.plan_in_force  # a trial is no reason to compile a test step
        plan = settled(nearest(Plan(plan.step, plan.loop), terms), terms)
        return self._runners.runner("test_step", feed, plan)
