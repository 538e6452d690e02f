"""Signals while a run can be saved: noted at once, obeyed at the next stop.

SIGTERM and SIGUSR1 mean that the machine is about to go: save, and leave with exit code 143.
SIGINT (Ctrl-C) means that the user wants to stop: save, and raise `KeyboardInterrupt`; a second one
leaves at once, without saving. Where both came, in whichever order, the run ends with 143: a
scheduler that preempts a job must be able to tell it from one that the user has stopped.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence
from typing import Any, final

from loopwright.step_warnings import warn_at_call

_PREEMPTING = (signal.SIGTERM, signal.SIGUSR1)
HANDLED = (signal.SIGINT, *_PREEMPTING)
"""The signals that are noted while a run can be saved."""


@final
class Preempted(SystemExit):
    """The run was preempted; its state is saved, and the same command resumes it."""

    def __init__(self) -> None:
        super().__init__(143)


@final
class Signals:
    """The signal that arrived, if any."""

    def __init__(self) -> None:
        self._received: int | None = None
        self.interrupts = 0
        """How often Ctrl-C was pressed."""

    def received(self) -> bool:
        """Return whether it is time to save and exit."""
        return self._received is not None

    @property
    def number(self) -> int:
        """The number of the signal that arrived; 0 if none did."""
        return self._received or 0

    def adopt(self, number: int) -> None:
        """A signal that came to another worker, whom this one follows."""
        self._received = number

    def raise_received(self) -> None:
        """Ends the run as the signal asked for; nothing if none came."""
        if self._received == signal.SIGINT:
            raise KeyboardInterrupt
        if self._received is not None:
            raise Preempted

    def note(self, number: int, _: Any) -> None:
        """A handler: signals are noted, a second Ctrl-C leaves at once."""
        self.interrupts += number == signal.SIGINT
        if number == signal.SIGINT and self.interrupts > 1:
            raise KeyboardInterrupt
        if self._received not in _PREEMPTING:
            self._received = number


@contextlib.contextmanager
def watched() -> Iterator[Signals]:
    """Notes signals while it is open, and puts back the handlers that were there before."""
    signals = Signals()
    if threading.current_thread() is not threading.main_thread():
        warn_at_call(
            "Signals cannot be received outside the main thread: this run is saved at its "
            "intervals only, not on SIGTERM or Ctrl-C."
        )
        yield signals
        return
    with _handled(signals, HANDLED):
        yield signals


@contextlib.contextmanager
def _handled(signals: Signals, numbers: Sequence[int]) -> Iterator[None]:
    before = {number: signal.signal(number, signals.note) for number in numbers}
    try:
        yield
    except Exception as error:
        if signals.interrupts > 1:  # TensorFlow makes an error of a second Ctrl-C
            raise KeyboardInterrupt from error
        raise
    finally:
        for number, handler in before.items():
            # None: a handler that was not set from Python, and cannot be put back from it.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextlib.contextmanager
def interrupts(signals: Signals) -> Iterator[None]:
    """Note Ctrl-C while it is open, where it would raise at once; do nothing elsewhere."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    with _handled(signals, [signal.SIGINT]):
        yield


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Let Ctrl-C wait for the end of the block, where it would raise at once; a second one does.

    For building and tracing: what Keras has built by half stays so, and the next `fit` fails.
    """
    signals = Signals()
    try:
        with interrupts(signals):
            yield
    finally:
        signals.raise_received()


@contextlib.contextmanager
def blocked() -> Iterator[None]:
    """Let every Ctrl-C wait for the end of the block: for what is short, and whole or broken."""
    noted, before = list[int](), signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield
        return
    signal.signal(signal.SIGINT, lambda number, _: noted.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        for number in noted:
            signal.raise_signal(number)
