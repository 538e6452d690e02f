"""What a rehearsal does with one leg: its steps, its checkpoint, its scores, its images."""

import contextlib
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from loopwright import disk
from loopwright.checkpoints import tensors
from loopwright.checkpoints.retention import require_measured
from loopwright.checkpoints.run_directory import Run
from loopwright.data.arrays import Arrays
from loopwright.data.readers import NOTHING_READ, CountedReader, Read, ResidentReader, StreamReader
from loopwright.data.source import Data
from loopwright.engine.scorer import undisturbed
from loopwright.errors import CheckpointError, DataError, message
from loopwright.events import ImagesDrawn
from loopwright.exactness import Exact, Inexact
from loopwright.fit.leg import Leg
from loopwright.fit.moment import put_back, require_resumable, taken
from loopwright.fit.request import FitRequest, accepted_data
from loopwright.fit.resume import warn_of_no_validation
from loopwright.fit.saved_leg import on_disk
from loopwright.insight.rehearsal_report import Stages, in_rate
from loopwright.loop.clock import Pace
from loopwright.loop.schedule import Place
from loopwright.sinks.notify import attempted
from loopwright.sinks.tensorboard import HOME, TensorBoardFiles
from loopwright.step_warnings import warn_at_call
from loopwright.task import variables

if TYPE_CHECKING:
    from loopwright.insight.rehearsal import Planned

_STEPS = 3
_VALIDATION_BATCHES = 2
_SECONDS_TO_MEASURE = 1.0


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
            ran = self._leg.stepper.run_steps(steps)
            is_end = ran < steps or ran == length
            self._place = Place(step=ran, epoch=int(is_end), step_in_epoch=0 if is_end else ran)
            sizes = examples(self._leg)
            of = "" if sizes is None else f" of {sizes:,} examples"
            note(f"{ran} step{'s' if ran > 1 else ''}{of}: {_numbers(self._leg.stepper.report())}")

    def checkpoint(self) -> "Written":
        """Write a checkpoint to a scratch directory, restore it and compare."""
        planned = self._planned
        with self._stages.part("checkpoint") as note:
            if planned.run is None:
                found = of_state(self._leg)
            else:
                found = resumed(self._leg, planned.run, planned.leg, self._place, planned.exact)
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
            is_next, words = move_to_last(self._leg)
        if not is_next:
            self._stages.leave_out("last batch", words)
            return
        with self._stages.part("last batch") as note:
            self._leg.stepper.run_steps(1)
            size = _last_examples(self._leg)
            note(words + ("" if size is None else f", {size:,} examples"))

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


MOST_SECONDS = 2.0
"""For reading a stream to its end."""


def move_to_last(leg: Leg, clock: Callable[[], float] = time.perf_counter) -> tuple[bool, str]:
    """Let a leg read the last batch of an epoch next; return whether it does, and which it is.

    The leg has trained already: its data is open. A stream is read for at most some seconds.
    """
    data, reader = leg.request.data, leg.stepper.reader
    if data is None or reader is None:
        return False, "the step takes no data"
    length = own_length(data) or _counted(data, clock)
    if length is None:
        why = f"the data is endless, or takes more than {MOST_SECONDS:g} s to read"
        return False, f"not reached: {why}"
    has_number = isinstance(reader, ResidentReader | CountedReader)
    leg.read_again(Read(batches=length - 1 if has_number else 0))
    leg.stepper.start_epoch()
    if not has_number and not _skipped(leg, length - 1, clock):
        return False, f"not reached: reading {length:,} batches takes too long"
    return True, f"{length:,} of {length:,}"


def own_length(data: Data) -> int | None:
    """Return how many batches the data has; None if it is not known, or if it is endless."""
    try:
        return data.one_pass(steps=None).steps_per_epoch
    except DataError:  # endless
        return None


def _counted(data: Data, clock: Callable[[], float]) -> int | None:
    """Return how many batches an epoch has, by reading it; None if that takes too long."""
    try:
        feed = data.one_pass(steps=None)
    except DataError:
        return None
    began, count = clock(), 0
    for _ in feed.dataset():
        count += 1
        if clock() - began > MOST_SECONDS:
            return None
    # What failed, or changed its shape, has ended early; training on it says more.
    is_whole = feed.failure() is None and feed.reopened() is None
    return count if is_whole and count else None


def _skipped(leg: Leg, batches: int, clock: Callable[[], float]) -> bool:
    """Skip batches, ever more at a time; return False if that takes too long."""
    reader = leg.stepper.reader
    if not isinstance(reader, StreamReader):
        return batches == 0
    began, done, some = clock(), 0, 1
    while done < batches:
        if clock() - began > MOST_SECONDS:
            return False
        some = min(2 * some, batches - done)
        reader.skip(some)
        done += some
    return True


@dataclass(frozen=True)
class Written:
    """A checkpoint that was written, restored and compared."""

    bytes: int
    variables: int
    repeats: bool | None = None
    """Whether the step after it had the same bits again; None: this was not tried."""
    reasons: tuple[str, ...] = ()
    """Why the run cannot be resumed exactly."""

    def __str__(self) -> str:
        text = f"written, restored, {self.variables} variables compared: the same bits"
        if self.repeats:
            text += "; so has the next step, run again"
        return text


def resumed(leg: Leg, run: Run, number: int, place: Place, exact: Exact) -> Written:
    """Save a leg as `fit` does, run a step, restore the leg, and run the step again.

    Where the data can only be read on, the step is not run again.
    """
    data = accepted_data(leg.request, exact)
    named, reasons = require_resumable(leg, exact)
    leg.inexact = data.with_reasons(reasons)
    leg.reasons = leg.inexact.reasons
    with tempfile.TemporaryDirectory(prefix="loopwright-") as directory:
        aside = Run(directory, run.rules)
        read, position = leg.stepper.position()
        held = tensors.snapshot(named) | leg.bridge.tensors() | position
        snapshot = taken(leg, number, place, {}, read, named, None, {}, {}, run.rules)
        with aside.opened(), aside.written():
            aside.save(snapshot, held, {}, sync=_nothing)
            aside.wait()
            found = aside.newest()
        if found is None:  # it was verified while it was read
            raise CheckpointError("The checkpoint that was just written is missing.")
        size = disk.bytes_in(found[0].path)
        before = tensors.snapshot(named)
        _next_step(leg, place)
        after = tensors.snapshot(named)
        saved, read_back = on_disk(found)
        leg.read_again(saved.read)
        put_back(leg, named, saved, read_back, exact)
        require_same_bits(before, tensors.snapshot(named))
        if leg.inexact:
            return Written(size, len(named), reasons=tuple(leg.reasons))
        _next_step(leg, place)
        repeats = not differing(after, tensors.snapshot(named))
    return Written(size, len(named), repeats)


def of_state(leg: Leg) -> Written:
    """Write the variables of a leg that has no run directory, read them back and compare."""
    before = tensors.snapshot(variables.named(leg.parts.task))
    with tempfile.TemporaryDirectory(prefix="loopwright-") as directory:
        tensors.write(Path(directory) / "state", before)
        size = disk.bytes_in(Path(directory))
        require_same_bits(before, tensors.read(Path(directory) / "state"))
    return Written(size, len(before))


def differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the names of tensors that are not the same to the bit.

    >>> import tensorflow as tf
    >>> differing({"a": tf.constant([0.0])}, {"a": tf.constant([-0.0])})
    ['a']
    """
    return [
        name
        for name, value in before.items()
        if name not in after or tensors.digest({"": value}) != tensors.digest({"": after[name]})
    ]


def require_same_bits(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Raise if a variable that was written is not read back as it was."""
    names = differing(before, after)
    if names:
        raise CheckpointError(
            message(
                "A checkpoint did not restore the state that it was written from.",
                expected="the same bits in every variable",
                received=f"others in {', '.join(variables.shortened(names))}",
                do="check the disk of the temporary directory (TMPDIR); if it is sound, report "
                "this with the task",
            )
        )


def _next_step(leg: Leg, place: Place) -> None:
    if place.step_in_epoch == 0:
        leg.stepper.start_epoch()
    leg.stepper.run_steps(1)


def _nothing() -> None:
    """Flush no files: this checkpoint refers to none."""
