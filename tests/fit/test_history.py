"""What `fit` returns, collected from events."""

from typing import Any

from loopwright.events import (
    EpochEnded,
    Event,
    Validated,
    epoch_logs,
)
from loopwright.fit.history import History


def epoch(number: int, step: int, **metrics: Any) -> EpochEnded:
    return EpochEnded(number, step, 10, 1.0, metrics)


def validation(step: int, **metrics: Any) -> Validated:
    return Validated(step, 0, 1.0, metrics)


def collected(*events: Event) -> History:
    history = History()
    for event in events:
        history(event)
    return history


def test_numbers_have_one_entry_per_epoch_or_per_validation_and_their_steps():
    history = collected(
        validation(4, loss=0.9),
        validation(8, loss=0.8),
        epoch(0, 10, loss=0.5, accuracy=0.7),
        validation(20, loss=0.7),
        # Its validation is not counted twice.
        EpochEnded(1, 20, 10, 1.0, {"loss": 0.4, "accuracy": 0.8}, {"loss": 0.7}),
    )
    training = {"loss": [0.5, 0.4], "accuracy": [0.7, 0.8]}
    assert history.history == {**training, "val_loss": [0.9, 0.8, 0.7]}
    assert history.validation_steps == [4, 8, 20]
    assert (history.epoch, history.epoch_steps) == ([0, 1], [10, 20])
    last = "{'loss': 0.4, 'accuracy': 0.8, 'val_loss': 0.7}"
    assert repr(history) == f"History(2 epochs, last: {last})"


def test_the_logs_of_an_epoch_have_the_names_of_keras_in_the_order_of_keras():
    logs = epoch_logs(EpochEnded(0, 10, 10, 1.0, {"loss": 0.5, "mae": 1.0}, {"loss": 0.7}))
    assert list(logs.items()) == [("loss", 0.5), ("mae", 1.0), ("val_loss", 0.7)]
