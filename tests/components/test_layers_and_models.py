"""Layers and models: what they compute, what they refuse, what they report."""

from typing import Any

import keras
import numpy as np
import pytest
from tests.components.parts import arrays

import loopwright as lw
from loopwright import components


def test_dense_computes_what_the_one_of_keras_computes():
    x = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
    ours, theirs = components.Dense(5, "tanh"), keras.layers.Dense(5, "tanh")
    ours.build((None, 3))
    theirs.build((None, 3))
    theirs.set_weights(ours.get_weights())
    np.testing.assert_allclose(ours(x), theirs(x), rtol=1e-6)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (components.Exponential, (None, 4)),
        (lambda: components.Dense(7), (None, 7)),
        (lambda: components.TrainingNoise(0.1), (None, 4)),
        (lambda: components.ResidualBlock(2, 4), (None, 4)),
    ],
)
def test_a_layer_knows_its_shape_before_it_runs(layer: Any, shape: Any):
    made = layer()
    assert made(keras.Input((4,))).shape == shape
    assert made.compute_output_shape((None, 4)) == shape


def test_a_residual_block_with_weights_of_zero_changes_nothing():
    keras.utils.set_random_seed(0)
    block, x = components.ResidualBlock(2, 3, activation="relu"), np.ones((2, 3), "float32")
    assert not np.array_equal(block(x), x)
    block.set_weights([np.zeros_like(weight) for weight in block.get_weights()])
    np.testing.assert_array_equal(block(x), x)


def test_a_residual_block_of_another_width_is_refused():
    with pytest.raises(lw.ConfigurationError, match=r"received: inputs of width 3\n.*units=3"):
        components.ResidualBlock(2, 30)(np.ones((2, 3), "float32"))


def test_the_residual_regressor_uses_block_one_four_times_and_then_block_two():
    x = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
    model = components.ResidualRegressor(2, units=6)
    predictions = model(x)
    z = model.hidden(x)
    for block in [model.block1] * 4 + [model.block2]:
        z = block(z)
    np.testing.assert_allclose(predictions, model.out(z), rtol=1e-6)
    # Twelve tensors: the four uses of block one share theirs.
    assert len(model.trainable_variables) == 12


def test_the_reconstruction_is_a_loss_and_a_metric_in_keras_own_fit():
    x, y = arrays(60)
    model = components.ReconstructionRegressor(1, reconstruction_weight=0.5)
    model.compile("nadam", "mse")
    history = model.fit(x, y, epochs=3, batch_size=16, validation_split=0.2, verbose=0).history
    assert set(history) == {
        "loss",
        "reconstruction_loss",
        "val_loss",
        "val_reconstruction_loss",
    }
    scores = model.evaluate(x, y, verbose=0, return_dict=True)
    error = np.mean((model(x).numpy() - y) ** 2)
    assert scores["loss"] == pytest.approx(error + 0.5 * scores["reconstruction_loss"], rel=1e-5)


def make_compiled(model: Any) -> Any:
    model.compile("adam", "mse", metrics=["mse"])
    return model


def make_supervised(model: Any) -> lw.Task:
    # Compiled for something else as well: those metrics are not this task's.
    model.compile("sgd", "mae", metrics=["mae"])
    return lw.Supervised(model, "mse", "nadam", metrics=["mse"])


@pytest.mark.parametrize("make", [make_supervised, make_compiled])
def test_the_reconstruction_is_a_loss_and_a_metric_in_a_trainer(make: Any):
    x, y = arrays(60)
    keras.utils.set_random_seed(0)
    model = components.ReconstructionRegressor(1, reconstruction_weight=0.5)
    trainer = lw.Trainer(make(model), plan="graph")
    history = trainer.fit(x, y, epochs=3, batch_size=16, validation_data=(x, y), verbose=0).history
    assert "mae" not in history
    for part in ("", "val_"):
        loss, reconstruction = history[f"{part}loss"], history[f"{part}reconstruction_loss"]
        whole = np.array(history[f"{part}mse"]) + 0.5 * np.array(reconstruction)
        np.testing.assert_allclose(loss, whole, rtol=1e-5)
    assert history["reconstruction_loss"][0] > history["reconstruction_loss"][-1]


def test_without_a_weight_there_is_neither_loss_nor_metric_nor_layer():
    model = components.ReconstructionRegressor(1, reconstruction_weight=0.0)
    model(arrays()[0])
    assert model.losses == []
    assert model.metrics == []
    assert len(model.trainable_variables) == 12
