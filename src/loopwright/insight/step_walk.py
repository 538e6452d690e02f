"""The way to one step: earlier steps run again and compared, then the step itself."""

import bdb
import contextlib
import pdb
import types
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, final

import tensorflow as tf

from loopwright.checkpoints import tensors
from loopwright.checkpoints.run_directory import Run
from loopwright.compat.lines import is_own
from loopwright.engine.nan import first_operation
from loopwright.engine.stepper import NextStep
from loopwright.errors import ConfigurationError, NotFiniteError, first_line
from loopwright.events import Event, Metrics
from loopwright.fit.request import FitRequest
from loopwright.fit.session import Session
from loopwright.insight import replay_checks, step_look
from loopwright.insight.replayed import Check, Replayed
from loopwright.insight.step_look import StepLook
from loopwright.loop.clock import Pace
from loopwright.loop.schedule import Every, Position, Schedule
from loopwright.loop.train import train
from loopwright.plans.plan import WORDS
from loopwright.quiet_start import quiet_start
from loopwright.runs import RecordedSteps
from loopwright.task import variables
from loopwright.task.state import apply, capture
from loopwright.task.task import Task, owner, reset

_HELP = """\
The step runs eagerly, on the state before it: `n` runs a line, `p batch` prints, `c` runs on.
`c` stops again at the first operation that gives NaN or infinity. `q` leaves."""


def debugged(task: Task, step: Callable[[], Any]) -> None:
    """Run an eager step in pdb, from the first line of `train_step`."""
    held: Any = owner(task)
    original = held.train_step
    debugger = pdb.Pdb()

    def train_step(*batch: Any) -> Any:
        return debugger.runcall(original, *batch)

    print(_HELP)
    vars(held)["train_step"] = train_step
    tf.debugging.enable_check_numerics()
    try:
        step()
    except bdb.BdbQuit:
        return
    except Exception as error:
        print(f"{type(error).__name__}: {first_line(error)}")
        with contextlib.suppress(bdb.BdbQuit):
            pdb.post_mortem(_own_part(error.__traceback__))
    finally:
        tf.debugging.disable_check_numerics()
        del vars(held)["train_step"]


def _own_part(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """End a traceback at the innermost line of the user's code, if it has one."""
    entry, own = traceback, None
    while entry is not None:
        if is_own(entry.tb_frame.f_code.co_filename, entry.tb_lineno):
            own = entry
        entry = entry.tb_next
    if own is not None:
        own.tb_next = None
    return traceback


@final
class _ArrivedError(Exception):
    """The step was run."""


@final
class Walk:
    """The way to a step: runs the steps before it, compares with the record, looks, runs it."""

    def __init__(
        self,
        session: Session,
        run: Run,
        record: RecordedSteps,
        step: int,
        *,
        uses_debugger: bool,
    ) -> None:
        self._session, self._run, self._record = session, run, record
        self._step, self._stepper = step, session.stepper
        self._uses_debugger = uses_debugger
        self._saved = {e.step for e in run.entries() if session.step < e.step <= step}
        self._checks: list[Check] = []
        self._seen: Replayed | None = None
        # A task may keep infinity in a variable on purpose, as the best score so far.
        self._position = session.position
        self._infinite = frozenset[str]()
        self._infinite = frozenset(self._not_finite())

    def go(self, request: FitRequest) -> Replayed:
        """Run to the step and through it; return what was seen of it."""
        session, stepper = self._session, self._stepper
        stepper.pass_over(*self._record.skipped, but=self._step)
        schedule = Schedule(
            session.schedule.steps_per_epoch,
            until=Every(steps=self._step + 1 - session.first_step),
            validate_every=request.validate_every if request.sets else None,
            restarted_steps=session.schedule.restarted_steps,
        )
        happened = train(
            schedule,
            self,
            self,
            position=self._position,
            scores={},
            first_step=self._session.first_step,
            pace=Pace(limit=self._most_steps),
        )
        try:
            for event, self._position, _ in happened:
                session.callbacks.on(event)
        except _ArrivedError:
            pass
        except NotFiniteError as error:
            if error.step != self._step:
                raise ConfigurationError(
                    f"The replay is not finite at step {error.step:,}, before it reached step "
                    f"{self._step:,}.",
                    expected=f"finite losses until step {self._step:,}, as recorded",
                    received=f"a run whose last step is {self._record.last_step:,}",
                    do=f"replay step {error.step:,}: it shows what went wrong",
                ) from error
        except Exception:
            if self._seen is None or not self._seen.error:
                raise
        return self._compared()

    def _compared(self) -> Replayed:
        """Return what was seen, with what the record says of it."""
        seen = self._seen
        if seen is None:
            raise ConfigurationError(
                f"The data ended after step {self._step_now:,}, before step {self._step:,}.",
                expected="the data and the steps_per_epoch of the run",
                received=f"{self._step_now:,} steps",
                do="pass to replay what was passed to fit",
            )
        if self._step == self._record.failed_step:
            detail = "" if seen.fails else "the run ended here, and the replay is finite"
            self._checks.append(Check(self._step, "end", matches=seen.fails, detail=detail))
        return replace(seen, checks=tuple(self._checks))

    # -- what the loop calls -------------------------------------------------------------------

    def start_epoch(self, position: Position) -> None:
        """Reset the metrics of the epoch."""
        self._compare_state()
        self._stepper.start_epoch(position)

    def run_steps(self, position: Position, steps: int) -> int:
        """Run that many steps, or the one to look into; fewer: the data of the epoch ended."""
        self._compare_state()
        stepper, callbacks = self._stepper, self._session.callbacks
        held, step = None, self._session.first_step + position.step
        if step + 1 == self._step:
            held, steps = stepper.next_step(position), 1
            if held is None:
                return 0  # the data of the epoch has ended: the step is in the next one
        callbacks.before_steps(position.step_in_epoch)
        if held is not None:
            self._seen = self._look(held, position)
        ran = stepper.run_steps(position, steps)
        callbacks.after_steps(ran.records)
        if then := self._record.numbers.get(step + ran.steps):
            now = stepper.metrics.numbers()
            check = replay_checks.compared_numbers(step + ran.steps, then, now)
            self._checks.append(check)
        return ran.steps

    def report(self) -> Metrics:
        """Return the metrics since the epoch began."""
        return self._stepper.metrics.numbers()

    def pending_events(self) -> Iterable[Event]:
        """Return nothing: these steps were reported when they first ran."""
        return ()

    def clock(self) -> float:
        """Return the time in seconds."""
        return self._session.clock()

    def validate(self) -> Metrics:
        """Return the recorded scores: nothing is scored again."""
        self._session.callbacks.before_validation()
        scores = self._record.scores.get(self._step_now, {})
        self._session.callbacks.after_validation(scores)
        return scores

    def is_best(self, step: int, scores: Metrics) -> bool:
        """Return that nothing is saved."""
        return False

    def save(self, position: Position, scores: Metrics, *, is_due: bool = True) -> None:
        """Save nothing."""

    def stop_requested(self) -> bool:
        """Return that the record says how far the run went, not a callback."""
        return False

    def interrupted(self) -> bool:
        """Return whether a signal arrived."""
        return self._session.interrupted()

    @property
    def _step_now(self) -> int:
        return self._session.first_step + self._position.step

    def _most_steps(self) -> int | None:
        """Return the steps to the next one that is compared or looked at."""
        here = self._step_now
        marks = {self._step - 1, self._step, *self._saved, *self._record.numbers}
        left = [mark - here for mark in marks if here < mark <= self._step]
        hooks = self._session.callbacks.most_steps()
        return min([*left, *([] if hooks is None else [hooks]), self._step + 1 - here])

    def _compare_state(self) -> None:
        """Compare the state where the run has a checkpoint; end when the step was run."""
        step = self._step_now
        if step in self._saved:
            self._saved.remove(step)
            checkpoint, snapshot = self._run.chosen(step)
            then = tensors.read(checkpoint.path / "state", snapshot.variables)
            self._checks.append(replay_checks.compared_state(step, then, self._session.named))
        if step >= self._step:
            raise _ArrivedError

    # -- the step ------------------------------------------------------------------------------

    def _look(self, held: NextStep, position: Position) -> Replayed:
        session, stepper, task = self._session, self._stepper, self._session.parts.task
        number = position.read.batches
        words, feed = stepper.batch_in_words(number), session.feed
        examples = None if feed is None else feed.examples(number)
        seen = Replayed(
            run=self._run.directory,
            step=self._step,
            epoch=position.epoch,
            step_in_epoch=position.step_in_epoch + 1,
            plan=held.plan.in_words,
            batch=step_look.look_at_batch(held.batch, words, examples),
            weights_before=self._not_finite(),
        )
        before = capture(variables.named(task).values())
        seen = self._run_by_plan(held, seen)
        apply(before)
        if session.parts.strategy.num_replicas_in_sync > 1:
            return replace(seen, notes=("several replicas: layers and gradients are not shown",))
        spec = None if session.feed is None else session.feed.batch_spec
        eager = session.parts.engine.alone("train_step", spec, WORDS["eager"])
        try:
            reset(task)
            seen = replace(seen, eager=step_look.eager_look(task, eager, held.batch))
        except Exception as error:
            seen = replace(seen, error=seen.error or first_line(error))
        apply(before)
        # Where kernels hide NaN from the loss, only the eager step shows where it begins.
        if seen.recorded_plan and seen.eager_reproduces is False and not seen.hides_nan:
            reset(task)
            compiled = session.parts.engine.alone("train_step", spec, held.plan)
            inside = step_look.plan_look(task, compiled, held.batch, held.plan)
            inside = replace(inside, numbers=seen.recorded_plan.numbers)
            seen = replace(seen, recorded_plan=inside)
            apply(before)
        is_bad = seen.fails or bool(seen.shown and seen.shown.not_finite)
        if seen.eager is not None and is_bad:
            # TensorFlow prints the tensors of the operation that it stops at.
            with quiet_start(drops_all=True):
                first = first_operation(lambda: eager(held.batch), before)
                seen = replace(seen, first_operation=first)
        if self._uses_debugger:
            debugged(task, lambda: eager(held.batch))
        apply(before)
        return seen

    def _run_by_plan(self, held: NextStep, seen: Replayed) -> Replayed:
        """Run the step as the run did, and once more, to see its loss after the update."""
        task = self._session.parts.task
        try:
            reset(task)
            ran = StepLook(step_look.step_numbers(task, held.run().totals))
            after = tuple(n for n in self._not_finite() if n not in seen.weights_before)
            seen = replace(seen, recorded_plan=ran, weights_after=after)
            reset(task)
            numbers = step_look.step_numbers(task, held.run().totals)
            return replace(seen, loss_after=step_look.losses(numbers))
        except Exception as error:
            return replace(seen, error=first_line(error))

    def _not_finite(self) -> tuple[str, ...]:
        metrics = {id(v) for v in variables.metric_variables(self._session.parts.task)}
        kept = {name: v for name, v in self._session.named.items() if id(v) not in metrics}
        found = tensors.non_finite(tensors.snapshot(kept))
        return tuple(name for name in found if name not in self._infinite)
