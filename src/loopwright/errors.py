"""Every error and warning of Loopwright.

A message has four parts: what happened, what was expected, what was received, what to do.
Each class derives from the built-in that a caller would catch anyway.
"""

import contextlib
import os
from collections.abc import Generator

EXIT_WORKER_LOST = 193
"""Above 128, which supervisors like Kubeflow retry, and above the exit codes of all signals."""


class LoopwrightError(Exception):
    """The base class: `except lw.LoopwrightError` catches every error of Loopwright."""

    def __init__(self, text: str, *, expected: str = "", received: str = "", do: str = "") -> None:
        super().__init__(message(text, expected=expected, received=received, do=do))


class DataError(LoopwrightError, ValueError):
    """The data given to `fit`, `evaluate` or `predict` cannot be used."""


class StepError(LoopwrightError, ValueError):
    """A step cannot be trained, or fails while it runs."""


class ConfigurationError(LoopwrightError, ValueError):
    """Arguments contradict each other, or name something unknown."""


class MissingStepError(LoopwrightError, NotImplementedError):
    """The task has no such step."""


class CheckpointError(LoopwrightError):
    """A checkpoint cannot be written or deleted, or none can be read."""


class NotFiniteError(LoopwrightError, FloatingPointError):
    """A loss or a state is NaN or infinite; `step` is the first step where that was seen."""

    def __init__(self, text: str, *, step: int, **parts: str) -> None:
        super().__init__(text, **parts)
        self.step = step


class WorkerLostError(LoopwrightError, SystemExit):
    """Another worker was lost; uncaught, it exits with a code that supervisors retry."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = EXIT_WORKER_LOST


class LoopwrightWarning(UserWarning):
    """The base class of all warnings."""


class StepWarning(LoopwrightWarning):
    """A step does something that is probably a mistake; `Trainer(silence=[id])` silences it."""

    def __init__(self, text: str, *, id: str = "") -> None:
        super().__init__(text)
        self.id = id


class RetraceWarning(LoopwrightWarning):
    """The step must be traced again; the message says which argument changed."""


def printable(text: str) -> str:
    r"""Escape control characters: names in the files of a run could control a terminal.

    >>> printable("val_\x1b[2J loss\n")
    'val_\\x1b[2J loss\n'
    """
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def message(what: str, *, expected: str = "", received: str = "", do: str) -> str:
    """Return the text of an error, made of its four parts.

    >>> print(message("No data.", expected="arrays", received="None", do="pass x"))
    No data.
      expected: arrays
      received: None
      do: pass x
    """
    parts = {"expected": expected, "received": received, "do": do}
    return "\n".join([what, *(f"  {name}: {text}" for name, text in parts.items() if text)])


def first_line(error: Exception) -> str:
    """Return the type and the first line of an error."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


@contextlib.contextmanager
def disk_explained(
    path: "os.PathLike[str]", what: str = "The run directory cannot be written to"
) -> Generator[None]:
    """Turn an error of the disk into a ConfigurationError that says what cannot be done."""
    try:
        yield
    except OSError as error:
        name = "" if error.filename is None else f" ({os.fspath(error.filename)})"
        raise ConfigurationError(
            f"{what}.",
            expected="a directory that can be written to",
            received=f"{os.fspath(path)!r}: {error.strerror}{name}",
            do="choose another run_dir or --dir, or remove the cause: permissions, space, "
            "limits, a failing disk",
        ) from error
