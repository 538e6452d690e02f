"""History: what `fit` returns, collected from events."""

from collections.abc import Callable, Mapping
from typing import Any, final

from loopwright.events import EpochEnded, Event, Validated


@final
class History:
    """The numbers of a run: `.history` is a dict of lists, with Keras' names.

    Training numbers have one entry per epoch. `val_` numbers have one entry per validation, so
    with `validate_every="500 steps"` there can be more of them: `validation_steps` says at which
    steps they were measured, `epoch_steps` at which steps the epochs ended.
    """

    def __init__(self, added: Callable[[], Mapping[str, Any]] = dict) -> None:
        self.epoch: list[int] = []
        self.epoch_steps: list[int] = []
        self.validation_steps: list[int] = []
        self._training: dict[str, list[Any]] = {}
        self._validation: dict[str, list[Any]] = {}
        # Callbacks like ReduceLROnPlateau add numbers of their own when an epoch ends.
        self._added = added

    @property
    def history(self) -> dict[str, list[Any]]:
        """Every number by name, those of training first."""
        return self._training | self._validation

    def __call__(self, event: Event) -> None:
        """Hears an event."""
        if isinstance(event, EpochEnded):
            self.epoch.append(event.epoch)
            self.epoch_steps.append(event.step)
            for name, value in {**event.metrics, **self._added()}.items():
                self._training.setdefault(name, []).append(value)
        elif isinstance(event, Validated):
            self.validation_steps.append(event.step)
            for name, value in event.metrics.items():
                self._validation.setdefault(f"val_{name}", []).append(value)

    def __repr__(self) -> str:
        last = {name: values[-1] for name, values in self.history.items()}
        return f"History({len(self.epoch)} epochs, last: {last})"
