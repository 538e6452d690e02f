"""The stepper: runs a step over its data, some steps at a time, by the plan that is chosen."""

import copy
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, final

from loopwright.data.read_errors import read_errors_explained
from loopwright.data.readers import AnyReader, HeldReader, ResidentReader
from loopwright.data.source import Feed
from loopwright.distribute import replicas
from loopwright.engine.background_compile import compile_in_background
from loopwright.engine.compiled_loop import CompiledLoop, LoopResult
from loopwright.engine.engine import Engine
from loopwright.engine.loop_graph import next_optional
from loopwright.engine.metrics import EpochMetrics
from loopwright.engine.nan import MOST_SKIPPED, IgnoredNan
from loopwright.errors import DataError, NotFiniteError, RetraceWarning, message
from loopwright.events import BatchSkipped
from loopwright.guards.watches import SettingsWatch
from loopwright.loop.clock import Stopwatch
from loopwright.loop.schedule import Position, moved
from loopwright.plans.evidence import Budget
from loopwright.plans.plan import Plan
from loopwright.plans.tuner import Timing, Tuner
from loopwright.step_warnings import silenced, warn_at_call


@final
@dataclass(frozen=True)
class StepNumbers:
    """The recorded numbers of one step."""

    logs: Mapping[str, Any]
    """The numbers of the epoch after it."""
    variables: Sequence[Any] = ()
    """The values of the recorded variables after it; none if they are as before."""
    outputs: Mapping[str, Any] = field(default_factory=dict)
    """What the step itself returned."""


@final
@dataclass(frozen=True)
class StepsRun:
    """What happened in some steps."""

    steps: int
    records: Sequence[StepNumbers] = ()
    """The numbers of each step, if they are recorded."""
    skipped: Sequence[BatchSkipped] = ()
    """The steps that were not finite and changed nothing."""


@final
@dataclass(frozen=True)
class NextStep:
    """The step that comes next, to be run by itself any number of times."""

    plan: Plan
    batch: Any
    """None for a step without data."""
    run: Callable[[], LoopResult]
    """Runs the step as its plan does. Nothing is counted, and no loss of NaN is an error."""


@final
class Stepper:
    """Runs compiled steps over a feed. Where a run is, its caller knows: see `Position`."""

    def __init__(
        self,
        engine: Engine,
        feed: Feed | None,
        *,
        first_step: int,
        budget: Budget,
        watch: Stopwatch,
        recorded: Sequence[Any] | None = None,
        ignored_nan: IgnoredNan = "",
    ) -> None:
        """`recorded` are variables whose values are kept for each step, with its numbers.

        What `ignored_nan` says is left to a callback, or to whoever reads the numbers.
        """
        self._engine, self._task = engine, engine.task
        self._feed, self._budget, self._watch = feed, budget, watch
        self._first_step, self._records = first_step, recorded
        self._ignored_nan: IgnoredNan = ignored_nan
        self.metrics = EpochMetrics(engine.task, "train_step", engine.updates)
        """Of the epoch so far."""
        self._reader: AnyReader = None
        self.passed_over: frozenset[int] = frozenset()
        """Steps whose batch is read and not trained on, because it would spoil the run."""
        self._tells_data = True
        self._last_skipped, self._skipped_in_a_row = -1, 0
        self.unreported_steps = 0
        """How many steps a call had run that failed then, and could not return them."""
        self.failed_step: int | None = None
        """The step that raised an error or was not finite, and ended the run."""
        self._loops: dict[Plan, CompiledLoop] = {}
        self.tuner = self._begin(feed)
        """Says which plan runs the next steps."""
        self._settings: SettingsWatch | None = None

    def build(self, position: Position) -> None:
        """Build the step now, by the plan that runs next: what is wrong with it shows."""
        self._loop(self._plan_at(position))
        self._settings = self._engine.watched_settings()

    def pass_over(self, *steps: int, but: int | None = None) -> None:
        """Read the batches of these steps without training on them; train on that of `but`."""
        self.passed_over = (self.passed_over | {*steps}) - {but}

    def leave_data_alone(self) -> None:
        """Do not tell the data that an epoch has ended: these steps are undone."""
        self._tells_data = False

    def start_epoch(self, position: Position) -> None:
        """Reset the metrics of the epoch."""
        self.metrics.start()
        feed = self._feed
        if feed is not None and (self._reader is None or feed.end == "each epoch"):
            self._open(feed, position)

    def run_steps(self, position: Position, steps: int) -> StepsRun:
        """Run `steps` steps from here; fewer only if the epoch's data ended."""
        self.unreported_steps, records, skipped = 0, list[StepNumbers](), list[BatchSkipped]()
        here = position
        self._look_for_changes(here)
        while self.unreported_steps < steps:
            step = self._first_step + here.step
            if step + 1 in self.passed_over:
                if self._reader is not None:
                    self._reader.skip(1)
                self._task.step_counter.assign_add(1)
                records += [] if self._records is None else [StepNumbers(self.metrics.numbers())]
                ran, is_end = 1, False
            else:
                ahead = [later - step - 1 for later in self.passed_over if later > step]
                plan, asked = self.tuner.next(step, min([steps - self.unreported_steps, *ahead]))
                result = self._run(plan, here, asked)
                skipped += self._skip(plan, here, result)
                records += self._numbers(result)
                if result.totals is not None:
                    self.metrics.add(result.totals)
                ran, is_end = result.steps, result.steps < asked
            self.unreported_steps += ran
            here = moved(here, steps=ran, seconds=here.seconds)
            if is_end and not self._reopened(here):
                break
        is_end = self._feed is not None and here.step_in_epoch == self._feed.steps_per_epoch
        if self._feed is not None and is_end and self._tells_data:
            self._feed.epoch_ended()
        done, self.unreported_steps = self.unreported_steps, 0
        return StepsRun(done, records, skipped)

    @property
    def reader(self) -> AnyReader:
        """What reads the data; None before the first epoch, and for a step without data."""
        return self._reader

    @property
    def survives_failure(self) -> bool:
        """Whether the position is still valid after a batch could not be read."""
        if self._feed is None:
            return True
        return self._reader is not None and self._reader.survives_failure

    def read_from(self, feed: Feed | None) -> None:
        """Read from another feed of the same data from now on; None: release the data."""
        self._feed, self._reader = feed, None

    def resume(
        self,
        position: Position,
        tensors: Mapping[str, Any],
        *,
        in_epoch: bool,
        has_position: bool = True,
    ) -> None:
        """Continue after what was read; `in_epoch`: there is more to come in this epoch.

        Without a saved position, the data is read from the beginning of an epoch.
        """
        feed = self._feed
        if feed is None or (feed.end == "each epoch" and not in_epoch):
            return
        self._open(feed, position)
        if has_position and self._reader is not None:
            self._reader.restore(position.read, tensors)

    def next_step(self, position: Position) -> NextStep | None:
        """Read the batch of the next step and hold it; None: the data of the epoch has ended.

        The next call of `run_steps` runs this step; a stream cannot be read further after it.
        """
        plan, _ = self.tuner.next(self._first_step + position.step, 1)
        loop, reader = self._loop(plan), self._reader
        if reader is None:
            return NextStep(plan, None, lambda: loop.run(None, 1))
        if isinstance(reader, ResidentReader):
            batch = reader.next_batch()
            return NextStep(plan, batch, lambda: loop.run(copy.copy(reader), 1))
        with read_errors_explained(self._feed):
            optional = next_optional(reader.iterator, reader.end)
            has_value = bool(optional.has_value())
        if not has_value:
            return self.next_step(position) if self._reopened(position) else None
        batch = optional.get_value()
        held = self._reader = HeldReader(batch, reader)
        return NextStep(plan, batch, lambda: loop.run(held, 1))

    def batch_in_words(self, number: int) -> str:
        """Name a batch by how many were read before it."""
        return "a step without data" if self._feed is None else self._feed.batch_in_words(number)

    def _step_in_words(self, here: Position, step: int) -> str:
        """Name the step after `step`, and its batch."""
        batch = self.batch_in_words(here.read.batches + step - self._first_step - here.step)
        return f"step {step + 1:,} ({batch})" if self._feed is not None else f"step {step + 1:,}"

    def can_prepare(self) -> bool:
        """Return whether the sizes of batches are known: a plan is compiled for each of them."""
        reader = self._reader
        if reader is None or isinstance(reader, ResidentReader):
            return True
        return bool(reader.sizes) or replicas.known_example_count(reader.batch_spec) is not None

    def prepare(self, plan: Plan) -> Future[None]:
        """Trace a plan now, for this data, and compile it in the background."""
        return compile_in_background(self._loop(plan).prepare(self._reader))

    def _begin(self, feed: Feed | None) -> Tuner:
        kind = self._engine.kind(feed)
        return self._engine.plans.begin(kind, self, self._watch, self._budget)

    def _plan_at(self, position: Position) -> Plan:
        return self.tuner.plan_after(self._first_step + position.step)

    def _run(self, plan: Plan, here: Position, steps: int) -> LoopResult:
        try:
            with read_errors_explained(self._feed):
                loop, clock = self._loop(plan), self._watch.clock
                in_words = functools.partial(self._step_in_words, here)
                result = loop.run(self._reader, steps, in_words, clock)
        except Exception:
            self._raise_failure_of_data()
            self.failed_step = int(self._task.step_counter.read_value()) + 1
            raise
        for part, seconds in result.seconds.items():
            self._watch.add(part, seconds)
        compiling = result.seconds["compile"]
        seconds = sum(result.seconds.values())
        self.tuner.ran(self._first_step + here.step, Timing(plan, result.steps, seconds, compiling))
        return result

    def _numbers(self, result: LoopResult) -> Iterable[StepNumbers]:
        """Return the numbers of each step, before they are added to those of the epoch."""
        if result.per_step is None:
            return ()
        outputs, metrics, variables = result.per_step
        logs = self.metrics.after_each(outputs, metrics)
        values = zip(*variables, strict=True) if variables else [()] * result.steps
        return map(StepNumbers, logs, values, self.metrics.of_each(outputs))

    def _look_for_changes(self, here: Position) -> None:
        """Warn of settings that the compiled step does not see; an eager step does."""
        plan = self._plan_at(here)
        with silenced(self._engine.silenced):
            if plan.step != "eager" and self._settings and self._settings.warn_of_changes():
                # Another plan would be traced with the new value.
                self.tuner.hold(plan)

    def _skip(self, plan: Plan, here: Position, result: LoopResult) -> list[BatchSkipped]:
        """Return the steps that were skipped; raise for one that must not be, or for too many."""
        first, batches = self._first_step + here.step + 1, here.read.batches
        skipped = [
            BatchSkipped(first + later, self.batch_in_words(batches + later))
            for later in result.not_finite
        ]
        for bad in skipped:
            if not self._loop(plan).skips:
                where = "; ".join(filter(None, [bad.batch, result.first_not_finite]))
                self.failed_step = bad.step
                text = _not_finite(bad.step, where, has_finite_loss=result.has_finite_loss)
                raise NotFiniteError(text, step=bad.step)
            is_next = bad.step == self._last_skipped + 1
            self._skipped_in_a_row = self._skipped_in_a_row + 1 if is_next else 1
            self._last_skipped = bad.step
            if max(len(skipped), self._skipped_in_a_row) > MOST_SKIPPED:
                raise NotFiniteError(_too_many(bad.step, bad.batch), step=bad.step)
        return skipped

    def _loop(self, plan: Plan) -> CompiledLoop:
        if plan not in self._loops:
            self._loops[plan] = self._engine.loop(
                "train_step",
                self._feed,
                plan,
                recorded=self._records,
                ignored_nan=self._ignored_nan,
            )
        return self._loops[plan]

    def _open(self, feed: Feed, position: Position) -> None:
        self._reader = self._loop(self._plan_at(position)).open(feed)

    def _raise_failure_of_data(self) -> None:
        failure = None if self._feed is None else self._feed.failure()
        if failure is not None:
            raise failure

    def _reopened(self, here: Position) -> bool:
        """After the data ran out: continue with a wider spec, raise, or let the epoch end."""
        feed = self._feed
        if feed is None:
            return False
        self._raise_failure_of_data()
        wider = feed.reopened()
        if wider is not None:
            self._feed, change = wider
            warn_at_call(RetraceWarning(_retraced(change)))
            with self._watch.timing("compile"):
                self._loops.clear()
                self.tuner = self._begin(self._feed)
                self._open(self._feed, here)
                self._settings = self._engine.watched_settings()
            return True
        if feed.steps_per_epoch is None and here.step_in_epoch:
            return False
        raise DataError(_ran_out(feed, here.step_in_epoch))


def _retraced(change: str) -> str:
    return message(
        f"The step is traced again: {change}.",
        do="give all batches the same shape (pad or bucket them); each new shape costs a trace, "
        "after which that axis is left open",
    )


def _not_finite(step: int, batch: str, *, has_finite_loss: bool) -> str:
    return message(
        f"Step {step:,} wrote NaN or infinity into variables, though its loss is finite."
        if has_finite_loss
        else f"The loss is NaN or infinite at step {step:,}.",
        expected="finite losses, gradients and variables",
        received=batch,
        do="look at these examples; lower the learning rate or clip gradients (the optimizer's "
        'clipnorm=); Trainer(..., on_nan="rollback") or "skip" continues without the batch, '
        'plan="eager" names the first operation that is not finite',
    )


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
