"""What a rehearsal does with one leg: its steps, its checkpoint, its scores, its images."""

import contextlib
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from loopwright.checkpoints.retention import require_measured
from loopwright.data.arrays import Arrays
from loopwright.data.reader import NOTHING_READ, StreamReader
from loopwright.engine.scorer import undisturbed
from loopwright.errors import message
from loopwright.events import ImagesDrawn
from loopwright.exactness import Inexact
from loopwright.fit.leg import Leg
from loopwright.fit.request import FitRequest
from loopwright.fit.resume import warn_of_no_validation
from loopwright.insight import planned_start, scratch_checkpoint
from loopwright.insight.last_batch import move_to_last, own_length
from loopwright.insight.planned_start import Planned
from loopwright.insight.rehearsal_report import in_rate
from loopwright.insight.stages import Stages
from loopwright.loop.clock import Pace
from loopwright.loop.schedule import Place
from loopwright.sinks.notify import attempted
from loopwright.sinks.tensorboard import HOME, TensorBoardFiles
from loopwright.step_warnings import warn_at_call

_STEPS = 3
_VALIDATION_BATCHES = 2
_SECONDS_TO_MEASURE = 1.0


@final
class RehearsedLeg:
    """The parts of a rehearsal that train and score with one leg."""

    def __init__(self, leg: Leg, planned: Planned, stages: Stages) -> None:
        self._leg, self._planned, self._stages = leg, planned, stages
        self._place = Place()

    def start(self, request: FitRequest) -> str:
        """Return where the real run begins; raise if it would be refused."""
        with self._stages.part("run", is_shown=False):
            return planned_start.described(self._leg, self._planned, request)

    def first_batches(self) -> None:
        """Run some steps, inside of an epoch if it is long enough."""
        length = self._leg.schedule.steps_per_epoch
        steps = _STEPS if length is None else max(1, min(_STEPS, length - 1))
        with self._stages.part("first batch") as note:
            self._leg.stepper.start_epoch()
            ran = self._leg.stepper.run_steps(steps)
            is_end = ran < steps or ran == length
            self._place = Place(step=ran, epoch=int(is_end), step_in_epoch=0 if is_end else ran)
            sizes = examples(self._leg)
            of = "" if sizes is None else f" of {sizes:,} examples"
            note(f"{ran} step{'s' if ran > 1 else ''}{of}: {_numbers(self._leg.stepper.report())}")

    def checkpoint(self) -> scratch_checkpoint.Written:
        """Write a checkpoint to a scratch directory, restore it and compare."""
        planned = self._planned
        with self._stages.part("checkpoint") as note:
            if planned.run is None:
                found = scratch_checkpoint.of_state(self._leg)
            else:
                found = scratch_checkpoint.resumed(
                    self._leg, planned.run, planned.leg, self._place, planned.exact
                )
            note(str(found))
        if found.repeats is False:
            warn_at_call(
                message(
                    "The step after a restored checkpoint had other bits than before.",
                    expected="the same bits: a resumed run ends like one without interruption",
                    received="a step that differs from itself",
                    do="look for Python state or operations that are not deterministic in the step",
                )
            )
        if found.reasons:
            warn_at_call(str(Inexact(found.reasons)))
        return found

    def last_batch(self) -> None:
        """Run a step on the last batch of an epoch, which may be smaller."""
        with self._stages.part("last batch", is_shown=False):
            reached = move_to_last(self._leg)
        if not reached.is_next:
            self._stages.leave_out("last batch", reached.words)
            return
        with self._stages.part("last batch") as note:
            self._leg.stepper.run_steps(1)
            size = _last_examples(self._leg)
            note(f"{reached.words}" + ("" if size is None else f", {size:,} examples"))

    def validation(self, request: FitRequest) -> float | None:
        """Score two batches of each set; return the seconds of a whole validation, if known."""
        planned, parts = self._planned, self._leg.parts
        if not request.sets:
            warn_of_no_validation(planned.run)
            self._stages.leave_out("validation", "no validation data")
            return None
        batches = min(_VALIDATION_BATCHES, request.validation_steps or _VALIDATION_BATCHES)
        scores, seconds = dict[str, Any](), list[float | None]()
        with self._stages.part("validation") as note:
            for name, data in request.sets.items():
                found = parts.scorer.score(data, batches, self._leg.agreement) or {}
                scores |= {f"{name}{key}": value for key, value in found.items()}
                began = time.perf_counter()  # compiled by now
                parts.scorer.score(data, batches, self._leg.agreement)
                each = (time.perf_counter() - began) / batches
                length = request.validation_steps or own_length(data)
                seconds.append(None if length is None else each * length)
            if planned.run is not None:
                require_measured(planned.run.asked_rules, scores)
            note(f"{batches} batches: {_numbers(scores)}")
        known = [each for each in seconds if each is not None]
        return sum(known) if len(known) == len(seconds) else None

    def images(self) -> None:
        """Draw the images of the task as TensorBoard gets them; a failure warns, as in a run."""
        parts, drawn = self._leg.parts, dict[str, Any]()
        with self._stages.part("images") as note:
            with attempted("Task.images", "drawn"), undisturbed(parts.task, parts.strategy):
                drawn |= parts.task.images()
            if drawn:
                with tempfile.TemporaryDirectory(prefix="loopwright-") as directory:
                    board = TensorBoardFiles(Path(directory) / HOME, time.time)
                    with attempted("The images of the task"), contextlib.closing(board):
                        board.draw(ImagesDrawn(self._leg.stepper.step, drawn))
            note(f"Task.images: {', '.join(drawn) or 'none'}")

    def speed(self) -> tuple[float, float]:
        """Return steps per second, and the share of the time that waits for data."""
        leg, watch = self._leg, self._leg.watch
        with self._stages.part("speed") as note:
            leg.read_again(NOTHING_READ)
            leg.stepper.start_epoch()
            self._run(1)  # the first batch waits for buffers to be filled
            pace, done, spent, waited = Pace(), 0, 0.0, watch.seconds["data wait"]
            compiled = watch.seconds["compile"]
            began = time.perf_counter()
            while not done or spent < _SECONDS_TO_MEASURE:
                call = time.perf_counter()
                ran = self._run(pace.at_most_steps)
                pace.add(steps=ran, seconds=time.perf_counter() - call)
                done += ran
                spent = time.perf_counter() - began
            spent -= watch.seconds["compile"] - compiled
            rate = done / max(spent, 1e-9)
            note(f"{done:,} steps, about {in_rate(rate)} per second")
        return rate, (watch.seconds["data wait"] - waited) / max(spent, 1e-9)

    def _run(self, steps: int) -> int:
        """Run steps, at most to the end of an epoch; then begin the next one."""
        stepper, length = self._leg.stepper, self._leg.schedule.steps_per_epoch
        asked = steps if length is None else min(steps, length - stepper.steps_in_epoch)
        ran = stepper.run_steps(asked)
        if ran < asked or stepper.steps_in_epoch == length:
            stepper.start_epoch()
        return ran


def examples(leg: Leg) -> int | None:
    """Return the examples in a whole batch; None if unknown."""
    data, reader = leg.request.data, leg.stepper.reader
    if isinstance(data, Arrays):
        return min(data.batch_size, len(data))
    return None if reader is None else reader.largest_batch


def _last_examples(leg: Leg) -> int | None:
    data, reader = leg.request.data, leg.stepper.reader
    if isinstance(data, Arrays):
        return len(data) % data.batch_size or min(data.batch_size, len(data))
    return min(reader.sizes, default=None) if isinstance(reader, StreamReader) else None


def _numbers(metrics: Mapping[str, Any]) -> str:
    plain = {name: value for name, value in metrics.items() if not getattr(value, "shape", ())}
    shown = [f"{name} {float(value):.4g}" for name, value in list(plain.items())[:3]]
    return ", ".join(shown) or "no numbers"
