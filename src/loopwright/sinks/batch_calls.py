"""Calls of batch hooks: at stops, or one per step, delivered at the next stop."""

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

import keras

from loopwright.engine.stepper import StepNumbers
from loopwright.loop.clock import Stopwatch
from loopwright.sinks.batch_hooks import demand


@final
class BatchCalls:
    """Calls the batch hooks of callbacks, each as often as it needs."""

    def __init__(self, callbacks: Sequence[Any], watch: Stopwatch) -> None:
        self._callbacks, self._watch = callbacks, watch
        self._demands = [demand(callback) for callback in callbacks]
        pairs = zip(callbacks, self._demands, strict=True)
        self._counters = [(callback, wants) for callback, wants in pairs if wants.each_step]
        self._first = 0
        self._awaits_batch = False

    @property
    def needs_values(self) -> bool:
        """Whether a callback reads the values of every step."""
        return any(wants.takes_values is not None for _, wants in self._counters)

    @property
    def reads_optimizer(self) -> bool:
        """Whether a callback reads the optimizer as it was after every step."""
        return any(wants.reads_optimizer for _, wants in self._counters)

    @property
    def needs_test_batches(self) -> bool:
        """Whether a callback is called for every batch of a validation."""
        return any(wants.each_test_batch for wants in self._demands)

    @property
    def called_each_step(self) -> str:
        """The class of a callback for which control returns to Python after every step."""
        pairs = zip(self._callbacks, self._demands, strict=True)
        asking = [type(callback).__name__ for callback, wants in pairs if wants.steps_left() == 1]
        return asking[0] if asking else ""

    @property
    def notes(self) -> list[str]:
        """What callbacks cost, in sentences."""
        return [wants.note for wants in self._demands if wants.note]

    def steps_left(self) -> int | None:
        """The most steps to run until callbacks have to be called; None: any number."""
        wished = [wants.steps_left() for wants in self._demands]
        return min((steps for steps in wished if steps is not None), default=None)

    def begin(self, batch: int) -> None:
        """Call the hooks that come before a batch."""
        counters = [callback for callback, _ in self._counters]
        for callback in self._callbacks:
            # The data may have ended instead: then a counter has counted this batch already.
            if not (self._awaits_batch and any(callback is counter for counter in counters)):
                self._call(callback, "on_train_batch_begin", batch, {})
        self._first, self._awaits_batch = batch, True

    def end(
        self,
        batch: int,
        logs: Mapping[str, Any],
        recorded: Sequence[StepNumbers],
        variables: Sequence[Any],
    ) -> None:
        """Call the hooks that come after the batches since `begin`, the last of which is `batch`.

        `recorded` are the numbers of their steps; `variables` those whose values were recorded.
        """
        with _put_back(variables) as current:
            for number in range(self._first, batch) if self._counters else ():
                numbers = recorded[number - self._first] if self.needs_values else None
                if numbers is not None and numbers.variables:
                    _assign(variables, numbers.variables, current)
                logs_then = None if numbers is None else numbers.logs
                self._deliver(number, logs_then, is_next_last=number + 1 == batch)
        shared = dict(logs)
        for callback in self._callbacks:
            if not _has_ended(callback):
                self._call(callback, "on_train_batch_end", batch, shared)
        self._awaits_batch = False

    def rolled_back(self) -> None:
        """The callbacks remember an earlier step: the batch that was begun will not come."""
        self._awaits_batch = False

    def test_batch(self, batch: int, logs: Mapping[str, Any]) -> None:
        """Call the hooks around a batch of a validation, which was scored."""
        shared = dict(logs)
        for callback in self._callbacks:
            self._call(callback, "on_test_batch_begin", batch, {})
        for callback in self._callbacks:
            self._call(callback, "on_test_batch_end", batch, shared)

    def _deliver(self, batch: int, logs: Mapping[str, Any] | None, *, is_next_last: bool) -> None:
        """End a batch, and begin the next one; everybody hears of the end of the last one."""
        for callback, wants in self._counters:
            takes = wants.takes_values is not None and wants.takes_values()
            if (takes or wants.counts_batch is None) and not _has_ended(callback):
                values = dict(logs) if takes and logs else None
                self._call(callback, "on_train_batch_end", batch, values)
        for callback, wants in self._counters:
            if is_next_last or wants.counts_batch is None or not wants.counts_batch():
                self._call(callback, "on_train_batch_begin", batch + 1, {})

    def _call(self, callback: Any, hook: str, batch: int, logs: dict[str, Any] | None) -> None:
        with self._watch.timing("callbacks", _title(type(callback), hook)):
            getattr(callback, hook)(batch, logs=logs)


@functools.cache
def _title(kind: type, hook: str) -> str:
    """The hook by the name that the callback overrides: Keras' own one calls the older name."""
    older = hook.replace("_train_batch_", "_batch_")
    is_older = getattr(kind, hook) is getattr(keras.callbacks.Callback, hook)
    return f"{kind.__name__}.{older if is_older else hook}"


def _has_ended(callback: Any) -> bool:
    """Whether it has asked for the end of the training, and would ask again for every step."""
    is_nan_check = isinstance(callback, keras.callbacks.TerminateOnNaN)
    return is_nan_check and bool(callback.model.stop_training)


@contextlib.contextmanager
def _put_back(variables: Sequence[Any]) -> Iterator[list[Any]]:
    """Give the values of the variables, and put these back in the end."""
    before = [variable.read_value() for variable in variables]
    current = [value.numpy() for value in before]
    try:
        yield current
    finally:
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)


def _assign(variables: Sequence[Any], values: Sequence[Any], current: list[Any]) -> None:
    for place, (variable, value) in enumerate(zip(variables, values, strict=True)):
        if current[place] != value:
            variable.assign(value.astype(variable.dtype.as_numpy_dtype))
            current[place] = value
