"""Dates as people write them, and as ISO writes them, in numbers of characters."""

from datetime import date
from typing import Any

import numpy as np

INPUT = " ,0123456789ADFJMNOSabcdefghilmnoprstuvy"
OUTPUT = "0123456789-"
MOST_CHARACTERS = len("30th of September 1997")


def written(day: date, form: int) -> str:
    """A date as people write it, in one of four forms.

    >>> [written(date(1997, 3, 3), form) for form in range(4)]
    ['March 3rd, 1997', '3 March 1997', 'Mar 3, 1997', '3rd of March 1997']
    """
    ending = (
        "th" if day.day in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(day.day % 10, "th")
    )
    month = day.strftime("%B")
    return [
        f"{month} {day.day}{ending}, {day.year}",
        f"{day.day} {month} {day.year}",
        f"{month[:3]} {day.day}, {day.year}",
        f"{day.day}{ending} of {month} {day.year}",
    ][form]


def encoded(texts: list[str]) -> Any:
    """Numbers of characters, 0 behind the end."""
    rows = [[INPUT.index(character) + 1 for character in text] for text in texts]
    return np.array([row + [0] * (MOST_CHARACTERS - len(row)) for row in rows], "int32")


def answers(days: list[date]) -> Any:
    """The ten characters of each date in ISO form, as numbers."""
    return np.array([[OUTPUT.index(c) for c in day.isoformat()] for day in days], "int32")
