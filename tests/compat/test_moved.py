"""Internals that have moved lead to a fallback or a refusal, never to a wrong number."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.mirrored import mirrored

import loopwright as lw
from loopwright.compat import internals, keras_optimizers, tensorflow_internals
from loopwright.errors import ConfigurationError

X, Y = np.ones((8, 2), "float32"), np.ones((8, 1), "float32")


def supervised() -> lw.Supervised:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    return lw.Supervised(model, "mse", keras.optimizers.SGD(0.1))


def test_without_the_reduction_of_keras_one_replica_trains_and_several_are_refused(
    monkeypatch: pytest.MonkeyPatch,
):
    name = "_all_reduce_sum_gradients"
    owner = next(kind for kind in keras.optimizers.SGD.__mro__ if name in vars(kind))
    monkeypatch.delattr(owner, name)
    with pytest.raises(ConfigurationError, match=r"^_all_reduce_sum_gradients of Keras or Tensor"):
        lw.Trainer(supervised, plan="graph", strategy=mirrored()).fit(X, Y, verbose=0)
    with keras_optimizers.optimizers_reduce_nothing():
        pass


@pytest.mark.parametrize("moved", ["module", "function"])
def test_without_the_scaling_of_losses_one_replica_trains_and_several_are_refused(
    moved: str, monkeypatch: pytest.MonkeyPatch
):
    if moved == "module":
        monkeypatch.setattr(keras_optimizers, "keras_loss", None)
    else:
        lost = "unscale_loss_for_distribution"
        monkeypatch.delattr(keras_optimizers.keras_loss, lost)
    lw.Trainer(supervised(), plan="graph").fit(X, Y, verbose=0)
    with pytest.raises(ConfigurationError, match="_loss_for_distribution of Keras"):
        lw.Trainer(supervised, plan="graph", strategy=mirrored()).fit(X, Y, verbose=0)


def test_a_private_module_that_has_moved_is_none():
    assert internals.module("tensorflow.python.ops.no_such_module") is None


def test_without_the_seeds_of_a_shuffle_it_counts_as_reshuffled():
    data = tf.data.Dataset.range(4).shuffle(4, seed=1)
    del data._reshuffle_each_iteration
    assert tensorflow_internals.pipeline_parts(data)[0].draws_each_pass
