"""Callbacks whose state is saved with a run and restored when it resumes."""

from collections.abc import Sequence
from typing import Any, final

import keras
import numpy as np


@final
class KeepPredictions(keras.callbacks.Callback):
    """Keeps the predictions for fixed inputs after some epochs, to show how the model learned.

    A task with several models names the one to use: `task.callback_model`. `kept` maps epochs,
    counted from 1 in each call of `fit`, to predictions; every checkpoint contains it, so keep it
    small.

    >>> layer = keras.layers.Dense(1, kernel_initializer="ones")
    >>> model = keras.Sequential([keras.Input((1,)), layer])
    >>> model.compile(keras.optimizers.SGD(0.0), "mse")
    >>> seen = KeepPredictions(np.array([[2.0]]), epochs=[1, 3])
    >>> _ = model.fit(np.ones((4, 1)), np.ones((4, 1)), epochs=3, verbose=0, callbacks=[seen])
    >>> {epoch: predictions.tolist() for epoch, predictions in seen.kept.items()}
    {1: [[2.0]], 3: [[2.0]]}
    """

    def __init__(self, inputs: Any, epochs: Sequence[int]) -> None:
        super().__init__()
        self._inputs, self._epochs = inputs, epochs
        self.kept: dict[int, Any] = {}

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Predict after the epochs to keep; Keras counts epochs from 0."""
        if epoch + 1 in self._epochs:
            self.kept[epoch + 1] = np.asarray(self.model(self._inputs, training=False))

    def get_state(self) -> dict[str, Any]:
        """Return the state to save, as JSON values."""
        return {str(epoch): predictions.tolist() for epoch, predictions in self.kept.items()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        self.kept = {int(epoch): np.array(predictions) for epoch, predictions in state.items()}
