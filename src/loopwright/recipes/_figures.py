"""Where the recipes' figures go. Figures are made without pyplot: no window, no global state."""

import io
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from loopwright import disk

# matplotlib reads a matplotlibrc of the current directory, which may be a run directory that came
# from somebody else, and its settings can start LaTeX.
if Path(matplotlib.matplotlib_fname()).resolve().parent == Path.cwd():
    matplotlib.rcdefaults()


def save(figure: Figure, run_dir: str | None, name: str) -> None:
    """Writes `run_dir/figures/name.png`; without a run directory, nothing."""
    if run_dir is None:
        return
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=100)
    disk.make_run_directory(Path(run_dir))
    disk.make_directory(Path(run_dir), "figures")
    disk.write_whole(Path(run_dir), f"figures/{name}.png", drawn.getvalue())


def count_epochs(axes: Axes) -> None:
    """The x axis counts epochs: whole numbers only."""
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
