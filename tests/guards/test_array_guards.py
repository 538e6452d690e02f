"""What the checks of arrays leave alone; what they name is in `tests/programs/wrong/data.py`.

Warnings are errors, so that a run that ends was silent.
"""

from typing import Any

import keras
import numpy as np
import pytest

import loopwright as lw

DRAW = np.random.default_rng(7)
X = DRAW.normal(size=(300, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def fit(
    x: Any, y: Any, trainer_options: dict[str, Any] | None = None, **options: Any
) -> lw.Trainer:
    model = keras.Sequential([keras.Input(x.shape[1:]), keras.layers.Dense(1)])
    task = lw.Supervised(model, "mse", keras.optimizers.SGD(1e-6))
    made_with: dict[str, Any] = {"plan": "eager", **(trainer_options or {})}
    arguments: dict[str, Any] = {"batch_size": 300, "verbose": 0, **options}
    trainer = lw.Trainer(task, **made_with)
    trainer.fit(x, y, **arguments)
    return trainer


def test_a_check_of_data_is_silenced_by_its_id():
    with pytest.warns(lw.StepWarning, match="All labels .* are the same"):
        fit(X, np.zeros_like(Y))
    fit(X, np.zeros_like(Y), {"silence": ["constant-labels"]})


def test_rows_of_few_values_are_shared_by_chance():
    few = DRAW.integers(0, 3, size=(300, 4)).astype("float32")
    fit(few, Y, validation_data=(few[:100].copy(), Y[:100]))


def test_a_training_set_that_was_oversampled_is_left_alone_if_validation_is_not_in_it():
    rows = DRAW.integers(0, 100, size=300)
    fit(X[:100][rows], Y[:100][rows], validation_data=(X[100:], Y[100:]))


def test_on_nan_skip_is_left_to_deal_with_nan_in_the_arrays():
    x = X.copy()
    x[5] = np.nan
    events = fit(x, Y, {"on_nan": "skip"}, batch_size=150)
    assert int(events.task.step) == 2


def test_labels_that_are_sorted_are_right_where_they_are_shuffled():
    fit(X, np.sort(Y > 0, axis=0).astype("float32"))


def test_targets_that_rise_are_not_classes():
    fit(X, np.sort(Y, axis=0), shuffle=False)


def test_of_large_arrays_a_part_is_looked_at(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("loopwright.guards.arrays.MOST_BYTES", 2000)
    with pytest.warns(lw.StepWarning, match="About 100%"):
        fit(X, Y, validation_data=(X.copy(), Y))
    with pytest.warns(lw.StepWarning, match="every label is 0, in .* examples looked at"):
        fit(X, np.zeros_like(Y))
