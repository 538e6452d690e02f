"""What is told of a run must not cost the run: whatever fails here warns."""

import contextlib
from collections.abc import Iterator, Sequence

from loopwright.events import Event, Sink
from loopwright.step_warnings import warn_at_call


def notify(sinks: Sequence[Sink], event: Event) -> None:
    """Call every sink with an event, in order, and each of them even if one before it raises."""
    with contextlib.ExitStack() as every_sink:
        for sink in reversed(sinks):
            every_sink.callback(sink, event)


def tolerated(sink: Sink) -> Sink:
    """A sink that fails warns once and never stops training."""
    failed = False

    def hear(event: Event) -> None:
        nonlocal failed
        if failed:
            return
        try:
            sink(event)
        except Exception as error:
            failed = True
            _warn(f"The sink {_name(sink)} failed and hears nothing more: {_told(error)}")

    return hear


@contextlib.contextmanager
def attempted(what: str) -> Iterator[None]:
    """Warns if what is done inside fails."""
    try:
        yield
    except Exception as error:
        _warn(f"{what} could not be written: {_told(error)}")


def _name(sink: Sink) -> str:
    return getattr(sink, "__qualname__", type(sink).__qualname__)


def _told(error: Exception) -> str:
    # TensorFlow's errors say nothing in their repr.
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _warn(text: str) -> None:
    warn_at_call(text)
