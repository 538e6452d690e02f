"""The trials of a study as values, as a table, and as a page with Optuna's own plots."""

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from loopwright import disk
from loopwright.errors import first_line, printable
from loopwright.extras import install_command
from loopwright.search import optuna_study
from loopwright.search.optuna_study import OptunaStudy
from loopwright.search.study import is_led
from loopwright.sinks.progress_text import length_of_time
from loopwright.sinks.report import rendered

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
        """The parameters in one line, without the sections of their keys where that is clear.

        >>> Trial(0, "pruned", 0.5, {"a.rate": 0.00123, "b.rate": 1, "fit.epochs": 3}, 1).described
        'a.rate=0.00123 b.rate=1 epochs=3'
        """
        lasts = [key.rpartition(".")[2] for key in self.parameters]
        return " ".join(
            f"{last if lasts.count(last) == 1 else key}={_shown(value)}"
            for last, (key, value) in zip(lasts, self.parameters.items(), strict=True)
        )


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "null" if value is None else f"{value}"


def found_trials(study: OptunaStudy) -> list[Trial]:
    """Return the trials of a study in the order of their numbers."""
    found = list[Trial]()
    for trial in study.trials():
        state, spent = optuna_study.state_of(trial), trial.duration
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
    complete = [trial for trial in trials if trial.state == "complete" and trial.score is not None]
    return next(iter(ranked(complete, mode)), None)


def ranked(trials: Sequence[Trial], mode: str) -> list[Trial]:
    """Return trials with the best first: complete, pruned, running, failed."""
    states = ("complete", "pruned", "running", "failed")
    sign = -1 if mode == "max" else 1
    return sorted(trials, key=lambda t: (states.index(t.state), sign * (t.score or 0.0), t.number))


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


def _cells(trial: Trial) -> dict[str, Any]:
    return {
        "number": trial.number,
        "state": trial.state,
        "score": "" if trial.score is None else f"{trial.score:.6g}",
        "time": "" if trial.seconds is None else length_of_time(trial.seconds),
    }


def _drawn(found: Tuned) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("trial", "state", found.objective, "time"):
        table.add_column(name, justify="left" if name == "state" else "right", no_wrap=True)
    table.add_column("parameters", overflow="fold", ratio=1)
    best = found.best
    for trial in ranked(found.trials, found.mode)[:_MOST_ROWS]:
        what = f"{trial.described}: {trial.reason}" if trial.reason else trial.described
        style = "bold" if trial == best else "dim" if trial.state != "complete" else ""
        cells = map(str, [*_cells(trial).values(), what])
        table.add_row(*(Text(printable(cell), style) for cell in cells))
    return table


REPORT = "report.html"
_PLOTS = {
    "plot_optimization_history": "Scores in the order of the trials",
    "plot_intermediate_values": "Scores while the trials trained",
    "plot_param_importances": "Importance of the parameters",
    "plot_slice": "Score by parameter",
    "plot_parallel_coordinate": "Combinations",
    "plot_timeline": "Time",
}
_WITHOUT_NAME = ("plot_intermediate_values", "plot_timeline")
_LEAST_COMPLETE = {"plot_param_importances": 2, "plot_slice": 1, "plot_parallel_coordinate": 1}


def write_report(found: Tuned) -> Path:
    """Write `report.html` into the directory of a study."""
    plots, missing = _plots(found)
    library = ""
    if plots:
        from plotly.offline import get_plotlyjs

        library = get_plotlyjs()  # a part of the page: nothing is fetched
    best = found.best
    page = rendered(
        "study.html.jinja",
        figures=plots,
        library=library,
        name=f"Study {found.directory.name}",
        objective=found.objective,
        best=None if best is None else f"trial {best.number}: {found.objective} {best.score:.6g}",
        best_rows=[] if best is None else [(k, f"{v}") for k, v in best.parameters.items()],
        missing=missing,
        keys=list(found.trials[0].parameters) if found.trials else [],
        trials=[
            {
                **_cells(trial),
                "values": [_shown(value) for value in trial.parameters.values()],
                "reason": trial.reason,
                "is_best": trial == best,
            }
            for trial in ranked(found.trials, found.mode)
        ],
    )
    # Several processes may lead trials of one study, and end at the same time.
    disk.write_whole(found.directory, REPORT, page.encode(errors="replace"), shared=True)
    return found.directory / REPORT


def _plots(found: Tuned) -> tuple[list[dict[str, Any]], list[str]]:
    """Return Optuna's figures as JSON values, and why those that are missing are."""
    from optuna import visualization

    if not visualization.is_available():
        return [], [f"no plots: they need plotly, {install_command('tune')}"]
    complete = sum(trial.state == "complete" for trial in found.trials)
    drawn, missing = list[dict[str, Any]](), list[str]()
    for name, title in _PLOTS.items():
        if complete < _LEAST_COMPLETE.get(name, 0):
            missing.append(f"{title}: too few complete trials")
            continue
        options = {} if name in _WITHOUT_NAME else {"target_name": found.objective}
        try:
            # Optuna's notices of plots without data are kept off the terminal.
            with optuna_study.quiet(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                figure = getattr(visualization, name)(found.study, **options)
        except (ValueError, RuntimeError, ZeroDivisionError) as error:
            missing.append(f"{title}: {printable(first_line(error))}")
        else:
            # The page has a heading of its own for each plot.
            margin = {"t": 30, "l": 60, "r": 20, "b": 50}
            figure.update_layout(title=None, margin=margin, template="plotly")
            drawn.append({"title": title, "name": name, "figure": json.loads(figure.to_json())})
    return drawn, missing
