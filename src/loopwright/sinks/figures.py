"""Figures in files, drawn by matplotlib without pyplot: no windows, no global state."""

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

from loopwright.errors import ConfigurationError, message
from loopwright.extras import imported
from loopwright.sinks.curves import Best, Curves
from loopwright.sinks.svg_charts import COLORS

_MOST_COLUMNS = 3
_MOST_PANELS = 30


def new(what: str, size: tuple[float, float] = (7, 4)) -> Any:
    """Return an empty figure; raise if matplotlib, which `what` needs, is not installed."""
    matplotlib = imported("plot", what, instead="use the numbers, which are there without it")
    from matplotlib.figure import Figure

    if Path(matplotlib.matplotlib_fname()).resolve().parent == Path.cwd():
        matplotlib.rcdefaults()  # the settings of a directory from elsewhere can start LaTeX

    @final
    class ShownFigure(Figure):
        """A figure that a notebook shows, also where pyplot was never imported."""

        def _repr_png_(self) -> bytes:
            drawn = io.BytesIO()
            self.savefig(drawn, format="png", dpi=100)
            return drawn.getvalue()

    return ShownFigure(figsize=size, layout="constrained")


def saved(figure: Any, path: Any) -> Any:
    """Return the figure; write it to a `.png`, `.pdf` or `.svg` file if there is a path."""
    if path is None:
        return figure
    target = Path(path)
    kind = target.suffix.lstrip(".").lower() or "png"
    drawn = io.BytesIO()
    try:
        figure.savefig(drawn, format=kind, dpi=100)
        target.write_bytes(drawn.getvalue())
    except (ValueError, OSError) as error:
        raise ConfigurationError(
            message(
                f"The figure cannot be written to {target}.",
                expected="a path that ends in .png, .pdf or .svg, in a directory that exists",
                received=str(error),
                do="pass another path",
            )
        ) from error
    return figure


def plotted(runs: Mapping[str, Curves], x_label: str, bests: Mapping[str, Best | None]) -> Any:
    """Return a figure with one panel for each metric, and the curves of every run in it.

    One run: a color for each line. Several: a color for each run, dashes for validation. The best
    validation of a run is marked by a dot in its panel, and by a line in the panels of one run.
    """
    titles = list(dict.fromkeys(metric for drawn in runs.values() for metric in drawn))
    titles = [title for title in titles if any(_lines(runs, title))]
    # A rate that never changes says nothing, unless it was asked for.
    titles = [title for title in titles if not _is_flat_rate(runs, title)] or titles
    titles = titles[:_MOST_PANELS]
    if not titles:
        raise ConfigurationError(
            message(
                "There are no numbers to plot.",
                expected="a training with at least one epoch or validation",
                received=", ".join(runs) or "no run",
                do="train first: Trainer.fit, or loopwright train",
            )
        )
    columns = min(_MOST_COLUMNS, len(titles))
    rows = math.ceil(len(titles) / columns)
    figure = new("A plot of curves", (4.6 * columns + 0.4, 3.4 * rows + 0.3 * (len(runs) > 1)))
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for panel, title in zip(panels, titles, strict=False):
        _draw(panel, title, runs, bests)
        panel.set_xlabel(x_label)
    for panel in panels[len(titles) :]:
        panel.set_axis_off()
    if len(runs) == 1:
        (best,) = bests.values()
        if best is not None:
            place = f"{x_label} {best.x:,.6g}"
            figure.suptitle(_text(f"best {best.metric} {best.score:.4g} at {place}"), fontsize=10)
    else:
        _legend_of_runs(figure, runs)
    return figure


def _lines(runs: Mapping[str, Curves], title: str) -> list[Any]:
    return [line for drawn in runs.values() for line in drawn.get(title, {}).values() if line]


def _is_flat_rate(runs: Mapping[str, Curves], title: str) -> bool:
    return title == "learning rate" and all(
        len({y for _, y in line}) == 1 for line in _lines(runs, title)
    )


def _draw(
    panel: Any, title: str, runs: Mapping[str, Curves], bests: Mapping[str, Best | None]
) -> None:
    from matplotlib.ticker import MaxNLocator

    is_single = len(runs) == 1
    for number, (run, drawn) in enumerate(runs.items()):
        lines = {name: line for name, line in drawn.get(title, {}).items() if line}
        for place, (name, points) in enumerate(lines.items()):
            xs, ys = zip(*points, strict=True)
            is_dashed = not is_single and name != "train" and len(lines) > 1
            panel.plot(
                xs,
                ys,
                label=_text(name),
                color=COLORS[(place if is_single else number) % len(COLORS)],
                linestyle="--" if is_dashed else "-",
                linewidth=1.6,
                marker="o" if len(points) <= 12 else None,
                markersize=3.5,
            )
        best = bests.get(run)
        if best is None or not lines:
            continue
        if is_single:
            panel.axvline(best.x, color="0.5", linewidth=1, linestyle=":", zorder=0)
        if best.metric == f"val_{title}":
            color = COLORS[list(lines).index("validation") if is_single else number % len(COLORS)]
            panel.plot([best.x], [best.score], "*", color=color, markersize=11, zorder=3)
    panel.set_title(_text(title), fontsize=11, loc="left", fontweight="bold")
    panel.grid(alpha=0.25)
    panel.spines[["top", "right"]].set_visible(False)
    panel.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
    if is_single and len(panel.get_legend_handles_labels()[0]) > 1:
        panel.legend(frameon=False, fontsize=9)


def _legend_of_runs(figure: Any, runs: Sequence[str] | Mapping[str, Any]) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=COLORS[number % len(COLORS)], label=_text(run))
        for number, run in enumerate(runs)
    ]
    handles.append(Line2D([], [], color="0.4", linestyle="--", label="validation"))
    handles.append(Line2D([], [], color="0.4", linestyle="", marker="*", label="best"))
    figure.legend(
        handles=handles, loc="outside upper center", ncols=min(5, len(handles)), frameon=False
    )


def _text(text: str) -> str:
    r"""Return a label that matplotlib draws as it is: a `$` would begin a formula.

    >>> print(_text("cost in $"), _text("_hidden").encode("ascii", "replace").decode())
    cost in \$ ?_hidden
    """
    shown = text if len(text) <= 60 else f"{text[:59]}…"
    # Labels that begin with an underscore are left out of legends.
    hidden = "\u200b" if shown.startswith("_") else ""
    return hidden + "".join(c if c.isprintable() else "?" for c in shown).replace("$", r"\$")
