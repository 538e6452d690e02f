"""Training: a step, its data and its numbers, run some steps at a time."""

import warnings
from collections.abc import Callable
from typing import Any, Protocol, final

from loopwright.choosing import BackgroundCompile
from loopwright.data import Feed
from loopwright.errors import DataError, RetraceWarning, message
from loopwright.plans import Plan
from loopwright.readers import Reader
from loopwright.running import StepRunner
from loopwright.stopwatch import Stopwatch
from loopwright.tally import Tally


class Pilot(Protocol):
    """Says by which plan the next steps run."""

    def plan_after(self, step: int) -> Plan:
        """The plan after `step` steps, as things stand."""
        ...

    def next(self, step: int, steps: int) -> tuple[Plan, int]:
        """The plan after `step` steps, and how many of the next `steps` to run by it."""
        ...

    def ran(self, plan: Plan, steps: int, seconds: float, compile_seconds: float) -> None:
        """Hears how long it took."""
        ...


@final
class Training:
    """Goes through a feed with compiled steps; what the loop calls `run_steps`."""

    def __init__(
        self,
        runner_for: Callable[[Any, Plan], StepRunner],
        feed: Feed | None,
        tally: Tally,
        pilot_for: "Callable[[Feed | None, Training], Pilot]",
        *,
        step: int,
        watch: Stopwatch,
        planned: Callable[[int, Plan], None],
    ) -> None:
        self._runner_for = runner_for
        self._feed, self._tally = feed, tally
        self.step, self._watch, self._planned = step, watch, planned
        self._reader: Reader = None
        self._steps_in_epoch = 0
        self._runners: dict[Plan, StepRunner] = {}
        self._pilot_for, self._pilot = pilot_for, pilot_for(feed, self)
        self._runner(self._pilot.plan_after(step))  # what is wrong with the step shows now

    def start_epoch(self) -> None:
        """Forgets the numbers of the epoch before."""
        self._tally.start()
        self._steps_in_epoch = 0
        feed = self._feed
        if feed is not None and (self._reader is None or feed.end == "each epoch"):
            self._open(feed)

    def run_steps(self, steps: int) -> int:
        """Runs `steps` steps; fewer only if the epoch's data ended."""
        ran = 0
        while ran < steps:
            plan, asked = self._pilot.next(self.step, steps - ran)
            self._planned(self.step, plan)
            done = self._run(plan, asked)
            ran += done
            if done < asked and not self._reopened():
                break
        if self._feed is not None and self._steps_in_epoch == self._feed.steps_per_epoch:
            self._feed.epoch_ended()
        return ran

    def report(self) -> dict[str, Any]:
        """The numbers of the epoch so far."""
        return self._tally.numbers()

    def prepare(self, plan: Plan) -> BackgroundCompile:
        """Traces a plan at once, for the data as it lies, and compiles it in the background."""
        return BackgroundCompile(self._runner(plan).prepare(self._reader))

    def _run(self, plan: Plan, steps: int) -> int:
        watch = self._watch
        began, before = watch.clock(), dict(watch.seconds)
        try:
            done, outputs = self._runner(plan).run(self._reader, steps, watch)
        except Exception:
            self._raise_failure_of_data()
            raise
        seconds = watch.clock() - began
        compile_seconds = watch.seconds["compile"] - before["compile"]
        waited_seconds = watch.seconds["data wait"] - before["data wait"]
        watch.add("step", seconds - compile_seconds - waited_seconds)
        self._pilot.ran(plan, done, seconds, compile_seconds)
        if done:
            self._tally.add(outputs)
        self.step, self._steps_in_epoch = self.step + done, self._steps_in_epoch + done
        return done

    def _runner(self, plan: Plan) -> StepRunner:
        if plan not in self._runners:
            spec = None if self._feed is None else self._feed.batch_spec
            self._runners[plan] = self._runner_for(spec, plan)
        return self._runners[plan]

    def _open(self, feed: Feed) -> None:
        self._reader = self._runner(self._pilot.plan_after(self.step)).open(feed)

    def _raise_failure_of_data(self) -> None:
        failure = None if self._feed is None else self._feed.failure()
        if failure is not None:
            raise failure

    def _reopened(self) -> bool:
        """After running out: goes on with a wider spec, or explains, or lets the epoch end."""
        feed = self._feed
        if feed is None:
            return False
        self._raise_failure_of_data()
        wider = feed.reopened()
        if wider is not None:
            self._feed, change = wider
            warnings.warn(_retraced(change), RetraceWarning, stacklevel=2)
            self._runners.clear()
            self._pilot = self._pilot_for(self._feed, self)
            self._open(self._feed)
            return True
        if feed.steps_per_epoch is None and self._steps_in_epoch:
            return False
        raise DataError(_ran_out(feed, self._steps_in_epoch))


def _retraced(change: str) -> str:
    return message(
        f"The step is traced again: {change}.",
        do="give all batches the same shape (pad or bucket them); each new shape costs a trace, "
        "after which that axis is left open",
    )


def _ran_out(feed: Feed, steps: int) -> str:
    if feed.steps_per_epoch is None:
        return message(
            "The data gave no batch for an epoch.",
            expected="at least one batch in every epoch",
            received="data that ended at once (empty, or a generator that was read to its end)",
            do="check the data; pass an object that can be read again, or epochs=1",
        )
    return message(
        "The data ended before the epoch did.",
        expected=f"{feed.steps_per_epoch} batches per epoch",
        received=f"{steps} batches in this epoch",
        do="lower steps_per_epoch or epochs, or let the data repeat",
    )
