"""The one place that calls sinks: a sink that fails warns, and does not stop the training."""

import contextlib
from collections.abc import Iterator, Sequence

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


def _described(error: Exception) -> str:
    # The repr of a TensorFlow error does not contain its message.
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
