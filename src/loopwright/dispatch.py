"""How sinks are called, and what is asked of those that write files of a run.

A sink that fails warns, and does not stop the training.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from loopwright import disk
from loopwright.events import Event, Sink
from loopwright.step_warnings import warn_at_call


def notify(sinks: Sequence[Sink], event: Event) -> None:
    """Call every sink in order, also those after a sink that raises."""
    with contextlib.ExitStack() as every_sink:
        for sink in reversed(sinks):
            every_sink.callback(sink, event)


def tolerated(sink: Sink) -> Sink:
    """Return the sink without its errors: the first one warns and disables it."""
    failed = False

    def receive(event: Event) -> None:
        nonlocal failed
        if failed:
            return
        try:
            sink(event)
        except Exception as error:
            failed = True
            name = getattr(sink, "__qualname__", type(sink).__qualname__)
            warn_at_call(
                f"The sink {name} failed and was disabled for the rest of the run: "
                f"{_described(error)}"
            )

    return receive


@contextlib.contextmanager
def attempted(what: str, verb: str = "written") -> Iterator[None]:
    """Warn instead of raising: "The report could not be written: OSError: disk full"."""
    try:
        yield
    except Exception as error:
        warn_at_call(f"{what} could not be {verb}: {_described(error)}")


class RunFile(ABC):
    """A sink that writes files in a run directory; a resumed run truncates those of `lengths`."""

    def open(self, lengths: Mapping[str, int], *, is_new_leg: bool) -> None:  # noqa: B027
        """Open the files, and truncate them to their lengths in a checkpoint."""

    @abstractmethod
    def __call__(self, event: Event) -> None:
        """Write an event."""

    def lengths(self) -> Mapping[str, int]:
        """Return the lengths of the files that a resumed run truncates."""
        return {}

    def cut(self, lengths: Mapping[str, int]) -> None:  # noqa: B027
        """Truncate the files after a rollback."""

    def sync(self) -> None:  # noqa: B027
        """Wait until the files that a checkpoint refers to are on disk."""

    def close(self) -> None:  # noqa: B027
        """Write what is left, and close the files."""


def lengths_of(run_dir: Path, names: Iterable[str]) -> dict[str, int]:
    """Return the lengths of those of these files that exist."""
    found = {name: disk.status(run_dir, name) for name in names}
    return {name: file.st_size for name, file in found.items() if file is not None}


def cut(run_dir: Path, names: Iterable[str], lengths: Mapping[str, int]) -> None:
    """Truncate files of a run to these lengths; warn of shorter ones, delete those without."""
    for name in names:
        length = lengths.get(name)
        if length is None:
            disk.delete(run_dir, name)
        elif (found := disk.cut(run_dir, name, length)) < length:
            warn_at_call(
                f"{run_dir / name} is truncated: it has {found:,} bytes, and had {length:,} when "
                "the checkpoint was saved. Training continues; the checkpoint has the complete "
                "history."
            )


def _described(error: Exception) -> str:
    # The repr of a TensorFlow error does not contain its message.
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
