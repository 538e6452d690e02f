"""Mistakes that numbers show, looked for at stops: nothing is learned, the loss explodes."""

import zlib
from collections.abc import Mapping
from typing import Any, final

import keras
import numpy as np
import tensorflow as tf

from loopwright import step_warnings
from loopwright.compat import keras_optimizers
from loopwright.compat.error_messages import variable_name
from loopwright.errors import message
from loopwright.events import EpochEnded, Event, Finished, Started, Trained
from loopwright.task import variables
from loopwright.task.optimizers import learning_rates, optimizers
from loopwright.task.task import Task

UPDATES = 16
"""How many updates have to leave every weight unchanged, from the very first one on.

Later on weights may rest because nothing is left to learn.
"""
EXPLODED = 1e6
"""How many times its first value a loss has to reach; a first value below 1 counts as 1."""
LASTING_STEPS = 50
"""How long it has to stay there: a loss that is NaN before that is told by its own error."""
EPOCHS, BATCHES = 3, 11
"""How many epochs of how many batches have to report the same bits."""
_NO_RATE = 1e-5
"""A learning rate that may leave weights as they are, though their gradients are not zero."""


@final
class LearningWatch:
    """A sink that looks at losses and weights where control is back in Python anyway."""

    def __init__(self, task: Task, silenced: frozenset[str]) -> None:
        self._task, self._silenced = task, silenced
        self._optimizers: dict[str, keras.optimizers.Optimizer] = {}
        self._checksums: dict[str, tuple[int, ...]] = {}
        """Of the weights before the first update, for each optimizer; empty once compared."""
        self._is_new = False
        """Whether this run begins with untrained weights."""
        self._first_loss: float | None = None
        self._exploded_at: int | None = None
        self._is_told = False
        """Whether a mistake was named: its consequences are not named as well."""
        self._epoch_losses: list[float] = []

    def __call__(self, event: Event) -> None:
        """Look at an event, and warn of what it shows."""
        with step_warnings.silenced(self._silenced):
            match event:
                case Trained():
                    self._look_at_loss(event)
                    if not self._is_told:
                        self._look_at_weights()
                case EpochEnded():
                    self._look_at_epoch(event)
                case Finished(reason="complete" | "stopped" | "left"):
                    self._tell_explosion()
                case Started():
                    self._begin(event.step)
                case _:
                    pass

    def _begin(self, step: int) -> None:
        self._is_new = step == 0
        self._optimizers = {
            path: getattr(optimizer, "inner_optimizer", optimizer)
            for path, optimizer in optimizers(self._task).items()
        }
        self._hold_weights()

    def _hold_weights(self) -> None:
        """Hold what the weights are before the first update, as far as they are built.

        An eager step builds its optimizer when it runs: the first update has been made then.
        """
        for path, optimizer in self._optimizers.items():
            # What has no weights to train is named when the step is traced, or by Keras.
            is_built = optimizer.built and keras_optimizers.trained_by(optimizer)
            if path not in self._checksums and is_built and _updates(optimizer) <= 1:
                self._checksums[path] = _checksums(optimizer)

    def _look_at_weights(self) -> None:
        self._hold_weights()
        for path, before in self._checksums.items():
            optimizer = self._optimizers[path]
            if before and _updates(optimizer) > UPDATES:
                self._checksums[path] = ()
                if _checksums(optimizer) == before and not self._is_told:
                    self._tell_unchanged(path, optimizer)

    def _tell_unchanged(self, path: str, optimizer: keras.optimizers.Optimizer) -> None:
        self._is_told = True
        rate = learning_rates({path: optimizer})["learning_rate"]
        names = [variable_name(v) for v in keras_optimizers.trained_by(optimizer)]
        listed = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
        owner = "" if len(self._optimizers) == 1 else f" of {path}"
        what = f"No weight{owner} changed in the first {UPDATES} updates"
        if rate < _NO_RATE:
            step_warnings.warn(
                "zero-learning-rate",
                message(
                    f"{what}: the learning rate is {rate:g}.",
                    expected="updates that change the weights",
                    received=f"learning_rate={rate:g}; unchanged: {listed}",
                    do="set the optimizer's learning_rate; look at the schedule or callback that "
                    "sets it",
                ),
            )
            return
        step_warnings.warn(
            "zero-gradients",
            message(
                f"{what}: all gradients are exactly zero.",
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
        if not np.isfinite(loss):
            self._exploded_at = (
                None  # NaN has a message of its own, or a callback that waits for it
            )
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
        step_warnings.warn(
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
        if (
            loss is None
            or not self._is_new
            or not any(map(keras_optimizers.trained_by, self._optimizers.values()))
            or event.steps < BATCHES
            or len(self._epoch_losses) == EPOCHS
        ):
            return
        self._epoch_losses.append(loss)
        is_constant = len(set(self._epoch_losses)) == 1 and loss != 0
        if self._is_told or len(self._epoch_losses) < EPOCHS or not is_constant:
            return
        self._is_told = True
        step_warnings.warn(
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
    held = [v for part in keras_optimizers.trained_by(optimizer) for v in variables.variables(part)]
    # Halves are too coarse to tell a small update from none.
    if not all(v.dtype in (tf.float32, tf.float64) for v in held):
        return ()
    return tuple(zlib.crc32(variables.replicas(v)[0].numpy().tobytes()) for v in held)
