"""History: the metrics that `fit` returns, collected from events."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import keras

from loopwright.events import EpochEnded, Event, Validated


@final
class History(keras.callbacks.History):
    """The numbers of a run: `.history` is a dict of lists, with Keras' names.

    It is a `keras.callbacks.History` for tuners and trackers that require one.

    Training numbers have one entry per epoch. `val_` numbers have one entry per validation, so
    with `validate_every="500 steps"` there can be more of them: `validation_steps` says at which
    steps they were measured, `epoch_steps` at which steps the epochs ended.
    """

    def __init__(self) -> None:
        keras.callbacks.Callback.__init__(self)  # its own sets self.history
        self.epoch: list[int] = []
        self.epoch_steps: list[int] = []
        self.validation_steps: list[int] = []
        self._training: dict[str, list[Any]] = {}
        self._validation: dict[str, list[Any]] = {}
        self._added: Callable[[], Mapping[str, Any]] = dict

    def take_from(self, added: Callable[[], Mapping[str, Any]]) -> None:
        """Include the numbers that callbacks like ReduceLROnPlateau add to the logs of an epoch."""
        self._added = added

    @property
    def history(self) -> dict[str, list[Any]]:
        """Return every number by name, those of training first."""
        return self._training | self._validation

    def __call__(self, event: Event) -> None:
        """Collect the numbers of an event."""
        if isinstance(event, EpochEnded):
            self.epoch.append(event.epoch)
            self.epoch_steps.append(event.step)
            for name, value in {**event.metrics, **self._added()}.items():
                self._training.setdefault(name, []).append(value)
        elif isinstance(event, Validated):
            self.validation_steps.append(event.step)
            for name, value in event.metrics.items():
                self._validation.setdefault(f"val_{name}", []).append(value)

    def state(self) -> dict[str, Any]:
        """Return a copy of all numbers, for a checkpoint that is written in the background."""
        return {
            "epoch": [*self.epoch],
            "epoch_steps": [*self.epoch_steps],
            "validation_steps": [*self.validation_steps],
            "training": _as_lists(self._training),
            "validation": _as_lists(self._validation),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state, so that `fit` returns the numbers before a resume as well."""
        self.epoch, self.epoch_steps = list(state["epoch"]), list(state["epoch_steps"])
        self.validation_steps = list(state["validation_steps"])
        self._training, self._validation = dict(state["training"]), dict(state["validation"])

    def plot(
        self,
        metrics: "str | Sequence[str] | None" = None,
        path: "str | os.PathLike[str] | None" = None,
    ) -> Any:
        """Return a matplotlib figure: a panel for each metric, training and validation, the best.

        `metrics` are the names to draw (`["loss", "accuracy"]`), by default all. With a `path` the
        figure is written to a `.png`, `.svg` or `.pdf` file. Needs matplotlib:
        `pip install 'loopwright[plot]'`.
        """
        from loopwright.sinks import figures

        return figures.saved(figures.plot_history(self, metrics), path)

    def _repr_html_(self) -> str:
        from loopwright.sinks import notebook

        return notebook.history_card(self)

    def __repr__(self) -> str:
        last = {name: values[-1] for name, values in self.history.items()}
        return f"History({len(self.epoch)} epochs, last: {last})"


def _as_lists(numbers: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Return numbers that JSON can hold: a metric may report an array."""
    return {
        name: [value.tolist() if hasattr(value, "tolist") else value for value in values]
        for name, values in numbers.items()
    }
