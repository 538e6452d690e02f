"""Callbacks and schedules that count something else than one may think."""

from typing import Any

import keras
import numpy as np
import pytest

import loopwright as lw

X = np.random.default_rng(0).normal(size=(80, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def notes(rate: Any = 0.1, accumulated: int | None = None, **options: Any) -> tuple[list[str], Any]:
    """Trains ten steps per epoch; returns the notes of the start, and the history."""
    optimizer = keras.optimizers.SGD(rate, gradient_accumulation_steps=accumulated)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    told: list[lw.Event] = []
    trainer = lw.Trainer(lw.Supervised(model, "mse", optimizer), plan="graph", sinks=[told.append])
    history = trainer.fit(X, Y, batch_size=8, verbose=0, validation_data=(X, Y), **options)
    return [event.text for event in told if isinstance(event, lw.Noted)], history


def stopping() -> keras.callbacks.Callback:
    return keras.callbacks.EarlyStopping(patience=1, min_delta=1000.0)


def test_patience_in_epochs_is_said_where_validations_come_more_often():
    found, history = notes(callbacks=[stopping()], validate_every="5 steps", epochs=9)
    assert [note for note in found if "EarlyStopping counts epochs" in note]
    assert history.epoch_steps == [10, 20]


def test_steps_per_epoch_makes_patience_count_validations():
    found, history = notes(callbacks=[stopping()], steps_per_epoch=5, until="90 steps")
    assert not any("counts epochs" in note for note in found)
    assert history.validation_steps == [5, 10]


@pytest.mark.parametrize("every", ["1 epoch", "2 epochs", "10 steps"])
def test_patience_is_not_mentioned_where_each_validation_ends_an_epoch(every: str):
    found, _ = notes(callbacks=[keras.callbacks.ReduceLROnPlateau()], validate_every=every)
    assert not found


@pytest.mark.parametrize(("steps", "is_said"), [(7, True), (8, True), (30, False)])
def test_a_schedule_over_accumulated_updates_is_said_to_end_too_early(steps: int, is_said: bool):
    rate = keras.optimizers.schedules.CosineDecay(0.1, decay_steps=steps)
    found, _ = notes(rate, accumulated=4, epochs=3)
    assert any("counts steps, not updates" in note for note in found) == is_said
