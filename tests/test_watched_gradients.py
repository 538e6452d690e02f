"""The norm of each variable's gradient, on request."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import loopwright as lw

X = np.random.default_rng(0).normal(size=(24, 3)).astype("float32")
Y = X[:, :1]
NAMES = [f"gradient_norm/model.layers[{i}].{part}" for i in (0, 1) for part in ("kernel", "bias")]


def task(**options: Any) -> Any:
    keras.utils.set_random_seed(0)
    layers = [keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(1)]
    return lw.Supervised(keras.Sequential(layers), "mse", keras.optimizers.SGD(0.0), **options)


@pytest.mark.parametrize("plan", ["graph", "fused", "eager"])
def test_each_norm_is_reported_by_the_name_of_its_variable(plan: str):
    trainer = lw.Trainer(task(), plan=plan, watch="gradients")
    history = trainer.fit(X, Y, batch_size=24, verbose=0).history
    model = trainer.task.model
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(X) - Y) ** 2)
    expected = [float(tf.norm(g)) for g in tape.gradient(loss, model.trainable_weights)]
    assert [history[name][0] for name in NAMES] == pytest.approx(expected, rel=1e-5)


def test_they_are_those_before_any_transform_and_means_over_the_epoch():
    halved = lw.Trainer(
        task(gradients=[lambda gradients, variables: [0.5 * g for g in gradients]]),
        watch="gradients",
        plan="graph",
    )
    plain = lw.Trainer(task(), watch="gradients", plan="graph")
    ours, theirs = (t.fit(X, Y, batch_size=8, verbose=0).history for t in (halved, plain))
    assert [ours[name] for name in NAMES] == [theirs[name] for name in NAMES]


def test_nothing_is_reported_unless_it_is_asked_for():
    history = lw.Trainer(task(), plan="graph").fit(X, Y, batch_size=8, verbose=0).history
    assert list(history) == ["loss"]


def test_what_cannot_be_watched_is_refused_in_words():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    for watch, watched in (("weights", task()), ("gradients", model)):
        with pytest.raises(lw.ConfigurationError, match="This cannot be watched"):
            lw.Trainer(watched, watch=watch)  # pyright: ignore[reportArgumentType]
