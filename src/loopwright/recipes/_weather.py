"""A year of hourly weather at three New York airports, as arrays with gaps."""

import csv
import gzip
from importlib import resources
from typing import Any

import numpy as np

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
