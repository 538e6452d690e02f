"""Where the recipes' figures go. Figures are made without pyplot: no window, no global state."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator


def save(figure: Figure, run_dir: str | None, name: str) -> None:
    """Writes `run_dir/figures/name.png`; without a run directory, nothing."""
    if run_dir is None:
        return
    directory = Path(run_dir) / "figures"
    directory.mkdir(parents=True, exist_ok=True)
    figure.savefig(directory / f"{name}.png", dpi=100)


def count_epochs(axes: Axes) -> None:
    """The x axis counts epochs: whole numbers only."""
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
