"""Mistakes that numbers show, looked for at stops: nothing is learned, the loss explodes."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import keras
import numpy as np
import tensorflow as tf

from loopwright import adaptations, silencing, state
from loopwright.errors import message
from loopwright.events import EpochEnded, Event, Finished, Trained
from loopwright.explanations import variable_name
from loopwright.task import Task
from loopwright.telemetry.facts import learning_rates, optimizers

UPDATES = 16
"""How many updates have to leave every weight unchanged. Each later look waits twice as long."""
LOOKS = 4
EXPLODED = 1e6
"""How many times its first value a loss has to reach; a first value below 1 counts as 1."""
LASTING_STEPS = 50
"""How long it has to stay there: a loss that is NaN before that is told by its own error."""
EPOCHS, BATCHES = 3, 11
"""How many epochs of how many batches have to report the same bits."""
_NO_RATE = 1e-7
"""A learning rate that changes no weight of ordinary size in float32."""


@dataclass(frozen=True)
class _Window:
    """The weights of an optimizer at one moment, to be compared with those of a later one."""

    updates: int
    checksums: tuple[int, ...]
    number: int = 0

    @property
    def length(self) -> int:
        return UPDATES * 2**self.number


@final
class LearningWatch:
    """A sink that looks at losses and weights where control is back in Python anyway."""

    def __init__(self, task: Task, silenced: frozenset[str]) -> None:
        self._task, self._silenced = task, silenced
        self._optimizers: dict[str, keras.optimizers.Optimizer] = {}
        self._windows: dict[str, _Window | None] = {}
        self._first_loss: float | None = None
        self._exploded_at: int | None = None
        self._is_told = False
        """Whether a mistake was named: its consequences are not named as well."""
        self._epoch_losses: list[float] = []

    def __call__(self, event: Event) -> None:
        """Look at an event, and warn of what it shows."""
        with silencing.silenced(self._silenced):
            match event:
                case Trained():
                    self._look_at_loss(event)
                    if not self._is_told:
                        self._look_at_weights(event.metrics)
                case EpochEnded():
                    self._look_at_epoch(event)
                case Finished(reason="complete" | "stopped" | "left"):
                    self._tell_explosion()
                case _:
                    self._begin()

    def _begin(self) -> None:
        """Hold the weights before the first step, as far as they are built."""
        if not self._optimizers:
            self._optimizers = {
                path: getattr(optimizer, "inner_optimizer", optimizer)
                for path, optimizer in optimizers(self._task).items()
            }
        for path, optimizer in self._optimizers.items():
            # What has no weights to train is named when the step is traced, or by Keras.
            is_ready = optimizer.built and adaptations.trained_by(optimizer)
            if path not in self._windows and is_ready:
                self._windows[path] = _Window(_updates(optimizer), _checksums(optimizer))

    def _look_at_weights(self, metrics: Mapping[str, Any]) -> None:
        self._begin()
        for path, window in self._windows.items():
            optimizer = self._optimizers[path]
            if window is None or _updates(optimizer) - window.updates < window.length:
                continue
            checksums, following = _checksums(optimizer), window.number + 1
            next_window = _Window(_updates(optimizer), checksums, following)
            self._windows[path] = next_window if following < LOOKS else None
            if checksums == window.checksums and not self._is_told:
                self._tell_unchanged(path, window, metrics)

    def _tell_unchanged(self, path: str, window: _Window, metrics: Mapping[str, Any]) -> None:
        rates = learning_rates({path: self._optimizers[path]})
        rate = rates["learning_rate"]
        if window.number and (rate < _NO_RATE or metrics.get("loss") == 0):
            return  # a schedule that has ended, or nothing left to learn
        self._is_told = True
        names = [variable_name(v) for v in adaptations.trained_by(self._optimizers[path])]
        listed = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
        owner = "" if len(self._optimizers) == 1 else f" of {path}"
        when = "changes any more" if window.number else f"changed in the first {UPDATES} updates"
        if rate < _NO_RATE:
            silencing.warn(
                "zero-learning-rate",
                message(
                    f"No weight{owner} {when}: the learning rate is {rate:g}.",
                    expected="updates that change the weights",
                    received=f"learning_rate={rate:g}; unchanged: {listed}",
                    do="set the optimizer's learning_rate; look at the schedule or callback that "
                    "sets it",
                ),
            )
            return
        silencing.warn(
            "zero-gradients",
            message(
                f"No weight{owner} {when}: all gradients are exactly zero.",
                expected="at least one gradient that is not zero",
                received=f"learning_rate={rate:g}; unchanged: {listed}",
                do="look at the last activation: a ReLU whose inputs are all negative or a "
                "saturated sigmoid has no gradient; scale the inputs, or use another activation or "
                "initializer; check that the loss is neither clipped nor rounded",
            ),
        )

    def _look_at_loss(self, event: Trained) -> None:
        loss = _loss(event.metrics)
        if loss is None:
            return
        if self._first_loss is None:
            self._first_loss = loss
        if abs(loss) <= EXPLODED * max(abs(self._first_loss), 1.0):
            self._exploded_at = None
        elif self._exploded_at is None:
            self._exploded_at = event.step
        elif event.step - self._exploded_at >= LASTING_STEPS:
            self._tell_explosion()

    def _tell_explosion(self) -> None:
        if self._exploded_at is None or self._is_told:
            return
        self._is_told = True
        rates = learning_rates(self._optimizers)
        listed = ", ".join(f"{name}={rate:g}" for name, rate in rates.items())
        silencing.warn(
            "exploding-loss",
            message(
                "The loss explodes: it is more than a million times its first value.",
                expected="a loss that falls",
                received=f"first loss: {self._first_loss:.3g}; {listed}",
                do="lower the learning rate, or clip gradients (the optimizer's clipnorm=1.0); "
                "check the scale of inputs and labels",
            ),
        )

    def _look_at_epoch(self, event: EpochEnded) -> None:
        loss = _loss(event.metrics)
        if loss is None or event.steps < BATCHES or len(self._epoch_losses) == EPOCHS:
            return
        self._epoch_losses.append(loss)
        is_constant = len(set(self._epoch_losses)) == 1 and loss != 0
        if self._is_told or len(self._epoch_losses) < EPOCHS or not is_constant:
            return
        self._is_told = True
        silencing.warn(
            "constant-loss",
            message(
                f"The loss was exactly the same in the first {EPOCHS} epochs.",
                expected="a loss that changes with the weights",
                received=f"loss: {loss:.4g} in each of them",
                do="check that the loss is computed from predictions and labels, and is neither "
                "clipped nor rounded",
            ),
        )


def _loss(metrics: Mapping[str, Any]) -> float | None:
    loss = metrics.get("loss")
    return None if loss is None or np.ndim(loss) else float(loss)


def _updates(optimizer: keras.optimizers.Optimizer) -> int:
    return int(tf.convert_to_tensor(optimizer.iterations))


def _checksums(optimizer: keras.optimizers.Optimizer) -> tuple[int, ...]:
    """Return a checksum of every weight: holding copies of them would take their memory again."""
    values = [state.replicas(variable.value)[0] for variable in adaptations.trained_by(optimizer)]
    return tuple(zlib.crc32(np.ascontiguousarray(value.numpy())) for value in values)
