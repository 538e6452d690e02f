"""Where the recipes' figures go. Figures are made without pyplot: no window, no global state."""

import csv
import gzip
import io
from importlib import resources
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
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


AIRPORTS = ["EWR", "JFK", "LGA"]
COLUMNS = ["temp", "dewp", "humid", "wind_speed", "pressure", "visib"]
UNITS = {
    "temp": "°C",
    "dewp": "°C",
    "humid": "%",
    "wind_speed": "km/h",
    "pressure": "hPa",
    "visib": "miles",
}
_MOST_WIND_MPH = 100  # one hour of the file claims 1,048


def read() -> tuple[Any, Any]:
    """The hours of 2013, and `(3 airports, hours, 6 columns)` in `UNITS`, NaN where missing."""
    packed = (resources.files("loopwright.recipes") / "data" / "weather.csv.gz").read_bytes()
    rows = list(csv.DictReader(gzip.decompress(packed).decode().splitlines()))
    stamps = np.array([row["time_hour"].removesuffix("Z") for row in rows], "datetime64[h]")
    hours = np.arange(stamps.min(), stamps.max() + 1)
    values = np.full((len(AIRPORTS), len(hours), len(COLUMNS)), np.nan, "float32")
    places = [AIRPORTS.index(row["origin"]) for row in rows]
    read = [[float(row[name] or "nan") for name in COLUMNS] for row in rows]
    values[places, (stamps - hours[0]).astype(int)] = read
    values[..., :2] = (values[..., :2] - 32) / 1.8
    wind = values[..., 3]
    values[..., 3] = np.where(wind > _MOST_WIND_MPH, np.nan, wind) * 1.609
    return hours, values
