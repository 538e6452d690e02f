"""What makes several replicas train as one, and that breaking any of it shows."""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.distribute.trainings import Regression, data
from tests.mirrored import mirrored
from tests.tasks import ByHand

import loopwright as lw
from loopwright.compat import keras_optimizers
from loopwright.distribute import replicas as runtime
from loopwright.task import gradients

EPOCHS = 3  # of 6 batches: the last has 3 examples, one for one replica and two for the other


def trained(strategy: Any, epochs: int = EPOCHS) -> dict[str, Any]:
    """All numbers and weights of a training with everything that goes wrong on replicas."""
    x, y = (np.concatenate([part, part[:2]]) for part in data())
    trainer = lw.Trainer(Regression, strategy=strategy, plan="graph", silence=["shared-variables"])
    held = {"": (x[:33], y[:33])}
    told = trainer.fit(x, y, batch_size=20, epochs=epochs, validation_data=held[""], verbose=0)
    return {**told.history, "weights": trainer.task.model.get_weights()}


@functools.cache
def on_one(epochs: int = EPOCHS) -> dict[str, Any]:
    return trained(None, epochs)


def different(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """The names of what is further apart than rounding."""
    assert found.keys() == expected.keys()
    apart: list[str] = []
    for name, values in expected.items():
        pairs = zip(values, found[name], strict=True)
        if not all(np.allclose(b, a, rtol=1e-5, atol=1e-6) for a, b in pairs):
            apart.append(name)
    return apart


@pytest.mark.parametrize("replicas", [2, 4])
def test_one_two_and_four_replicas_give_the_same_training_after_two_hundred_steps(replicas: int):
    assert different(trained(mirrored(replicas), epochs=34), on_one(epochs=34)) == []


_reduce, _sums = gradients._reduce, runtime.sums_over_replicas  # as they are before a break


def only_first_replica(strategy: Any, values: Any) -> Any:
    return tf.nest.map_structure(lambda v: strategy.experimental_local_results(v)[0], values)


def mean_of_means(strategy: Any, values: Any) -> Any:
    def mean(pair: Any) -> Any:
        parts = zip(*(strategy.experimental_local_results(part) for part in pair), strict=True)
        means = [tf.math.divide_no_nan(total, weight) for total, weight in parts]
        return tf.add_n(means) / len(means), tf.ones((), tf.float64)

    return {name: mean(pair) for name, pair in values.items()}


def counted_once(update: Callable[..., Any]) -> Callable[..., Any]:
    def on_first(self: Any, y: Any, predictions: Any) -> Any:
        number = tf.distribute.get_replica_context().replica_id_in_sync_group
        return update(self, y, predictions, sample_weight=tf.cast(number == 0, tf.float32))

    return on_first


BREAKS: dict[str, tuple[Any, str, Any, set[str]]] = {
    "Keras divides the loss by the replicas": (
        keras_optimizers,
        "losses_as_for_one_device",
        contextlib.nullcontext,
        {"weights", "loss"},
    ),
    "regularisation counts once for each replica": (
        gradients,
        "_reduce",
        lambda values, fraction: _reduce(values, 1.0),
        {"weights", "loss"},
    ),
    "all shares of a last batch weigh the same": (
        gradients,
        "_reduce",
        lambda values, fraction: _reduce(values, 0.5),
        {"weights"},
    ),
    "gradients are clipped before they are summed": (
        gradients,
        "_reduce",
        lambda values, fraction: _reduce(tf.clip_by_global_norm(values, 0.1)[0], fraction),
        {"weights"},
    ),
    "each replica accumulates its own gradients": (
        gradients,
        "_reduce",
        lambda values, fraction: [2 * tf.cast(fraction, v.dtype) * v for v in values],
        {"weights"},
    ),
    "numbers are means of means": (
        runtime,
        "sums_over_replicas",
        mean_of_means,
        {"loss", "val_loss"},
    ),
    "numbers are those of the first replica": (
        runtime,
        "sums_over_replicas",
        only_first_replica,
        {"loss", "val_loss"},
    ),
    "a metric counts the examples of the first replica": (
        keras.metrics.MeanAbsoluteError,
        "update_state",
        counted_once(keras.metrics.MeanAbsoluteError.update_state),
        {"mae", "val_mae"},
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_break_of_any_rule_shows(name: str, monkeypatch: pytest.MonkeyPatch):
    owner, attribute, broken, shows_in = BREAKS[name]
    expected = on_one()
    monkeypatch.setattr(owner, attribute, broken)
    assert shows_in <= set(different(trained(mirrored()), expected))


def test_without_a_break_nothing_differs():
    assert different(trained(mirrored()), on_one()) == []


class Accumulating(ByHand):
    """The mean over two steps, of rows that weigh differently on the two replicas."""

    def __init__(self):
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
        super().__init__(model, keras.optimizers.SGD(0.1, gradient_accumulation_steps=2))

    def loss_of(self, x, y):
        return tf.reduce_mean(self.model(x, training=True))


def test_accumulated_gradients_are_saved_as_one_for_all_replicas():
    x = np.arange(4, dtype="float32")[:, None]
    trainer = lw.Trainer(Accumulating, strategy=mirrored(), plan="graph")
    trainer.fit(x, batch_size=4, until="1 steps", shuffle=False, verbose=0)
    (total,) = keras_optimizers.accumulators(trainer.task.optimizer, trainer.task.model.weights)
    copies = mirrored().experimental_local_results(total)
    assert [copy.numpy().item() for copy in copies] == [1.5, 1.5]
