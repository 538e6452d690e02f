"""What the training loop calls in a leg: its steps and its stops, the same on all workers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from loopwright.data.source import Data
from loopwright.distribute.team import Agreement
from loopwright.engine.engine import Engine
from loopwright.engine.stepper import StepNumbers, Stepper
from loopwright.errors import NotFiniteError
from loopwright.events import BatchSkipped, Event, Metrics
from loopwright.fit.callbacks import Callbacks
from loopwright.loop.clock import Stopwatch
from loopwright.loop.schedule import Place
from loopwright.loop.train import Happened


class Checkpoints(ABC):
    """Where a leg saves, and what it goes back to."""

    @abstractmethod
    def save(self, place: Place, scores: Metrics, *, is_due: bool = True) -> None:
        """Save a checkpoint; not `is_due`: only because its scores are among the best."""

    def is_best(self, step: int, scores: Metrics) -> bool:
        """Return whether the scores after a step are worth a checkpoint."""
        return False

    def rolled_back(self, error: NotFiniteError) -> Happened:
        """Go back to a good state after a step that was not finite; raise the error if none is."""
        raise error


@final
class NoCheckpoints(Checkpoints):
    """Training in memory: nothing is saved."""

    def save(self, place: Place, scores: Metrics, *, is_due: bool = True) -> None:
        """Do nothing."""


@final
@dataclass(frozen=True)
class LegSteps:
    """Steps with the hooks of callbacks around them, after which all workers meet.

    Steps that are run again, to find the one that went wrong, have neither hooks nor events.
    """

    stepper: Stepper
    agreement: Agreement
    callbacks: Callbacks | None = None
    on_steps: Callable[[Sequence[StepNumbers]], None] = lambda numbers: None
    """Called with the numbers of each step, if they are recorded."""
    _skipped: list[BatchSkipped] = field(default_factory=list[BatchSkipped])

    def start_epoch(self) -> None:
        """Reset the metrics of the epoch."""
        self.stepper.start_epoch()

    def run_steps(self, steps: int) -> int:
        """Run that many steps; fewer mean that the data of the epoch ended."""
        if self.callbacks is not None:
            self.callbacks.before_steps(self.stepper.steps_in_epoch)
        ran = self.stepper.run_steps(steps)
        if self.callbacks is not None:
            self.callbacks.after_steps(ran.records)
        self.on_steps(ran.records)
        self._skipped.extend(ran.skipped)
        self.agreement.meet()
        return ran.steps

    def report(self) -> Metrics:
        """Return the metrics since the epoch began."""
        return self.stepper.report()

    def pending_events(self) -> Iterable[Event]:
        """Return the plans that were chosen and the batches that were skipped."""
        if self.callbacks is not None:
            yield from self.stepper.tuner.pending_events(self.stepper.step)
            yield from self._skipped
        self._skipped.clear()


@final
class Validation:
    """Scores the validation data of a leg."""

    def __init__(
        self,
        sets: Mapping[str, Data],
        steps: int | None,
        engine: Engine,
        callbacks: Callbacks,
        watch: Stopwatch,
    ) -> None:
        self._sets, self._steps, self._engine = sets, steps, engine
        self._callbacks, self._watch = callbacks, watch
        self.waited_seconds = 0.0
        """For how long validation waited for its data."""

    def build(self) -> None:
        """Trace the test step, so that a mistake in it shows before an hour of training."""
        for data in self._sets.values():
            if data.can_be_read_again:
                self._engine.build_test_step(data, self._steps)

    def scores(self, agreement: Agreement) -> dict[str, Any] | None:
        """Return the scores on all validation data; None if a signal arrived."""
        found: dict[str, Any] = {}
        inner = Stopwatch(self._watch.clock)
        try:
            with self._watch.timing("validation"):
                for name, data in self._sets.items():
                    on_batch = self._callbacks.on_test_batch
                    scores = self._engine.score(data, self._steps, agreement, on_batch, inner)
                    if scores is None:
                        return None
                    found |= {f"{name}{key}": value for key, value in scores.items()}
        finally:
            compiling = inner.seconds["compile"]
            self._watch.add("validation", -compiling)
            self._watch.add("compile", compiling)
            self.waited_seconds += inner.seconds["data wait"]
        return found


@final
@dataclass(frozen=True)
class LegStops:
    """What a leg does between steps; whatever decides anything is agreed by all workers."""

    agreement: Agreement
    checkpoints: Checkpoints
    callbacks: Callbacks | None = None
    validation: Validation | None = None
    recorded_scores: Callable[[], Metrics] = dict
    """What is known of a step that is run again: nothing is scored then."""

    def clock(self) -> float:
        """Return the time in seconds."""
        return self.agreement.clock()

    def validate(self) -> Metrics | None:
        """Return the scores on the validation data; None if a signal arrived."""
        if self.callbacks is None or self.validation is None:
            return self.recorded_scores()
        self.callbacks.before_validation()
        scores = self.validation.scores(self.agreement)
        self.callbacks.after_validation(scores)
        self.agreement.meet()
        return scores

    def is_best(self, step: int, scores: Metrics) -> bool:
        """Return whether the scores after a step are worth a checkpoint."""
        return self.agreement.any(self.checkpoints.is_best(step, scores))

    def save(self, place: Place, scores: Metrics, *, is_due: bool = True) -> None:
        """Save a checkpoint."""
        self.checkpoints.save(place, scores, is_due=is_due)
        self.agreement.meet()

    def stop_requested(self) -> bool:
        """Return whether a callback asked to stop training."""
        return self.agreement.any(self.callbacks is not None and self.callbacks.stop_requested())

    def interrupted(self) -> bool:
        """Return whether a signal arrived."""
        return self.agreement.interrupted()
