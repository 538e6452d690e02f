"""Every error and warning that Loopwright raises by itself.

A message has four parts: what happened, what was expected, what was received, what to do.
Each class derives from the built-in that a caller would catch anyway.
"""

EXIT_WORKER_LOST = 193
"""Above 128, which supervisors like Kubeflow retry, and above the codes of all signals."""


class LoopwrightError(Exception):
    """The root: `except lw.LoopwrightError` catches all that Loopwright raises by itself."""


class DataError(LoopwrightError, ValueError):
    """The data given to `fit`, `evaluate` or `predict` cannot be used."""


class StepError(LoopwrightError, ValueError):
    """A step does something that cannot be trained, or fails while it runs."""


class ConfigurationError(LoopwrightError, ValueError):
    """Arguments that contradict each other or name something unknown."""


class MissingStepError(LoopwrightError, NotImplementedError):
    """The task lacks the step that was asked for."""


class CheckpointError(LoopwrightError):
    """A checkpoint cannot be written or deleted, or none can be read."""


class NotFiniteError(LoopwrightError, FloatingPointError):
    """A loss or a state is NaN or infinite; `step` is the first step where that was seen."""

    def __init__(self, text: str, *, step: int) -> None:
        super().__init__(text)
        self.step = step


class WorkerLostError(LoopwrightError, SystemExit):
    """Another worker is gone; uncaught, it ends the process with a code that supervisors retry."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = EXIT_WORKER_LOST


class LoopwrightWarning(UserWarning):
    """The root of all warnings."""


class StepWarning(LoopwrightWarning):
    """A step does something that is probably a mistake; `Trainer(silence=[id])` silences it."""

    def __init__(self, text: str, *, id: str = "") -> None:
        super().__init__(text)
        self.id = id


class RetraceWarning(LoopwrightWarning):
    """The step has to be traced again; the message says which argument changed."""


def printable(text: str) -> str:
    r"""Spell out control characters: names in the files of a run could steer a terminal.

    >>> printable("val_\x1b[2J loss\n")
    'val_\\x1b[2J loss\n'
    """
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def message(what: str, *, expected: str = "", received: str = "", do: str) -> str:
    """Puts the four parts of an error together.

    >>> print(message("No data.", expected="arrays", received="None", do="pass x"))
    No data.
      expected: arrays
      received: None
      do: pass x
    """
    parts = {"expected": expected, "received": received, "do": do}
    return "\n".join([what, *(f"  {name}: {text}" for name, text in parts.items() if text)])
