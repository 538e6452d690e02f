"""The way to one step: earlier steps run again and compared, then the step itself."""

import bdb
import contextlib
import pdb
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import tensorflow as tf

from loopwright.checkpoints import tensors
from loopwright.checkpoints.run_directory import Run
from loopwright.compat.error_messages import is_own
from loopwright.compat.quiet_start import quiet_start
from loopwright.engine.nan import first_operation
from loopwright.engine.stepper import NextStep
from loopwright.errors import ConfigurationError, NotFiniteError, first_line
from loopwright.events import Event, Metrics
from loopwright.fit.leg import Leg
from loopwright.fit.request import FitRequest
from loopwright.insight import replay_checks, step_look
from loopwright.insight.replayed import Check, Replayed
from loopwright.insight.scratch import hold_variables
from loopwright.insight.step_look import BatchLook, StepLook
from loopwright.loop.clock import Pace
from loopwright.loop.schedule import Every, Place, Schedule
from loopwright.loop.train import train
from loopwright.plans.plan import WORDS
from loopwright.runs import Steps
from loopwright.task import variables
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
        print(f"{type(error).__name__}: {str(error).splitlines()[0]}")
        with contextlib.suppress(bdb.BdbQuit):
            pdb.post_mortem(_own_part(error.__traceback__))
    finally:
        tf.debugging.disable_check_numerics()
        del vars(held)["train_step"]


def _own_part(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """Return a traceback that ends at the innermost line of the user's code, if there is one."""
    entries = list[types.TracebackType]()
    while traceback is not None:
        entries.append(traceback)
        traceback = traceback.tb_next
    own = [
        n
        for n, each in enumerate(entries)
        if is_own(each.tb_frame.f_code.co_filename, each.tb_lineno)
    ]
    kept = entries[: own[-1] + 1] if own else entries
    found: types.TracebackType | None = None
    for each in reversed(kept):
        found = types.TracebackType(found, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return found


@final
class _ArrivedError(Exception):
    """The step was run."""


@final
@dataclass
class _Look:
    """What was seen of the step."""

    plan: str
    batch: BatchLook
    epoch: int = 0
    step_in_epoch: int = 0
    recorded_plan: StepLook | None = None
    eager: StepLook | None = None
    loss_after: Mapping[str, float] = field(default_factory=dict[str, float])
    first_operation: str = ""
    weights_before: tuple[str, ...] = ()
    weights_after: tuple[str, ...] = ()
    error: str = ""
    notes: list[str] = field(default_factory=list[str])


@final
class Walk:
    """The way to a step: runs the steps before it, compares with the record, looks, runs it."""

    def __init__(
        self,
        leg: Leg,
        named: dict[str, Any],
        run: Run,
        record: Steps,
        step: int,
        *,
        uses_debugger: bool,
    ) -> None:
        self._leg, self._named, self._run, self._record = leg, named, run, record
        self._step, self._stepper = step, leg.stepper
        self._uses_debugger = uses_debugger
        self._saved = {e.step for e in run.entries() if leg.stepper.step < e.step <= step}
        self._checks: list[Check] = []
        self._look: _Look | None = None
        self._place = Place()
        # A task may keep infinity in a variable on purpose, as the best score so far.
        self._infinite = frozenset[str]()
        self._infinite = frozenset(self._not_finite())

    def go(self, place: Place, request: FitRequest) -> None:
        """Run to the step and through it."""
        leg, stepper = self._leg, self._stepper
        stepper.passed_over = (stepper.passed_over | self._record.skipped) - {self._step}
        schedule = Schedule(
            leg.schedule.steps_per_epoch,
            until=Every(steps=self._step + 1 - leg.first_step),
            validate_every=request.validate_every if request.sets else None,
            restarted_steps=leg.schedule.restarted_steps,
        )
        self._place = place
        happened = train(
            schedule,
            self,
            self,
            place=place,
            scores={},
            first_step=leg.first_step,
            pace=Pace(limit=self._most_steps),
        )
        try:
            for event, self._place, _ in happened:
                leg.bridge(event)
        except _ArrivedError:
            pass
        except NotFiniteError as error:
            if error.step != self._step:
                raise ConfigurationError(
                    replay_checks.ended_early(error.step, self._step, self._record)
                ) from error
        except Exception:
            if self._look is None or not self._look.error:
                raise

    def replayed(self, start_step: int, causes: Sequence[str], *, has_checkpoint: bool) -> Replayed:
        """Return what was found."""
        look = self._look
        if look is None:  # the data of the run ended before the step
            raise ConfigurationError(replay_checks.not_reached(self._step, self._stepper.step))
        if self._step == self._record.failed_step:
            fails = look.error or look.weights_after or self._is_bad(look.recorded_plan)
            detail = "" if fails else "the run ended here, and the replay is finite"
            self._checks.append(Check(self._step, "end", matches=bool(fails), detail=detail))
        return Replayed(
            run=self._run.directory,
            step=self._step,
            start_step=start_step,
            has_checkpoint=has_checkpoint,
            checks=tuple(self._checks),
            causes=tuple(causes),
            **{**vars(look), "notes": tuple(look.notes)},
        )

    # -- what the loop calls -------------------------------------------------------------------

    def start_epoch(self) -> None:
        """Reset the metrics of the epoch."""
        self._pass()
        self._stepper.start_epoch()

    def run_steps(self, steps: int) -> int:
        """Run that many steps, or the one to look into; fewer: the data of the epoch ended."""
        self._pass()
        stepper, bridge = self._stepper, self._leg.bridge
        if stepper.step + 1 == self._step:
            held, steps = stepper.next_step(), 1
            if held is None:
                return 0  # the data of the epoch has ended: the step is in the next one
            bridge.before_steps(stepper.steps_in_epoch)
            self._look = self._looked(held)
        else:
            bridge.before_steps(stepper.steps_in_epoch)
        ran = stepper.run_steps(steps)
        bridge.after_steps(stepper.recorded)
        self._compare_numbers()
        return ran

    def report(self) -> Metrics:
        """Return the metrics since the epoch began."""
        return self._stepper.report()

    def pending_events(self) -> Iterator[Event]:
        """Return nothing: these steps were reported when they first ran."""
        yield from ()

    def clock(self) -> float:
        """Return the time in seconds."""
        return self._leg.watch.clock()

    def validate(self) -> Metrics | None:
        """Return the scores that the run has recorded: nothing is scored again."""
        self._leg.bridge.before_validation()
        scores = self._record.scores.get(self._stepper.step, {})
        self._leg.bridge.after_validation(scores)
        return scores

    def is_best(self, step: int, scores: Metrics) -> bool:
        """Return False."""
        return False

    def save(self, place: Place, scores: Metrics, *, is_due: bool = True) -> None:
        """Save nothing."""

    def stop_requested(self) -> bool:
        """Return False."""
        return False

    def interrupted(self) -> bool:
        """Return False: Ctrl-C ends a replay at once."""
        return False

    # -- the record ----------------------------------------------------------------------------

    def _most_steps(self) -> int | None:
        """Return the steps to the next one that is compared or looked at."""
        here = self._stepper.step
        marks = {self._step - 1, self._step, *self._saved, *self._record.numbers}
        left = [mark - here for mark in marks if here < mark <= self._step]
        hooks = self._leg.bridge.steps_left()
        return min([*left, *([] if hooks is None else [hooks]), self._step + 1 - here])

    def _pass(self) -> None:
        """Compare the state where the run has a checkpoint; end when the step was run."""
        step = self._stepper.step
        if step in self._saved:
            self._saved.remove(step)
            checkpoint, snapshot = self._run.chosen(step)
            then = tensors.read(checkpoint.path / "state", snapshot.variables)
            self._checks.append(replay_checks.compared_state(step, then, self._named))
        if step >= self._step:
            raise _ArrivedError

    def _compare_numbers(self) -> None:
        step = self._stepper.step
        then = self._record.numbers.get(step)
        if then:
            self._checks.append(replay_checks.compared_numbers(step, then, self._stepper.report()))

    # -- the step ------------------------------------------------------------------------------

    def _looked(self, held: NextStep) -> _Look:
        leg, stepper, task = self._leg, self._stepper, self._leg.parts.task
        number = stepper.read.batches
        batch = step_look.look_at_batch(
            held.batch, stepper.batch_in_words(number), stepper.examples(number)
        )
        look = _Look(held.plan.in_words, batch, self._place.epoch, stepper.steps_in_epoch + 1)
        own = list(variables.named(task).values())
        put_back = hold_variables(own)
        before = [variable.read_value() for variable in own]
        look.weights_before = self._not_finite()
        self._run_by_plan(held, look)
        put_back()
        if leg.parts.strategy.num_replicas_in_sync > 1:
            look.notes.append("several replicas: layers and gradients are not shown")
            return look
        spec = None if leg.feed is None else leg.feed.batch_spec
        eager = leg.parts.compiled.alone("train_step", spec, WORDS["eager"])
        try:
            reset(task)
            look.eager = step_look.eager_look(task, eager, held.batch)
        except Exception as error:
            look.error = look.error or first_line(error)
        put_back()
        seen, plan_ran = look.eager, look.recorded_plan
        # Where kernels hide NaN from the loss, only the eager step shows where it begins.
        hides_nan = self._is_bad(seen) and not self._is_bad(plan_ran) and look.weights_after
        is_close = seen and plan_ran and step_look.are_close(plan_ran.numbers, seen.numbers)
        if seen and plan_ran and not is_close and not hides_nan:
            reset(task)
            one = leg.parts.compiled.alone("train_step", spec, held.plan)
            inside = step_look.plan_look(task, one, held.batch, held.plan)
            look.recorded_plan = replace(plan_ran, layers=inside.layers, gradients=inside.gradients)
            put_back()
        shown = look.recorded_plan if look.recorded_plan and look.recorded_plan.layers else seen
        is_bad = self._is_bad(plan_ran) or bool(look.weights_after)
        if seen is not None and (is_bad or (shown is not None and shown.not_finite)):
            # TensorFlow prints the tensors of the operation that it stops at.
            with quiet_start(drops_all=True):
                look.first_operation = first_operation(lambda: eager(held.batch), own, before)
        if self._uses_debugger:
            debugged(task, lambda: eager(held.batch))
        put_back()
        return look

    def _is_bad(self, look: StepLook | None) -> bool:
        return look is not None and not step_look.is_finite(look.numbers)

    def _run_by_plan(self, held: NextStep, look: _Look) -> None:
        """Run the step as the run did, and once more, to see its loss after the update."""
        task = self._leg.parts.task
        try:
            reset(task)
            look.recorded_plan = StepLook(step_look.step_numbers(task, held.run().outputs))
            after = self._not_finite()
            look.weights_after = tuple(n for n in after if n not in look.weights_before)
            reset(task)
            look.loss_after = step_look.losses(step_look.step_numbers(task, held.run().outputs))
        except Exception as error:
            look.error = first_line(error)

    def _not_finite(self) -> tuple[str, ...]:
        metrics = {id(v) for v in variables.metric_variables(self._leg.parts.task)}
        kept = {name: v for name, v in self._named.items() if id(v) not in metrics}
        found = tensors.non_finite(tensors.snapshot(kept))
        return tuple(name for name in found if name not in self._infinite)
