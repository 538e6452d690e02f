"""Draw the speed table as a chart; the only module that imports matplotlib."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.outcomes import (
    HAND,
    KERAS,
    KERAS_BEST,
    KERAS_JAX,
    LOOPWRIGHT,
    PYTORCH,
    Outcome,
    ratio,
)

_SERIES = {
    "Keras fit or hand loop, best settings": ((KERAS, KERAS_BEST, HAND), "#9aa5b1"),
    "Keras on JAX": ((KERAS_JAX,), "#7a9e7e"),
    "PyTorch": ((PYTORCH,), "#5f7d95"),
    "Loopwright": ((LOOPWRIGHT,), "#e8590c"),
}
_INK, _FAINT = "#24292f", "#8c959f"
_DOTS_PER_INCH = 150
_BAR_HEIGHT = 0.2


def draw(outcomes: Sequence[Outcome], path: Path) -> None:
    """Write a PNG of bars: the speed of each contender relative to Keras `fit`, on a log scale."""
    # A paper of its own, since readers have light and dark ones.
    height_inches = 1.25 + 0.8 * len(outcomes)
    figure = Figure(figsize=(8, height_inches), dpi=_DOTS_PER_INCH, facecolor="white")
    axes = figure.add_axes((0.26, 0.32 / height_inches, 0.72, 1 - 1.12 / height_inches))
    highest, lowest = 1.0, 1.0
    for place, (columns, color) in enumerate(_SERIES.values()):
        for row, outcome in enumerate(outcomes):
            times = ratio(outcome.rate(*columns), outcome.rate(KERAS))
            if times is None:
                continue
            highest, lowest = max(highest, times), min(lowest, times)
            y = row + (place - (len(_SERIES) - 1) / 2) * (_BAR_HEIGHT + 0.02)
            # On a log scale a bar begins at 1, which is Keras fit.
            axes.barh(y, times - 1, left=1, height=_BAR_HEIGHT, color=color)
            is_ours = columns == (LOOPWRIGHT,)
            axes.annotate(
                _label(times),
                (max(times, 1), y),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
                color=_INK,
                fontweight="bold" if is_ours else "normal",
            )
    axes.set_xscale("log")
    # Room for the label of the longest bar: a tenth of the width.
    axes.set_xlim(lowest, highest * (highest / lowest) ** 0.1)
    axes.set_ylim(len(outcomes) - 0.5, -0.5)
    axes.set_yticks(range(len(outcomes)), [outcome.name for outcome in outcomes], fontsize=9)
    axes.xaxis.set_visible(False)
    axes.tick_params(length=0, labelcolor=_INK)
    axes.spines[:].set_visible(False)
    axes.axvline(1, color=_INK, linewidth=1)
    axes.annotate(
        "Keras fit = 1",
        (1, len(outcomes) - 0.5),
        xytext=(0, -10),
        textcoords="offset points",
        ha="left" if lowest == 1 else "center",
        va="center",
        fontsize=8,
        color=_FAINT,
    )
    _add_words(figure, height_inches)
    figure.savefig(path, dpi=_DOTS_PER_INCH, facecolor="white")


def _add_words(figure: Figure, height_inches: float) -> None:
    title = "Steps per second, as multiples of Keras fit with its defaults (log scale)"
    top = 1 - 0.28 / height_inches
    figure.text(0.02, top, title, fontsize=11, color=_INK, fontweight="bold", va="center")
    left = 0.02
    for name, (_, color) in _SERIES.items():
        y = 1 - 0.58 / height_inches
        figure.text(left, y, "\N{BLACK SQUARE}", fontsize=12, color=color, va="center")
        figure.text(left + 0.022, y, name, fontsize=9, color=_INK, va="center")
        left += 0.05 + 0.0084 * len(name)


def _label(times: float) -> str:
    digits = 2 if times < 2 else 1 if times < 10 else 0
    return f"{times:.{digits}f}x"
