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
from loopwright.checkpoints.snapshot import load
from loopwright.data.arrays import Arrays
from loopwright.data.readers import StreamReader
from loopwright.data.source import Data
from loopwright.dispatch import attempted
from loopwright.errors import CheckpointError, DataError, message
from loopwright.events import ImagesDrawn
from loopwright.fit.request import FitRequest
from loopwright.fit.resume import warn_of_no_validation
from loopwright.fit.session import Session
from loopwright.insight.rehearsal_report import Stages, in_rate
from loopwright.loop.schedule import NOTHING_READ, Read
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
    """The parts of a rehearsal that train and score with one session."""

    def __init__(self, session: Session, planned: "Planned", stages: Stages) -> None:
        self._session, self._planned, self._stages = session, planned, stages

    def first_batches(self) -> None:
        """Run some steps, inside of an epoch if it is long enough."""
        length = self._session.schedule.steps_per_epoch
        steps = _STEPS if length is None else max(1, min(_STEPS, length - 1))
        with self._stages.part("first batch") as note:
            self._session.stepper.start_epoch(self._session.position)
            ran = self._session.run(steps)
            size = examples(self._session)
            of = "" if size is None else f" of {size:,} examples"
            numbers = _numbers(self._session.report())
            note(f"{ran} step{'s' if ran > 1 else ''}{of}: {numbers}")

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
            values = tensors.snapshot(variables.named(self._session.parts.task))
            tensors.write(Path(directory) / "state", values)
            _require_same_bits(values, tensors.read(Path(directory) / "state"))
            note(_compared(values))
            return disk.bytes_in(Path(directory))

    def _resume(self, aside: Run, note: Callable[[str], None]) -> int:
        """Save as `fit` does, run a step, restore, and run the step again.

        Where the data can only be read on, the step is not run again.
        """
        session = self._session
        named = session.named
        snapshot = session.capture(session.position, {})
        with aside.opened(), aside.written():
            aside.save(snapshot, {}, sync=lambda: None)
            aside.wait()
        saved = aside.chosen("last")
        before = tensors.snapshot(named)
        self._run_next_step()
        after = tensors.snapshot(named)
        session.seek(saved[1].position.read)
        session.apply(load(saved))
        _require_same_bits(before, tensors.snapshot(named))
        if session.exactness:
            note(_compared(named))
            warn_at_call(str(session.exactness))
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
        for _ in self._session.run_quietly(1):
            pass

    def last_batch(self) -> None:
        """Run a step on the last batch of an epoch, which may be smaller."""
        with self._stages.part("last batch", is_shown=False):
            length, why = _move_to_last(self._session)
        if length is None:
            self._stages.leave_out("last batch", why)
            return
        with self._stages.part("last batch") as note:
            self._session.run(1)
            size = examples(self._session, is_last=True)
            note(f"{length:,} of {length:,}" + ("" if size is None else f", {size:,} examples"))

    def validation(self, request: FitRequest) -> float | None:
        """Score two batches of each set; return the seconds of a whole validation, if known."""
        planned, session = self._planned, self._session
        if not request.sets:
            warn_of_no_validation(planned.run)
            self._stages.leave_out("validation", "no validation data")
            return None
        batches = min(_VALIDATION_BATCHES, request.validation_steps or _VALIDATION_BATCHES)
        scores, seconds = dict[str, Any](), list[float | None]()
        with self._stages.part("validation") as note:
            for name, data in request.sets.items():
                found = session.parts.engine.score(data, batches, session.agreement) or {}
                scores |= {f"{name}{key}": value for key, value in found.items()}
                began = time.perf_counter()  # compiled by now
                session.parts.engine.score(data, batches, session.agreement)
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
        parts, drawn = self._session.parts, dict[str, Any]()
        with self._stages.part("images") as note:
            with attempted("Task.images", "drawn"), undisturbed(parts.task):
                drawn |= parts.task.images()
            if drawn:
                with tempfile.TemporaryDirectory(prefix="loopwright-") as directory:
                    board = TensorBoardFiles(Path(directory) / HOME, time.time)
                    with attempted("The images of the task"), contextlib.closing(board):
                        board.draw(ImagesDrawn(self._session.step, drawn))
            note(f"Task.images: {', '.join(drawn) or 'none'}")

    def speed(self) -> tuple[float, float]:
        """Return steps per second, and the share of the time that waits for data."""
        session, watch = self._session, self._session.watch
        with self._stages.part("speed") as note:
            session.seek(NOTHING_READ)
            calls = session.run_quietly(_MOST_STEPS)
            next(calls)  # the first batch waits for buffers to be filled
            done, before, began = 0, dict(watch.seconds), time.perf_counter()
            for steps in calls:
                done += steps
                if time.perf_counter() - began > _SECONDS_TO_MEASURE:
                    break
            spent = time.perf_counter() - began
            spent = max(spent - (watch.seconds["compile"] - before["compile"]), 1e-9)
            rate = done / spent
            note(f"{done:,} steps, about {in_rate(rate)} per second")
        return rate, (watch.seconds["data wait"] - before["data wait"]) / spent


def examples(session: Session, *, is_last: bool = False) -> int | None:
    """Return the examples in a whole batch, or in the last one of an epoch; None if unknown."""
    data, reader = session.request.data, session.stepper.reader
    if isinstance(data, Arrays):
        rest = len(data) % data.batch_size if is_last else 0
        return rest or min(data.batch_size, len(data))
    sizes = reader.sizes if isinstance(reader, StreamReader) else ()
    return min(sizes, default=None) if is_last else max(sizes, default=None)


def _numbers(metrics: Mapping[str, Any]) -> str:
    plain = {name: value for name, value in metrics.items() if not getattr(value, "shape", ())}
    shown = [f"{name} {float(value):.4g}" for name, value in list(plain.items())[:3]]
    return ", ".join(shown) or "no numbers"


def _move_to_last(session: Session) -> tuple[int | None, str]:
    """Let a leg read the last batch of an epoch next; return which it is, or None and why not.

    The leg has trained already: its data is open. A stream is read for at most some seconds.
    """
    data, reader = session.request.data, session.stepper.reader
    if data is None or reader is None:
        return None, "the step takes no data"
    is_number = reader.survives_failure  # the position is the number of batches, and nothing else
    length = (_length(data) if is_number else None) or _length(data, counts=True)
    if length is None:
        why = f"the data is endless, or takes more than {_MOST_SECONDS:g} s to read"
        return None, f"not reached: {why}"
    session.seek(Read(batches=length - 1 if is_number else 0))
    session.stepper.start_epoch(session.position)
    if not is_number and session.stepper.reader is not None:
        session.stepper.reader.skip(length - 1)
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
