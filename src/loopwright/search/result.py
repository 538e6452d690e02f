"""The trials of a study as values, and as a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from loopwright.errors import printable
from loopwright.search import optuna_study
from loopwright.search.study import is_better, is_led
from loopwright.sinks.progress_text import length_of_time

if TYPE_CHECKING:
    import optuna

_MOST_ROWS = 30


@final
@dataclass(frozen=True)
class Trial:
    """One training of a study."""

    number: int
    state: optuna_study.State
    score: float | None
    """The objective; of a pruned trial its last score, of a failed one None."""
    parameters: dict[str, Any]
    """The values that were chosen, by their keys in the config."""
    seconds: float | None
    reason: str = ""
    """Why it failed."""

    @property
    def described(self) -> str:
        """The parameters in one line, without the sections of their keys.

        >>> Trial(0, "complete", 0.5, {"optimizer.learning_rate": 0.00123}, 1.0).described
        'learning_rate=0.00123'
        """
        return " ".join(
            f"{name}={_shown(self.parameters[key])}" for key, name in short(self.parameters)
        )


def short(keys: Any) -> list[tuple[str, str]]:
    """Return keys with their last parts, as long as these differ.

    >>> short(["model.rate", "data.rate", "fit.epochs"])
    [('model.rate', 'model.rate'), ('data.rate', 'data.rate'), ('fit.epochs', 'epochs')]
    """
    lasts = [key.rpartition(".")[2] for key in keys]
    return [
        (key, last if lasts.count(last) == 1 else key)
        for key, last in zip(keys, lasts, strict=True)
    ]


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "null" if value is None else f"{value}"


def found_trials(study: "optuna.Study") -> list[Trial]:
    """Return the trials of a study in the order of their numbers."""
    found = list[Trial]()
    for trial in study.get_trials(deepcopy=False):
        state = optuna_study.state_of(trial)
        spent = trial.duration
        found.append(
            Trial(
                trial.number,
                state,
                trial.value if state in ("complete", "pruned") else None,
                dict(trial.params),
                None if spent is None else spent.total_seconds(),
                str(trial.user_attrs.get(optuna_study.REASON, "")) if state == "failed" else "",
            )
        )
    return found


def best_of(trials: Sequence[Trial], mode: str) -> Trial | None:
    """Return the complete trial with the best score; of several the first."""
    best: Trial | None = None
    for trial in trials:
        if trial.state != "complete" or trial.score is None:
            continue
        if best is None or best.score is None or is_better(trial.score, best.score, mode):
            best = trial
    return best


def ranked(trials: Sequence[Trial], mode: str) -> list[Trial]:
    """Return trials with the best first: complete, pruned, running, failed."""
    states = ("complete", "pruned", "running", "failed")
    sign = -1 if mode == "max" else 1

    def rank(trial: Trial) -> tuple[int, float, int]:
        return states.index(trial.state), sign * (trial.score or 0.0), trial.number

    return sorted(trials, key=rank)


@final
@dataclass(frozen=True)
class Tuned:
    """What `tune` returns: the trials of a study, the best of them, Optuna's study."""

    directory: Path
    objective: str
    mode: str
    trials: list[Trial]
    study: Any
    """The `optuna.Study`, for everything that Optuna can do with it."""

    @property
    def best(self) -> Trial | None:
        """The trial with the best score; None if none is complete."""
        return best_of(self.trials, self.mode)

    @property
    def best_config(self) -> Path | None:
        """The config of the best trial, as a YAML file; None if there is none."""
        return None if self.best is None else self.directory / "best.yaml"

    @property
    def table(self) -> list[dict[str, Any]]:
        """A row for each trial, the best first; `pandas.DataFrame(found.table)` is a data frame."""
        return [
            {
                "trial": trial.number,
                "state": trial.state,
                self.objective: trial.score,
                "seconds": trial.seconds,
                **trial.parameters,
                "reason": trial.reason,
            }
            for trial in ranked(self.trials, self.mode)
        ]

    def print(self, output: Console) -> None:
        """Print the table and the files."""
        output.print(_drawn(self))
        if len(self.trials) > _MOST_ROWS:
            output.out(f"... and {len(self.trials) - _MOST_ROWS} more in report.html")
        best, count = self.best, len(self.trials)
        states = [trial.state for trial in self.trials]
        known = ("complete", "pruned", "failed", "running")
        counted = [f"{states.count(state)} {state}" for state in known if state in states]
        output.out(f"{count} trials: {', '.join(counted)}", highlight=False)
        for trial in self.trials:
            if trial.state == "running":
                other = "another command is still training it"
                left = "interrupted; run the same command again to resume it"
                text = other if is_led(self.directory, trial.number) else left
                output.out(f"trial {trial.number}: {text}", highlight=False)
        if best is not None:
            output.out(f"best: trial {best.number}, {self.objective} {best.score:.6g}")
            for key, value in best.parameters.items():
                output.out(printable(f"  {key}={_shown(value)}"), highlight=False)
            output.out(f"  train it again: loopwright train {self.best_config}", highlight=False)

    def __str__(self) -> str:
        console = Console(width=80, color_system=None)
        with console.capture() as captured:
            self.print(console)
        return captured.get().rstrip()


def _drawn(found: Tuned) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("trial", "state", found.objective, "time"):
        table.add_column(name, justify="left" if name == "state" else "right", no_wrap=True)
    table.add_column("parameters", overflow="fold", ratio=1)
    best = found.best
    for trial in ranked(found.trials, found.mode)[:_MOST_ROWS]:
        what = f"{trial.described}: {trial.reason}" if trial.reason else trial.described
        cells = [
            str(trial.number),
            trial.state,
            "" if trial.score is None else f"{trial.score:.6g}",
            "" if trial.seconds is None else length_of_time(trial.seconds),
            what,
        ]
        style = "bold" if trial == best else "dim" if trial.state != "complete" else ""
        table.add_row(*(Text(printable(cell), style) for cell in cells))
    return table
