"""Figures of results, drawn without pyplot: no windows, no global state."""

import io
import textwrap
from pathlib import Path
from typing import Any

from loopwright.errors import ConfigurationError, message

WIDTH = 80


def new(what: str) -> Any:
    """Return an empty figure; raise if matplotlib, which `what` needs, is not installed."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigurationError(
            message(
                "matplotlib is not installed.",
                expected=f"matplotlib, for {what}",
                received=str(error),
                do="pip install 'loopwright[recipes]'; the numbers are there without it",
            )
        ) from error
    if Path(matplotlib.matplotlib_fname()).resolve().parent == Path.cwd():
        matplotlib.rcdefaults()  # the settings of a directory from elsewhere can start LaTeX
    return Figure(figsize=(7, 4), layout="constrained")


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


def wrapped(text: str, indent: str = "") -> list[str]:
    """Return the lines of a text that fits a terminal.

    >>> [len(line) for line in wrapped("a word " * 20)]
    [78, 60]
    """
    return textwrap.wrap(
        text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
