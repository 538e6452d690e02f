"""Figures and weather data that several recipes share.

Figures are drawn without pyplot: no windows, no global state.
"""

import csv
import gzip
import io
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from loopwright import disk

# matplotlib reads a matplotlibrc in the current directory, whose settings can start LaTeX. The
# directory may be a run directory from an untrusted source.
if Path(matplotlib.matplotlib_fname()).resolve().parent == Path.cwd():
    matplotlib.rcdefaults()


def save(figure: Figure, run_dir: str | None, name: str) -> None:
    """Write `run_dir/figures/name.png`; do nothing without a run directory."""
    if run_dir is None:
        return
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=100)
    disk.make_run_directory(Path(run_dir))
    disk.make_directory(Path(run_dir), "figures")
    disk.write_whole(Path(run_dir), f"figures/{name}.png", drawn.getvalue())


def plot_epochs(axes: Axes, curves: Mapping[str, Sequence[float]], **style: Any) -> None:
    """Plot one value per epoch for each label, with whole numbers on the x axis."""
    for label, values in curves.items():
        axes.plot(np.arange(1, len(values) + 1), values, label=label, **style)
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
_MOST_WIND_MPH = 100  # one hour of the file says 1,048


def read_weather() -> tuple[Any, Any]:
    """Return the hours of 2013 and `(3 airports, hours, 6 columns)` in `UNITS`; NaN if missing."""
    packed = (resources.files("loopwright.recipes") / "data" / "weather.csv.gz").read_bytes()
    rows = list(csv.DictReader(gzip.decompress(packed).decode().splitlines()))
    stamps = np.array([row["time_hour"].removesuffix("Z") for row in rows], "datetime64[h]")
    hours = np.arange(stamps.min(), stamps.max() + 1)
    values = np.full((len(AIRPORTS), len(hours), len(COLUMNS)), np.nan, "float32")
    places = [AIRPORTS.index(row["origin"]) for row in rows]
    columns = [[float(row[name] or "nan") for name in COLUMNS] for row in rows]
    values[places, (stamps - hours[0]).astype(int)] = columns
    values[..., :2] = (values[..., :2] - 32) / 1.8
    wind = values[..., 3]
    values[..., 3] = np.where(wind > _MOST_WIND_MPH, np.nan, wind) * 1.609
    return hours, values
