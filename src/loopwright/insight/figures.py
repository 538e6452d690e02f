"""Results as figures and as wrapped text."""

import textwrap

from loopwright.sinks.figures import new, saved

__all__ = ["WIDTH", "new", "saved", "wrapped"]

WIDTH = 80


def wrapped(text: str, indent: str = "") -> list[str]:
    """Return the lines of a text that fits a terminal.

    >>> [len(line) for line in wrapped("a word " * 20)]
    [78, 60]
    """
    return textwrap.wrap(
        text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
