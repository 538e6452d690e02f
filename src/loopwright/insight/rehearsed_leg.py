"""What a rehearsal does with one leg: its steps, its checkpoint, its scores, its images."""

import contextlib
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from loopwright import disk
from loopwright.checkpoints import tensors
from loopwright.checkpoints.retention import require_measured
from loopwright.checkpoints.run_directory import Run
from loopwright.data.arrays import Arrays
from loopwright.data.readers import NOTHING_READ, Read, StreamReader
from loopwright.data.source import Data
from loopwright.dispatch import attempted
from loopwright.errors import CheckpointError, DataError, message
from loopwright.events import ImagesDrawn, Trained
from loopwright.exactness import Inexact
from loopwright.fit.leg import Leg
from loopwright.fit.moment import require_resumable
from loopwright.fit.request import FitRequest, accepted_data
from loopwright.fit.resume import warn_of_no_validation
from loopwright.fit.saved_leg import on_disk
from loopwright.insight.rehearsal_report import Stages, in_rate
from loopwright.insight.scratch import apply, capture
from loopwright.loop.schedule import Place
from loopwright.sinks.tensorboard import HOME, TensorBoardFiles
from loopwright.step_warnings import warn_at_call
from loopwright.task import variables
from loopwright.task.state import undisturbed

if TYPE_CHECKING:
    from loopwright.insight.rehearsal import Planned

_STEPS = 3
_VALIDATION_BATCHES = 2
_SECONDS_TO_MEASURE, _MOST_STEPS = 1.0, 10**9
_MOST_SECONDS = 2.0
"""For reading a stream to its end."""


@final
class RehearsedLeg:
    """The parts of a rehearsal that train and score with one leg."""

    def __init__(self, leg: Leg, planned: "Planned", stages: Stages) -> None:
        self._leg, self._planned, self._stages = leg, planned, stages
        self._place = Place()

    def first_batches(self) -> None:
        """Run some steps, inside of an epoch if it is long enough."""
        length = self._leg.schedule.steps_per_epoch
        steps = _STEPS if length is None else max(1, min(_STEPS, length - 1))
        with self._stages.part("first batch") as note:
            self._leg.stepper.start_epoch()
            ran = self._leg.stepper.run_steps(steps).steps
            is_end = ran < steps or ran == length
            self._place = Place(step=ran, epoch=int(is_end), step_in_epoch=0 if is_end else ran)
            size = examples(self._leg)
            of = "" if size is None else f" of {size:,} examples"
            note(f"{ran} step{'s' if ran > 1 else ''}{of}: {_numbers(self._leg.stepper.report())}")

    def checkpoint(self) -> int:
        """Write a checkpoint to a scratch directory, restore it, compare; return its bytes.

        Without a run directory only the variables are written and read back.
        """
        with (
            self._stages.part("checkpoint") as note,
            tempfile.TemporaryDirectory(prefix="loopwright-") as directory,
        ):
            run = self._planned.run
            if run is not None:
                return self._resume(Run(directory, run.rules), note)
            values = tensors.snapshot(variables.named(self._leg.parts.task))
            tensors.write(Path(directory) / "state", values)
            _require_same_bits(values, tensors.read(Path(directory) / "state"))
            note(_compared(values))
            return disk.bytes_in(Path(directory))

    def _resume(self, aside: Run, note: Callable[[str], None]) -> int:
        """Save as `fit` does, run a step, restore, and run the step again.

        Where the data can only be read on, the step is not run again.
        """
        leg, exact = self._leg, self._planned.exact
        data = accepted_data(leg.request, exact)
        named, reasons = require_resumable(leg, exact)
        leg.inexact = data.with_reasons(reasons)
        leg.reasons = leg.inexact.reasons
        snapshot, held = capture(leg, named, self._place)
        with aside.opened(), aside.written():
            aside.save(snapshot, held, {}, sync=lambda: None)
            aside.wait()
        saved = aside.chosen("last")
        before = tensors.snapshot(named)
        self._run_next_step()
        after = tensors.snapshot(named)
        apply(leg, named, on_disk(saved))
        _require_same_bits(before, tensors.snapshot(named))
        if leg.inexact:
            note(_compared(named))
            warn_at_call(str(Inexact(tuple(leg.reasons))))
            return disk.bytes_in(saved[0].path)
        self._run_next_step()
        repeats = not tensors.differing(after, tensors.snapshot(named))
        note(_compared(named) + "; so has the next step, run again" * repeats)
        if not repeats:
            warn_at_call(
                message(
                    "The step after a restored checkpoint had other bits than before.",
                    expected="the same bits: a resumed run ends like one without interruption",
                    received="a step that differs from itself",
                    do="look for Python state or operations that are not deterministic in the step",
                )
            )
        return disk.bytes_in(saved[0].path)

    def _run_next_step(self) -> None:
        if self._place.step_in_epoch == 0:
            self._leg.stepper.start_epoch()
        self._leg.stepper.run_steps(1)

    def last_batch(self) -> None:
        """Run a step on the last batch of an epoch, which may be smaller."""
        with self._stages.part("last batch", is_shown=False):
            length, why = _move_to_last(self._leg)
        if length is None:
            self._stages.leave_out("last batch", why)
            return
        with self._stages.part("last batch") as note:
            self._leg.stepper.run_steps(1)
            size = examples(self._leg, is_last=True)
            note(f"{length:,} of {length:,}" + ("" if size is None else f", {size:,} examples"))

    def validation(self, request: FitRequest) -> float | None:
        """Score two batches of each set; return the seconds of a whole validation, if known."""
        planned, leg = self._planned, self._leg
        if not request.sets:
            warn_of_no_validation(planned.run)
            self._stages.leave_out("validation", "no validation data")
            return None
        batches = min(_VALIDATION_BATCHES, request.validation_steps or _VALIDATION_BATCHES)
        scores, seconds = dict[str, Any](), list[float | None]()
        with self._stages.part("validation") as note:
            for name, data in request.sets.items():
                found = leg.parts.engine.score(data, batches, leg.agreement) or {}
                scores |= {f"{name}{key}": value for key, value in found.items()}
                began = time.perf_counter()  # compiled by now
                leg.parts.engine.score(data, batches, leg.agreement)
                batch_seconds = (time.perf_counter() - began) / batches
                length = request.validation_steps or _length(data)
                seconds.append(None if length is None else batch_seconds * length)
            if planned.run is not None:
                require_measured(planned.run.asked_rules, scores)
            note(f"{batches} batches: {_numbers(scores)}")
        known = [each for each in seconds if each is not None]
        return sum(known) if len(known) == len(seconds) else None

    def images(self) -> None:
        """Draw the images of the task as TensorBoard gets them; a failure warns, as in a run."""
        parts, drawn = self._leg.parts, dict[str, Any]()
        with self._stages.part("images") as note:
            with attempted("Task.images", "drawn"), undisturbed(parts.task):
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
            events = (event for event, _, _ in leg.replayed(Place(), _MOST_STEPS))
            trained = (event for event in events if isinstance(event, Trained))
            next(trained)  # the first batch waits for buffers to be filled
            done, before, began = 0, dict(watch.seconds), time.perf_counter()
            for event in trained:
                done += event.steps
                if time.perf_counter() - began > _SECONDS_TO_MEASURE:
                    break
            spent = time.perf_counter() - began
            spent = max(spent - (watch.seconds["compile"] - before["compile"]), 1e-9)
            rate = done / spent
            note(f"{done:,} steps, about {in_rate(rate)} per second")
        return rate, (watch.seconds["data wait"] - before["data wait"]) / spent


def examples(leg: Leg, *, is_last: bool = False) -> int | None:
    """Return the examples in a whole batch, or in the last one of an epoch; None if unknown."""
    data, reader = leg.request.data, leg.stepper.reader
    if isinstance(data, Arrays):
        rest = len(data) % data.batch_size if is_last else 0
        return rest or min(data.batch_size, len(data))
    sizes = reader.sizes if isinstance(reader, StreamReader) else ()
    return min(sizes, default=None) if is_last else max(sizes, default=None)


def _numbers(metrics: Mapping[str, Any]) -> str:
    plain = {name: value for name, value in metrics.items() if not getattr(value, "shape", ())}
    shown = [f"{name} {float(value):.4g}" for name, value in list(plain.items())[:3]]
    return ", ".join(shown) or "no numbers"


def _move_to_last(leg: Leg) -> tuple[int | None, str]:
    """Let a leg read the last batch of an epoch next; return which it is, or None and why not.

    The leg has trained already: its data is open. A stream is read for at most some seconds.
    """
    data, reader = leg.request.data, leg.stepper.reader
    if data is None or reader is None:
        return None, "the step takes no data"
    is_number = reader.survives_failure  # the position is the number of batches, and nothing else
    length = (_length(data) if is_number else None) or _length(data, counts=True)
    if length is None:
        why = f"the data is endless, or takes more than {_MOST_SECONDS:g} s to read"
        return None, f"not reached: {why}"
    leg.read_again(Read(batches=length - 1 if is_number else 0))
    leg.stepper.start_epoch()
    if not is_number and leg.stepper.reader is not None:
        leg.stepper.reader.skip(length - 1)
    return length, ""


def _length(data: Data, *, counts: bool = False) -> int | None:
    """Return how many batches the data has; None if it is not known, or if it is endless.

    `counts`: by reading it, which may take too long.
    """
    try:
        feed = data.one_pass(steps=None)
    except DataError:  # endless
        return None
    if not counts:
        return feed.steps_per_epoch
    began, count = time.perf_counter(), 0
    for _ in feed.dataset():
        count += 1
        if time.perf_counter() - began > _MOST_SECONDS:
            return None
    # What failed, or changed its shape, has ended early; training on it says more.
    is_whole = feed.failure() is None and feed.reopened() is None
    return count if is_whole and count else None


def _compared(values: Mapping[str, Any]) -> str:
    return f"written, restored, {len(values)} variables compared: the same bits"


def _require_same_bits(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Raise if a variable that was written is not read back as it was."""
    names = tensors.differing(before, after)
    if names:
        raise CheckpointError(
            "A checkpoint did not restore the state that it was written from.",
            expected="the same bits in every variable",
            received=f"others in {', '.join(variables.shortened(names))}",
            do="check the disk of the temporary directory (TMPDIR); if it is sound, report "
            "this with the task",
        )
