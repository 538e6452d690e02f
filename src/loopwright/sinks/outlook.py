"""What a person wants to see of a whole run: how far it is, and whether it learns."""

import math
from collections.abc import Callable, Sequence
from typing import Any, final

from loopwright.checkpoints.retention import KeepBest, best_first
from loopwright.events import Event, PlanChosen, Saved, Started, Trained, Validated
from loopwright.sinks import progress_text

DEFAULT_RULE = KeepBest()
_BLOCKS = "▁▂▃▄▅▆▇█"
_MOST_COLUMNS = 32


@final
class Outlook:
    """Remembers of the events of a run what belongs beside its bar."""

    def __init__(
        self,
        clock: Callable[[], float],
        rule: KeepBest,
        best_before: Callable[[], tuple[float, int] | None],
    ) -> None:
        self._clock, self._rule, self._best_before = clock, rule, best_before
        self._since: tuple[float, int] | None = None
        """When the first steps were done, which compile, and the step then."""
        self._validations = list[float]()
        self._run = Started(0, None, None, None)
        self._followed = "loss"
        self._losses: list[float] = []
        self._each = 1
        """How many losses the mean of one column is of."""
        self._waiting: list[float] = []
        self._noted_step = -1
        self._best: tuple[float, int] | None = None
        self._saved_step: int | None = None
        self._plan = ""

    def hear(self, event: Event) -> None:
        """Hears an event; one that says nothing about the whole run changes nothing."""
        match event:
            case Started():
                self._run, self._since = event, None
                self._validations.clear()
                self._best = self._best_before()
            case Trained() if self._since is None:
                self._since = self._clock(), event.step
            case Validated():
                self._validations.append(event.seconds)
                score = _finite(event.metrics.get(self._rule.metric.removeprefix("val_")))
                if score is not None and self._is_better(score):
                    self._best = score, event.step
            case Saved():
                self._saved_step = event.step
            case PlanChosen():
                self._plan = event.plan
            case _:
                pass

    def _is_better(self, score: float) -> bool:
        rule, best = self._rule, self._best
        return best is None or best_first(score, rule) < best_first(best[0], rule)

    def note_loss(self, event: Trained) -> None:
        """Remembers the loss of a moment; the columns stay few, however many there were."""
        if self._followed not in event.metrics:  # of a GAN, say: the first number it reports
            self._followed = next(iter(event.metrics), self._followed)
        loss = _finite(event.metrics.get(self._followed))
        if loss is None or event.step == self._noted_step:
            return
        self._noted_step = event.step
        self._waiting.append(loss)
        if len(self._waiting) < self._each:
            return
        self._losses.append(sum(self._waiting) / len(self._waiting))
        self._waiting.clear()
        if len(self._losses) == _MOST_COLUMNS:
            pairs = zip(self._losses[::2], self._losses[1::2], strict=True)
            self._losses = [(one + other) / 2 for one, other in pairs]
            self._each *= 2

    def parts(self) -> list[progress_text.Part]:
        """How the loss went, the best so far, the last checkpoint, the plan."""
        parts = list[progress_text.Part]()
        if len(self._losses) > 1:
            parts.append(progress_text.Part(f"{self._followed} {sparkline(self._losses)}"))
        if self._best is not None:
            score, step = self._best
            best = f"best {self._rule.metric} {progress_text.number(score)} at step {step:,}"
            parts.append(progress_text.Part(best, "cyan"))
        if self._saved_step is not None:
            parts.append(progress_text.Part(f"saved at step {self._saved_step:,}", "dim"))
        if self._plan:
            parts.append(progress_text.Part(f"plan {self._plan}", "dim"))
        return parts

    def progress(self, event: Trained) -> tuple[int, int] | None:
        """Steps done and steps in all; None if the epoch is all there is, or nobody knows."""
        run = self._run
        if run.total_steps is None or run.epochs in (None, 1):
            return None
        return event.step - run.step + run.resumed_steps, run.total_steps

    def left(self, event: Trained) -> list[progress_text.Part]:
        """How far the run is, and how long it will take from here."""
        done, total = self.progress(event) or (0, 1)
        parts = [progress_text.Part(f"{done / total:.0%}")]
        seconds_per_step = self._seconds_per_step(event.step)
        if seconds_per_step is not None:
            seconds = (total - done) * seconds_per_step
            parts.append(progress_text.Part(f"{progress_text.clock_time(seconds)} left", "dim"))
        return parts

    def _seconds_per_step(self, step: int) -> float | None:
        """The mean so far, with validations and checkpoints; None while only compiling is known.

        The first steps and the first validation are compiled, which says nothing about the others.
        """
        if self._since is None or step <= self._since[1]:
            return None
        began_at, first_step = self._since
        first, *later = self._validations or [0.0]
        compiled = first - sum(later) / len(later) if later else first
        spent = self._clock() - began_at - max(0.0, compiled)
        return max(spent, 0.0) / (step - first_step)


def sparkline(values: Sequence[float]) -> str:
    """Numbers as a line of blocks.

    >>> sparkline([3.0, 2.0, 1.0, 0.5, 0.5])
    '█▅▂▁▁'
    """
    low, high = min(values), max(values)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((value - low) * scale)] for value in values)


def _finite(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
