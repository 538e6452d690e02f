"""Training: a step, its data and its numbers, run some steps at a time."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from loopwright.data.read_errors import read_errors_explained
from loopwright.data.reader import NOTHING_READ, AnyReader, Read
from loopwright.data.source import Feed
from loopwright.distribute import replicas
from loopwright.engine.background_compile import BackgroundCompile
from loopwright.engine.epoch_metrics import EpochMetrics
from loopwright.engine.nan import MOST_SKIPPED
from loopwright.engine.runner import StepRunner
from loopwright.errors import DataError, NotFiniteError, RetraceWarning, message
from loopwright.events import BatchSkipped
from loopwright.loop.clock import Stopwatch
from loopwright.plans.plan import Plan
from loopwright.plans.plan_history import Pilot
from loopwright.step_warnings import warn_at_call


@final
@dataclass(frozen=True)
class StepNumbers:
    """What was recorded of one step."""

    logs: Mapping[str, Any]
    """The numbers of the epoch after it."""
    variables: Sequence[Any] = ()
    """The values of the recorded variables after it; none if they are as before."""


@final
class Stepper:
    """Goes through a feed with compiled steps; what the loop calls `run_steps`."""

    def __init__(
        self,
        runner_for: Callable[[Feed | None, Plan], StepRunner],
        feed: Feed | None,
        tally: EpochMetrics,
        pilot_for: "Callable[[Feed | None, Stepper], Pilot]",
        *,
        step: int,
        count_step: Callable[[], object],
        watch: Stopwatch,
        planned: Callable[[int, Plan], None],
    ) -> None:
        self._runner_for = runner_for
        self._feed, self._tally, self._count_step = feed, tally, count_step
        self.step, self._watch, self._planned = step, watch, planned
        self._reader: AnyReader = None
        self.read = NOTHING_READ
        """Of its data, since the beginning of the leg; each step reads one batch."""
        self.lets_nan_pass = False
        """Whether somebody else looks at the losses: a callback that ends the run."""
        self.records = False
        """Whether the numbers of each step are recorded."""
        self.passed_over: set[int] = set()
        """Steps whose batch is read and not trained on, because it would spoil the run."""
        self.skipped: list[BatchSkipped] = []
        """What has not been told yet of the steps that were skipped."""
        self._skipped_in_a_row = 0
        self.steps_in_epoch = 0
        self.recorded: list[StepNumbers] = []
        """The numbers of each step that the last `run_steps` ran, if they are recorded."""
        self._runners: dict[Plan, StepRunner] = {}
        self._pilot_for, self._pilot = pilot_for, pilot_for(feed, self)
        self._runner(self._pilot.plan_after(step))  # what is wrong with the step shows now

    def start_epoch(self) -> None:
        """Forgets the numbers of the epoch before."""
        self._tally.start()
        self.steps_in_epoch = 0
        feed = self._feed
        if feed is not None and (self._reader is None or feed.end == "each epoch"):
            self._open(feed)

    def run_steps(self, steps: int) -> int:
        """Runs `steps` steps; fewer only if the epoch's data ended."""
        ran = 0
        self.recorded = []
        while ran < steps:
            if self.step + 1 in self.passed_over:
                self._pass_over()
                ran += 1
                continue
            ahead = [step - self.step - 1 for step in self.passed_over if step > self.step]
            plan, asked = self._pilot.next(self.step, min([steps - ran, *ahead]))
            self._planned(self.step, plan)
            done = self._run(plan, asked)
            ran += done
            if done < asked and not self._reopened():
                self.read = replace(self.read, ends=self.read.ends + 1)
                break
        if self._feed is not None and self.steps_in_epoch == self._feed.steps_per_epoch:
            self._feed.epoch_ended()
        return ran

    def position(self) -> tuple[Read, dict[str, Any]]:
        """Return the position in the data: how much was read, and the state of the reader."""
        reader = self._reader
        if reader is None:
            return self.read, {}
        return replace(self.read, last_digest=reader.last_digest()), reader.state()

    @property
    def survives_failure(self) -> bool:
        """Whether the position is still valid after a batch could not be read."""
        if self._feed is None:
            return True
        return self._reader is not None and self._reader.survives_failure

    def close(self) -> None:
        """Lets go of the data and of whoever makes its batches."""
        self._feed = self._reader = None

    def read_from(self, feed: Feed | None) -> None:
        """Reads from another feed of the same data from now on."""
        self._feed, self._reader = feed, None

    def resume(
        self,
        step: int,
        read: Read,
        step_in_epoch: int,
        tensors: Mapping[str, Any],
        *,
        in_epoch: bool,
        has_position: bool = True,
    ) -> None:
        """Goes on after what was read; `in_epoch`: there is more to come in this epoch.

        Without a saved position, the data is read from the beginning of an epoch.
        """
        self.step, self.read, self.steps_in_epoch = step, read, step_in_epoch
        feed = self._feed
        if feed is None or (feed.end == "each epoch" and not in_epoch):
            return
        self._open(feed)
        if has_position and self._reader is not None:
            self._reader.restore(read, tensors)

    def batch_in_words(self, number: int) -> str:
        """Names a batch, by how many were read before it."""
        return "a step without data" if self._feed is None else self._feed.batch_in_words(number)

    def examples_per_batch(self) -> int | None:
        """How many examples the largest batch has; None if unknown, or if there is one batch."""
        feed, reader = self._feed, self._reader
        if feed is None or feed.steps_per_epoch == 1:
            return None
        seen = None if reader is None else reader.largest_batch
        return replicas.known_example_count(feed.batch_spec) if seen is None else seen

    def _step_in_words(self, done: int) -> str:
        """Names the step after `done` steps, and its batch."""
        batch = self.batch_in_words(self.read.batches + done - self.step)
        return f"step {done + 1:,} ({batch})" if self._feed is not None else f"step {done + 1:,}"

    def news(self) -> Iterator[BatchSkipped]:
        """What has been skipped since this was last asked."""
        while self.skipped:
            yield self.skipped.pop(0)

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
            with read_errors_explained(self._feed):
                ran = self._runner(plan).run(self._reader, steps, watch, self._step_in_words)
        except Exception:
            self._raise_failure_of_data()
            raise
        seconds = watch.clock() - began
        compile_seconds = watch.seconds["compile"] - before["compile"]
        waited_seconds = watch.seconds["data wait"] - before["data wait"]
        watch.add("step", seconds - compile_seconds - waited_seconds)
        done = ran.steps
        self._pilot.ran(plan, done, seconds, compile_seconds)
        if not ran.not_finite:
            self._skipped_in_a_row = 0
        elif not self.lets_nan_pass:
            self._not_finite(plan, ran.not_finite, done)
        if ran.columns is not None:
            outputs, metrics, variables = ran.columns
            logs = self._tally.after_each(outputs, metrics)
            values = zip(*variables, strict=True) if variables else [()] * done
            self.recorded += map(StepNumbers, logs, values)
        if done:
            self._tally.add(ran.outputs)
        self._count(done)
        return done

    def _count(self, steps: int) -> None:
        self.step, self.steps_in_epoch = self.step + steps, self.steps_in_epoch + steps
        self.read = replace(self.read, batches=self.read.batches + steps)

    def _pass_over(self) -> None:
        if self._reader is not None:
            self._reader.skip(1)
        self._count_step()
        self._count(1)
        if self.records:
            self.recorded.append(StepNumbers(self._tally.numbers()))

    def _not_finite(self, plan: Plan, places: Sequence[int], done: int) -> None:
        """Raises for the first step that was not finite, or notes those that were skipped."""
        batches = [self.batch_in_words(self.read.batches + place) for place in places]
        steps = [self.step + place + 1 for place in places]
        runner = self._runner(plan)
        if not runner.skips:
            where = "; ".join(filter(None, [batches[0], runner.first_not_finite]))
            raise NotFiniteError(_not_finite(steps[0], where), step=steps[0])
        self._skipped_in_a_row = skipped_in_a_row(self._skipped_in_a_row, places, done)
        if max(len(places), self._skipped_in_a_row) > MOST_SKIPPED:
            raise NotFiniteError(_too_many(steps[-1], batches[-1]), step=steps[-1])
        self.skipped += map(BatchSkipped, steps, batches)

    def _runner(self, plan: Plan) -> StepRunner:
        if plan not in self._runners:
            self._runners[plan] = self._runner_for(self._feed, plan)
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
            warn_at_call(RetraceWarning(_retraced(change)))
            with self._watch.timing("compile"):
                self._runners.clear()
                self._pilot = self._pilot_for(self._feed, self)
                self._open(self._feed)
            return True
        if feed.steps_per_epoch is None and self.steps_in_epoch:
            return False
        raise DataError(_ran_out(feed, self.steps_in_epoch))


def _retraced(change: str) -> str:
    return message(
        f"The step is traced again: {change}.",
        do="give all batches the same shape (pad or bucket them); each new shape costs a trace, "
        "after which that axis is left open",
    )


def _not_finite(step: int, batch: str) -> str:
    return message(
        f"The loss is NaN or infinite at step {step:,}.",
        expected="finite losses",
        received=batch,
        do="look at these examples; lower the learning rate or clip gradients (the optimizer's "
        'clipnorm=); Trainer(..., on_nan="rollback") or "skip" goes on without the batch, '
        'plan="eager" names the first operation that is not finite',
    )


def skipped_in_a_row(before: int, places: Sequence[int], done: int) -> int:
    """How many steps in a row were skipped in the end, after a call of `done` steps.

    >>> skipped_in_a_row(5, places=[0, 1], done=2), skipped_in_a_row(5, places=[0, 2], done=3)
    (7, 1)
    """
    ending = 0
    while ending < len(places) and places[-1 - ending] == done - 1 - ending:
        ending += 1
    return before + done if ending == done else ending


def _too_many(step: int, batch: str) -> str:
    return message(
        f"Up to step {step:,} more than {MOST_SKIPPED} batches in a row had to be skipped.",
        expected="now and then a batch whose loss is NaN or infinite",
        received=f"the last was {batch}",
        do="lower the learning rate or clip gradients (the optimizer's clipnorm=): this is not "
        "the fault of single examples",
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
