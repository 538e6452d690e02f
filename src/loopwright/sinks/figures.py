"""Figures in files, drawn by matplotlib without pyplot: no windows, no global state."""

import io
import itertools
import math
from pathlib import Path
from typing import Any, final

from loopwright.errors import ConfigurationError, message
from loopwright.extras import imported
from loopwright.sinks.curves import Best, Curves
from loopwright.sinks.report import Lines
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


def plotted(drawn: Curves, x_label: str, best: Best | None) -> Any:
    """Return a figure with one panel for each metric; the best validation is marked in each."""
    titles = [title for title, lines in drawn.items() if any(lines.values())][:_MOST_PANELS]
    if not titles:
        raise ConfigurationError(
            message(
                "There are no numbers to plot.",
                expected="a training with at least one epoch or validation",
                received="no numbers",
                do="train first: Trainer.fit, or loopwright train",
            )
        )
    columns = min(_MOST_COLUMNS, len(titles))
    rows = math.ceil(len(titles) / columns)
    figure = new("A plot of curves", (4.6 * columns + 0.4, 3.4 * rows))
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for panel, title in zip(panels, titles, strict=False):
        _draw(panel, title, {name: line for name, line in drawn[title].items() if line}, best)
        panel.set_xlabel(x_label)
    for panel in panels[len(titles) :]:
        panel.set_axis_off()
    if best is not None:
        place = f"{x_label} {best.x:,.6g}"
        figure.suptitle(_text(f"best {best.metric} {best.score:.4g} at {place}"), fontsize=10)
    return figure


def _draw(panel: Any, title: str, lines: Lines, best: Best | None) -> None:
    from matplotlib.ticker import MaxNLocator

    for (name, points), color in zip(lines.items(), itertools.cycle(COLORS), strict=False):
        xs, ys = zip(*points, strict=True)
        marker = "o" if len(points) <= 12 else None
        panel.plot(
            xs, ys, label=_text(name), color=color, linewidth=1.6, marker=marker, markersize=3.5
        )
    if best is not None:
        panel.axvline(best.x, color="0.5", linewidth=1, linestyle=":", zorder=0)
        if best.metric == f"val_{title}":
            color = COLORS[list(lines).index("validation")]
            panel.plot([best.x], [best.score], "*", color=color, markersize=11, zorder=3)
    panel.set_title(_text(title), fontsize=11, loc="left", fontweight="bold")
    panel.grid(alpha=0.25)
    panel.spines[["top", "right"]].set_visible(False)
    panel.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
    if len(lines) > 1:
        panel.legend(frameon=False, fontsize=9)


def _text(text: str) -> str:
    r"""Return a label that matplotlib draws as it is: a `$` would begin a formula.

    >>> print(_text("cost in $"), _text("_hidden").encode("ascii", "replace").decode())
    cost in \$ ?_hidden
    """
    shown = text if len(text) <= 60 else f"{text[:59]}…"
    # Labels that begin with an underscore are left out of legends.
    hidden = "\u200b" if shown.startswith("_") else ""
    return hidden + "".join(c if c.isprintable() else "?" for c in shown).replace("$", r"\$")
