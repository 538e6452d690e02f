"""The report of a study: its trials and Optuna's own plots, in one self-contained page."""

import contextlib
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from loopwright import disk
from loopwright.errors import first_line, printable
from loopwright.extras import install_command
from loopwright.search.result import Tuned, ranked
from loopwright.sinks.page import rendered_figures
from loopwright.sinks.progress_text import length_of_time

REPORT = "report.html"
_PLOTS = {
    "plot_optimization_history": "Scores in the order of the trials",
    "plot_intermediate_values": "Scores while the trials trained",
    "plot_param_importances": "Importance of the parameters",
    "plot_slice": "Score by parameter",
    "plot_parallel_coordinate": "Combinations",
    "plot_timeline": "Time",
}
_LEAST_COMPLETE = {"plot_param_importances": 2, "plot_slice": 1, "plot_parallel_coordinate": 1}


def write_report(found: Tuned) -> Path:
    """Write `report.html` into the directory of a study."""
    plots, missing = _plots(found)
    best = found.best
    page = rendered_figures(
        "study.html.jinja",
        plots,
        library=_plotly(),
        name=f"Study {found.directory.name}",
        objective=found.objective,
        best=None if best is None else f"trial {best.number}: {found.objective} {best.score:.6g}",
        best_rows=[] if best is None else [(k, f"{v}") for k, v in best.parameters.items()],
        missing=missing,
        keys=list(found.trials[0].parameters) if found.trials else [],
        trials=[
            {
                "number": trial.number,
                "state": trial.state,
                "score": "" if trial.score is None else f"{trial.score:.6g}",
                "time": "" if trial.seconds is None else length_of_time(trial.seconds),
                "values": [_value(value) for value in trial.parameters.values()],
                "reason": trial.reason,
                "is_best": trial == best,
            }
            for trial in ranked(found.trials, found.mode)
        ],
    )
    # Several processes may lead trials of one study, and end at the same time.
    disk.write_whole(found.directory, REPORT, page.encode(errors="replace"), shared=True)
    return found.directory / REPORT


def _value(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else f"{value}"


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
        try:
            figure = _figure(getattr(visualization, name), found, name)
        except (ValueError, RuntimeError, ZeroDivisionError) as error:
            missing.append(f"{title}: {printable(first_line(error))}")
        else:
            drawn.append({"title": title, "name": name, "figure": figure})
    return drawn, missing


def _figure(plot: Callable[..., Any], found: Tuned, name: str) -> Any:
    takes_name = name in ("plot_intermediate_values", "plot_timeline")
    arguments = {} if takes_name else {"target_name": found.objective}
    with _without_notices():
        made = plot(found.study, **arguments)
    # The page has a heading of its own for each plot.
    made.update_layout(title=None, margin={"t": 30, "l": 60, "r": 20, "b": 50}, template="plotly")
    return json.loads(made.to_json())


@contextlib.contextmanager
def _without_notices() -> Iterator[None]:
    """Keep Optuna's notices of plots without data off the terminal."""
    from loopwright.search.optuna_study import quiet

    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _plotly() -> str:
    """Return the JavaScript of plotly, which is a part of the page: nothing is fetched."""
    try:
        from plotly.offline import get_plotlyjs
    except ModuleNotFoundError:
        return ""
    return get_plotlyjs()
