"""Figures and weather data that several examples share.

Figures are drawn without pyplot: no windows, no global state.
"""

import csv
import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from loopwright.digits import save_figure as save

__all__ = ["AIRPORTS", "COLUMNS", "DATA", "UNITS", "plot_epochs", "read_weather", "save"]

DATA = Path(__file__).parent / "data"


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
    text = gzip.decompress((DATA / "weather.csv.gz").read_bytes()).decode()
    rows = list(csv.DictReader(text.splitlines()))
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
