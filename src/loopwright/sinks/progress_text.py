"""The text of progress lines: parts that are joined, and wrapped between parts."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, final

from rich.cells import cell_len

from loopwright.checkpoints.retention import KeepBest, best_first
from loopwright.events import (
    BatchSkipped,
    EpochEnded,
    EpochStarted,
    Event,
    Finished,
    Metrics,
    Noted,
    PlanChosen,
    Saved,
    Started,
    Trained,
    Validated,
    epoch_logs,
)
from loopwright.sinks.curves import plain


@final
class Part(NamedTuple):
    """A part of a line, with its style in a terminal."""

    text: str
    style: str = ""


GAP, INDENT = " · ", "  "
_ENDINGS = {
    "complete": "done:",
    "stopped": "stopped by a callback after",
    "left": "ended by the caller after",
    "failed": "failed after",
    "interrupted": "interrupted after",
    "skipped": "already complete, skipped:",
}


@final
class RunLines:
    """The lines that a run leaves in a terminal, a log or a notebook."""

    def __init__(self) -> None:
        self.run = Started(0, None, None, None)
        self.unfinished: Trained | None = None
        """The last event of an epoch that has not ended."""
        self._validated: Validated | None = None
        """A validation without a line so far: the line of an epoch's end has its scores too."""
        self._recent: deque[tuple[float, int]] = deque(maxlen=20)
        self._rate: float | None = None

    def add(self, event: Event) -> list[list[Part]]:
        """Return the lines of an event."""
        match event:
            case Started():
                self.run, self.unfinished, self._validated, self._rate = event, None, None, None
                resumed = Part(f"resuming from step {event.step:,}", style="bold")
                return [[resumed]] if event.resumed_steps else []
            case EpochStarted():
                self._recent.clear()
                self.unfinished = Trained(event.step, event.epoch, 0, 0, 0.0, {})
                return []
            case Trained():
                self.unfinished = event
                return self._take_validated()
            case Validated():
                self._recent.clear()  # the rate of steps does not include validation
                lines, self._validated = self._take_validated(), event
                return lines
            case EpochEnded():
                self.unfinished = self._validated = None
                return [ended(self.run, event)]
            case PlanChosen():
                to_reproduce = Part(f"to reproduce: {event.repeat}", "dim")
                return [[Part(f"plan: {event.plan}"), Part(event.why, "dim"), to_reproduce]]
            case BatchSkipped():
                return [skipped(event)]
            case Noted():
                return [[Part(f"note: {event.text}", "yellow")]]
            case Finished():
                has_steps = self.unfinished is not None and self.unfinished.step_in_epoch
                lines = [self.current(with_rate=False)] if has_steps else []
                lines += [*self._take_validated(), [last(self.run, event), *spent(event)]]
                return [*lines, [Part(event.advice, "yellow")]] if event.advice else lines
            case _:
                return []

    def measure(self, now: float) -> None:
        """Measure the rate of steps; the first call after a pause, or to compile, begins it."""
        if self.unfinished is not None and self.unfinished.steps:
            self._recent.append((now, self.unfinished.step))
            (since, first), (until, last) = self._recent[0], self._recent[-1]
            if last > first and until > since:
                self._rate = (last - first) / (until - since)

    def current(self, *, with_rate: bool = True) -> list[Part]:
        """Return the line of the running epoch; its first part names the epoch."""
        return running(self.run, self.unfinished, self._rate if with_rate else None)

    def _take_validated(self) -> list[list[Part]]:
        event, self._validated = self._validated, None
        if event is None:
            return []
        scores = {f"val_{name}": value for name, value in event.metrics.items()}
        return [[Part(f"step {event.step}", style="dim"), *numbers(scores)]]


def running(run: Started, event: Trained | None, rate: float | None) -> list[Part]:
    """Return the line of a running epoch; its first part names the epoch."""
    if event is None:
        return []
    done, total = progress(run, event)
    parts = [_epoch(run, event.epoch), Part(_steps(done, total))]
    if rate:
        parts.append(Part(_rate(rate), "dim"))
        if total is not None:
            parts.append(Part(f"{clock_time(max(0, total - done) / rate)} left", "dim"))
    return parts + numbers(event.metrics)


def progress(run: Started, event: Trained) -> tuple[int, int | None]:
    """Return the steps done and all steps: of the run if it counts no epochs, or of the epoch."""
    if run.epochs is None and run.total_steps is not None:
        return event.step - run.step + run.resumed_steps, run.total_steps
    return event.step_in_epoch, run.steps_per_epoch


def ended(run: Started, event: EpochEnded) -> list[Part]:
    """Return the line of a complete epoch."""
    length = run.steps_per_epoch
    was_cut = length is not None and event.steps < length
    parts = [
        _epoch(run, event.epoch),
        Part(_steps(event.steps, length if was_cut else None), "dim"),
        Part(length_of_time(event.seconds), "dim"),
    ]
    if event.steps and event.seconds > 0:
        parts.append(Part(_rate(event.steps / event.seconds), "dim"))
    return parts + numbers(epoch_logs(event))


def last(run: Started, event: Finished) -> Part:
    """Return how the run ended."""
    steps = event.step - run.step + run.resumed_steps
    unit = "step" if steps == 1 else "steps"
    ending = "interrupted and saved after" if event.saved else _ENDINGS[event.reason]
    return Part(f"{ending} {steps:,} {unit} in {length_of_time(event.seconds)}")


def skipped(event: BatchSkipped) -> list[Part]:
    """Return the line of a skipped batch."""
    back = event.went_back_to_step
    rolled_back = "" if back is None else f"; rolled back to step {back:,}"
    text = f"skipped the batch of step {event.step:,}{rolled_back}"
    return [Part(text, style="yellow"), Part(event.batch)]


def spent(event: Finished) -> list[Part]:
    """Return the shares of a run's time, the largest first; nothing if it was not measured."""
    total = sum(event.spent.values())
    parts = sorted(event.spent.items(), key=lambda part: -part[1])
    shares = [(name, seconds / total) for name, seconds in parts if total and seconds > 0]
    shown = [f"{name} {share:.0%}" for name, share in shares if share >= 0.005]
    return [Part(f"time: {', '.join(shown)}", style="dim")] if shown else []


def _epoch(run: Started, epoch: int) -> Part:
    of = "" if run.epochs is None else f"/{run.epochs}"
    return Part(f"epoch {epoch + 1}{of}", style="bold")


def numbers(metrics: Metrics) -> list[Part]:
    """Return a part for each number: its name and its value."""
    return [
        Part(f"{name} {number(value)}", "cyan" if name.startswith("val_") else "")
        for name, value in metrics.items()
    ]


def _steps(done: int, total: int | None) -> str:
    if total is not None:
        return f"{done}/{total} steps"
    return f"{done} {'step' if done == 1 else 'steps'}"


def clock_time(seconds: float) -> str:
    """Return hours, minutes and seconds: `clock_time(125)` is 0:02:05."""
    return str(timedelta(seconds=round(seconds)))


def length_of_time(seconds: float) -> str:
    """Return a duration: `length_of_time(0.41)` is 0.41 s, `length_of_time(125)` is 0:02:05."""
    if seconds >= 60:
        return clock_time(seconds)
    return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"


def _rate(rate: float) -> str:
    if rate < 1:
        return f"{1 / rate:,.1f} s/step"
    return f"{rate:,.1f} steps/s" if rate < 10 else f"{rate:,.0f} steps/s"


def number(value: Any) -> str:
    """Return a metric in few characters.

    >>> [number(value) for value in (0.93, 1.3e-05, 123456.0, 7, [0.5, 0.25, 1.0, 0.0])]
    ['0.9300', '1.3e-05', '1.235e+05', '7', '[0.5 0.25 1 …]']
    """
    shape = tuple(getattr(value, "shape", ()))
    if len(shape) > 1:
        return f"[{'x'.join(map(str, shape))}]"
    try:
        if shape or isinstance(value, list | tuple):
            shown = [f"{float(item):.3g}" for item in value[:3]]
            return f"[{' '.join(shown + ['…'] * (len(value) > len(shown)))}]"
        if isinstance(value, int) and abs(value) < 1_000_000:
            return str(int(value))
        number = float(value)
    except (TypeError, ValueError):
        return " ".join(str(value).split())[:20]
    has_usual_size = 1e-3 <= abs(number) < 1e4 or number == 0
    return f"{number:#.4g}" if has_usual_size else f"{number:.4g}"


def columns(parts: Iterable[Part]) -> int:
    """Return the width of a line of these parts; a Chinese character takes two columns."""
    return sum(cell_len(part.text) + len(GAP) for part in parts) - len(GAP)


def wrapped(parts: Iterable[Part], room: int) -> list[list[Part]]:
    """Return lines of whole parts, at most `room` columns wide; the first is not indented.

    A part that is wider than `room` gets a line of its own.

    >>> parts = [Part("epoch 1"), Part("45 steps"), Part("loss 0.5"), Part("val_loss 0.7")]
    >>> [GAP.join(part.text for part in line) for line in wrapped(parts, room=20)]
    ['epoch 1 · 45 steps', 'loss 0.5', 'val_loss 0.7']
    """
    lines: list[list[Part]] = []
    used = room
    for part in parts:
        width = len(GAP) + cell_len(part.text)
        if used + width > room:
            used = len(INDENT) * bool(lines) - len(GAP)
            lines.append([])
        lines[-1].append(part)
        used += width
    return lines


DEFAULT_RULE = KeepBest()
_BLOCKS = "▁▂▃▄▅▆▇█"
_MOST_COLUMNS = 32


@final
class Outlook:
    """Collects what the bar shows about the whole run: losses, best score, checkpoint, plan."""

    def __init__(
        self,
        clock: Callable[[], float],
        rule: KeepBest,
        best_before: Callable[[], tuple[float, int] | None],
    ) -> None:
        self._clock, self._rule, self._best_before = clock, rule, best_before
        self._since: tuple[float, int] | None = None
        """Time and step after the first steps, whose time includes compiling."""
        self._validations = list[float]()
        self._run = Started(0, None, None, None)
        self._followed = "loss"
        self._losses: list[float] = []
        self._each = 1
        """How many losses are averaged in one column."""
        self._waiting: list[float] = []
        self._noted_step = -1
        self._best: tuple[float, int] | None = None
        self._saved_step: int | None = None
        self._plan = ""

    def update(self, event: Event) -> None:
        """Note what an event says about the whole run."""
        match event:
            case Started():
                self._run, self._since = event, None
                self._validations.clear()
                self._best = self._best_before()
            case Trained() if self._since is None:
                self._since = self._clock(), event.step
            case Validated():
                self._validations.append(event.seconds)
                score = plain(event.metrics.get(self._rule.metric.removeprefix("val_")))
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
        """Add a loss to the sparkline, whose number of columns is limited."""
        if self._followed not in event.metrics:  # for example a GAN: its first metric
            self._followed = next(iter(event.metrics), self._followed)
        loss = plain(event.metrics.get(self._followed))
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

    def parts(self) -> list[Part]:
        """Return the losses so far, the best score, the last checkpoint and the plan."""
        parts = list[Part]()
        if len(self._losses) > 1:
            parts.append(Part(f"{self._followed} {sparkline(self._losses)}"))
        if self._best is not None:
            score, step = self._best
            best = f"best {self._rule.metric} {number(score)} at step {step:,}"
            parts.append(Part(best, "cyan"))
        if self._saved_step is not None:
            parts.append(Part(f"saved at step {self._saved_step:,}", "dim"))
        if self._plan:
            parts.append(Part(f"plan {self._plan}", "dim"))
        return parts

    def progress(self, event: Trained) -> tuple[int, int] | None:
        """Return the steps done and all steps; None for a single epoch or an unknown length."""
        run = self._run
        if run.total_steps is None or run.epochs in (None, 1):
            return None
        return event.step - run.step + run.resumed_steps, run.total_steps

    def left(self, event: Trained) -> list[Part]:
        """Return the progress of the run in percent, and the time left."""
        done, total = self.progress(event) or (0, 1)
        parts = [Part(f"{done / total:.0%}")]
        seconds_per_step = self._seconds_per_step(event.step)
        if seconds_per_step is not None:
            seconds = (total - done) * seconds_per_step
            parts.append(Part(f"{clock_time(seconds)} left", "dim"))
        return parts

    def _seconds_per_step(self, step: int) -> float | None:
        """Return the mean so far, with validations and checkpoints; None during the first steps.

        The first steps and the first validation are left out, because they include compiling.
        """
        if self._since is None or step <= self._since[1]:
            return None
        began_at, first_step = self._since
        first, *later = self._validations or [0.0]
        compiled = first - sum(later) / len(later) if later else first
        spent = self._clock() - began_at - max(0.0, compiled)
        return max(spent, 0.0) / (step - first_step)


def sparkline(values: Sequence[float]) -> str:
    """Return numbers as a line of blocks.

    >>> sparkline([3.0, 2.0, 1.0, 0.5, 0.5])
    '█▅▂▁▁'
    """
    low, high = min(values), max(values)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((value - low) * scale)] for value in values)
