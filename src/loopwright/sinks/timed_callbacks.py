"""Callbacks whose hooks are timed, one by one."""

from collections.abc import Iterable, Iterator
from typing import Any, final

from loopwright.loop.clock import Stopwatch


@final
class TimedCallbacks:
    """The callbacks of a `keras.callbacks.CallbackList`, timed while it goes through them.

    >>> watch = Stopwatch(clock=iter([0.0, 2.0]).__next__)
    >>> callbacks = TimedCallbacks(["a callback"], watch)
    >>> callbacks.hook = "on_epoch_end"
    >>> [callback for callback in callbacks], watch.largest("callbacks")
    (['a callback'], 'str.on_epoch_end')
    """

    def __init__(self, callbacks: Iterable[Any], watch: Stopwatch) -> None:
        self._callbacks, self._watch = list(callbacks), watch
        self.hook = ""

    def __iter__(self) -> Iterator[Any]:
        """Give each callback; the time until the next one is asked for is the time of its hook."""
        for callback in self._callbacks:
            with self._watch.timing("callbacks", f"{type(callback).__name__}.{self.hook}"):
                yield callback
