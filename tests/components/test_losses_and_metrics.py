"""Huber three ways, Huber as a metric, and a metric that adds up true and false positives."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import loopwright as lw
from loopwright import components

WAYS: dict[str, Any] = {
    "function": lambda: components.huber,
    "factory": lambda: components.huber_with(1.0),
    "class": lambda: components.HuberLoss(1.0, reduction="none"),
}


@pytest.mark.parametrize("way", list(WAYS))
def test_all_three_give_the_losses_that_keras_gives(way: str):
    errors = np.array([[-3.0, 0.5], [1.0, 0.0], [1e30, 2.0]], "float32")
    expected = keras.losses.huber(np.zeros_like(errors), errors, delta=1.0)
    np.testing.assert_allclose(WAYS[way]()(np.zeros_like(errors), errors), expected, rtol=1e-6)


@pytest.mark.parametrize("threshold", [0.5, 2.0])
def test_a_threshold_moves_the_point_where_squares_end(threshold: float):
    errors = np.array([[0.25], [5.0]], "float32")
    expected = keras.losses.huber(np.zeros_like(errors), errors, delta=threshold)
    zeros = np.zeros_like(errors)
    np.testing.assert_allclose(components.huber_with(threshold)(zeros, errors), expected)
    loss = components.HuberLoss(threshold, reduction="none")
    np.testing.assert_allclose(loss(zeros, errors), expected)


def test_an_error_whose_square_overflows_has_a_finite_gradient():
    predictions = tf.constant([[3e4]], tf.float16)
    with tf.GradientTape() as tape:
        tape.watch(predictions)
        loss = components.huber_with(2.0)([[0.0]], predictions)
    assert tape.gradient(loss, predictions).numpy().tolist() == [[2.0]]


@pytest.mark.parametrize("make", [components.huber_with, components.HuberLoss])
@pytest.mark.parametrize("threshold", [0.0, -1.0, float("nan")])
def test_a_threshold_that_no_error_is_below_is_refused(make: Any, threshold: float):
    with pytest.raises(lw.ConfigurationError, match="must be greater than zero"):
        make(threshold)


# --- metrics ---


def test_the_metric_is_the_mean_over_all_batches_since_the_reset():
    metric = components.HuberMetric(2.0)
    assert float(metric.result()) == 0.0
    metric.update_state([[0.0]], [[9.0]])
    metric.reset_state()
    metric.update_state([[0.0], [0.0]], [[0.5], [3.0]])  # 0.125, 4
    metric.update_state([[0.0]], [[1.0]])  # 0.5
    assert float(metric.result()) == pytest.approx((0.125 + 4.0 + 0.5) / 3)


@pytest.mark.parametrize("weights", [[1.0, 3.0], [[1.0], [3.0]]], ids=["(n,)", "(n, 1)"])
def test_the_metric_honours_weights(weights: Any):
    metric = components.HuberMetric(2.0)
    metric.update_state([[0.0], [0.0]], [[0.5], [3.0]], sample_weight=weights)
    metric.update_state([[0.0]], [[100.0]], sample_weight=[0.0])
    assert float(metric.result()) == pytest.approx((1 * 0.125 + 3 * 4.0) / 4)


def test_weights_of_examples_count_for_every_step_of_a_sequence():
    metric = components.HuberMetric(2.0)
    predictions = np.array([[[0.5], [0.5]], [[3.0], [1.0]]], "float32")
    metric.update_state(np.zeros_like(predictions), predictions, sample_weight=[1.0, 3.0])
    assert float(metric.result()) == pytest.approx((0.125 * 2 + 3 * (4.0 + 0.5)) / 8)


def test_a_function_and_the_metric_report_the_same_in_a_training():
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).normal(size=(50, 2)).astype("float32")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    metrics = [components.huber, components.HuberMetric(1.0, name="streaming")]
    trainer = lw.Trainer(lw.Supervised(model, "mse", "sgd", metrics=metrics), plan="graph")
    history = trainer.fit(x, 3 * x[:, :1], epochs=2, batch_size=16, verbose=0).history
    assert history["huber"] == pytest.approx(history["streaming"])
    assert history["huber"][0] > history["huber"][1]


def test_precision_adds_up_over_the_batches_of_an_epoch_in_a_task():
    class Counting(lw.Task):
        def __init__(self):
            super().__init__()
            self.precision = keras.metrics.Precision(name="precision")

        def train_step(self, batch):
            labels, predictions = batch
            self.precision.update_state(labels, predictions)
            return {"shown": tf.reduce_mean(predictions)}

    labels = np.array([0, 1, 1, 1, 0, 1, 0, 1, 0, 1, 0, 0, 1, 0, 1, 1], "float32")
    predictions = np.array([1, 1, 0, 1, 0, 1, 0, 1, 1, 0, 1, 1, 0, 0, 0, 0], "float32")
    trainer = lw.Trainer(Counting(), plan="graph")
    options: Any = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}
    history = trainer.fit((labels, predictions), **options)
    assert history.history["precision"] == [0.5, 0.5]
