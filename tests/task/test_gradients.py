"""From a loss to an update: scale, unscale, transform, accumulate, clip, apply, in this order."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import loopwright as lw
from loopwright.errors import StepError
from loopwright.task import gradients
from loopwright.task.context import StepContext, entered

SGD = keras.optimizers.SGD
LossScaleOptimizer = keras.optimizers.LossScaleOptimizer

START = np.array([1.0, -2.0], "float32")
GRADIENT = np.array([3.0, 4.0], "float32")  # norm 5


def weights() -> keras.Variable:
    return keras.Variable(START, name="w")


def minimized(w: keras.Variable, optimizer: Any, factor: Any = GRADIENT, **options: Any) -> Any:
    """One update whose gradient is `factor`."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.constant(factor) * w)
    return gradients.minimize(loss, [w], optimizer, tape, **options)


def applied(w: keras.Variable, optimizer: Any, factor: Any = GRADIENT, **options: Any) -> Any:
    """The same with a gradient of one's own."""
    return gradients.apply([tf.constant(factor)], [w], optimizer, **options)


def in_graph(update: Any) -> Any:
    """The same inside a compiled function."""

    def run(*args: Any, **options: Any) -> Any:
        return tf.function(lambda: update(*args, **options))()

    return run


def value(w: Any) -> np.ndarray:
    return w.numpy()


either = pytest.mark.parametrize(
    "update",
    [minimized, applied, in_graph(minimized), in_graph(applied)],
    ids=["minimize", "apply", "minimize in a graph", "apply in a graph"],
)

SCALED = {
    "plain": lambda **options: SGD(1.0, **options),
    "scale factor": lambda **options: SGD(1.0, loss_scale_factor=1024.0, **options),
    "dynamic scale": lambda **options: LossScaleOptimizer(SGD(1.0, **options)),
}
however_scaled = pytest.mark.parametrize("scaled", list(SCALED.values()), ids=list(SCALED))


# --- scale ----------------------------------------------------------------------------------------


@either
@however_scaled
def test_a_scale_changes_neither_the_update_nor_the_norm(update: Any, scaled: Any):
    w = weights()

    norm = update(w, scaled())

    np.testing.assert_array_equal(value(w), START - GRADIENT)
    assert float(norm) == 5.0


def test_a_dynamic_scale_grows_after_enough_good_steps():
    w, optimizer = weights(), LossScaleOptimizer(SGD(0.1), 4.0, dynamic_growth_steps=2)

    scales = []
    for _ in range(4):
        minimized(w, optimizer)
        scales.append(float(value(optimizer.dynamic_scale)))

    assert scales == [4.0, 8.0, 8.0, 16.0]


@either
def test_a_gradient_without_end_is_skipped_and_the_scale_halved(update: Any):
    w, optimizer = weights(), LossScaleOptimizer(SGD(1.0), 4.0)

    norm = update(w, optimizer, np.array([np.inf, 1.0], "float32"))

    assert np.isinf(norm)
    np.testing.assert_array_equal(value(w), START)
    assert float(value(optimizer.dynamic_scale)) == 2.0
    assert int(value(optimizer.inner_optimizer.iterations)) == 0


def test_a_half_precision_model_gets_gradients_that_would_vanish_without_a_scale():
    def update(scaled: bool) -> float:
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, dtype="mixed_float16")])
        optimizer = LossScaleOptimizer(SGD(1.0)) if scaled else SGD(1.0)
        before = value(model.layers[0].bias)
        with tf.GradientTape() as tape:
            loss = 1e-8 * tf.reduce_sum(tf.cast(model(tf.ones((1, 2))), tf.float32))
        gradients.minimize(loss, model, optimizer, tape)
        return float((before - value(model.layers[0].bias))[0])

    assert update(scaled=False) == 0.0
    assert update(scaled=True) == pytest.approx(1e-8, rel=1e-2)


def test_a_half_precision_model_learns():
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).normal(size=(64, 2)).astype("float32")
    y = x[:, :1] - x[:, 1:]
    half = {"dtype": "mixed_float16"}
    model = keras.Sequential(
        [
            keras.Input((2,)),
            keras.layers.Dense(8, activation="relu", **half),
            keras.layers.Dense(1, **half),
        ],
    )

    # Too large on purpose: the first updates are skipped until the scale fits.
    optimizer = LossScaleOptimizer(keras.optimizers.Adam(0.05), 2.0**24)
    task = lw.Supervised(model, "mse", optimizer)

    loss = lw.Trainer(task).fit(x, y, batch_size=16, epochs=15, verbose=0).history["loss"]

    assert loss[-1] < 0.1 * loss[0]
    updates = int(value(optimizer.inner_optimizer.iterations))
    skipped = 60 - updates
    assert skipped > 0
    assert float(value(optimizer.dynamic_scale)) == 2.0 ** (24 - skipped)


# --- transform ------------------------------------------------------------------------------------


@either
@however_scaled
def test_a_transform_sees_gradients_without_scale_and_the_variables(update: Any, scaled: Any):
    w, seen = weights(), tf.Variable(np.zeros(2, "float32"))

    def halved(grads, variables):
        (gradient,) = grads
        assert variables == [w]
        seen.assign(gradient)
        return [gradient / 2.0]

    norm = update(w, scaled(), transform=halved)

    np.testing.assert_array_equal(seen.numpy(), GRADIENT)
    np.testing.assert_array_equal(value(w), START - GRADIENT / 2.0)
    assert float(norm) == 5.0  # of the gradient, not of what was made of it


@either
@however_scaled
def test_clipping_is_the_optimizers_own_and_comes_after_the_transform(update: Any, scaled: Any):
    w = weights()

    norm = update(w, scaled(global_clipnorm=1.0), transform=lambda g, _: [100.0 * g[0]])

    np.testing.assert_allclose(value(w), START - GRADIENT / 5.0, rtol=1e-6)
    assert float(norm) == 5.0


@pytest.mark.parametrize(
    ("wrong", "received"),
    [
        (lambda g, v: None, "NoneType"),
        (lambda g, v: g[:1], "list of 1"),
        (lambda g, v: (gradient for gradient in g), "generator"),
        (lambda g, v: g[0], "EagerTensor"),
    ],
    ids=["None", "too few", "generator", "tensor"],
)
def test_a_transform_that_returns_the_wrong_thing_is_refused(wrong: Any, received: str):
    variables = [weights(), weights()]

    with pytest.raises(StepError) as caught:
        gradients.apply([tf.ones(2)] * 2, variables, SGD(1.0), transform=wrong)

    assert str(caught.value) == (
        "A gradient transform must return as many gradients as it was given.\n"
        "  expected: a list of 2 gradients\n"
        f"  received: {received}\n"
        "  do: write it as `def transform(gradients, variables): return [...]`"
    )
    np.testing.assert_array_equal(value(variables[0]), START)


# --- accumulate -----------------------------------------------------------------------------------


@pytest.mark.parametrize("update", [minimized, applied], ids=["minimize", "apply"])
@however_scaled
def test_accumulated_gradients_make_one_update_with_their_mean(update: Any, scaled: Any):
    w, optimizer = weights(), scaled(gradient_accumulation_steps=2)

    update(w, optimizer, GRADIENT)
    between = value(w)
    norm = update(w, optimizer, 3.0 * GRADIENT)

    np.testing.assert_array_equal(between, START)
    np.testing.assert_allclose(value(w), START - 2.0 * GRADIENT, rtol=1e-6)
    assert float(norm) == 15.0  # of the step's own gradient


# --- sparse gradients -----------------------------------------------------------------------------


# Keras cannot divide a sparse gradient by a fixed `loss_scale_factor`.
@pytest.mark.parametrize(
    "scaled", [SCALED["plain"], SCALED["dynamic scale"]], ids=["plain", "scaled"]
)
def test_an_embedding_moves_only_the_rows_it_looked_up(scaled: Any):
    embedding = keras.layers.Embedding(4, 2, embeddings_initializer="zeros")
    embedding.build(None)
    seen = []

    def doubled(grads, variables):
        seen.extend(grads)
        return [tf.IndexedSlices(2.0 * g.values, g.indices, g.dense_shape) for g in grads]

    with tf.GradientTape() as tape:
        factors = tf.constant([[3.0, 0.0], [0.0, 4.0]])
        loss = tf.reduce_sum(embedding(tf.constant([1, 3])) * factors)
    norm = gradients.minimize(loss, embedding, scaled(), tape, transform=doubled)

    assert isinstance(seen[0], tf.IndexedSlices)
    assert float(norm) == 5.0
    expected = [[0.0, 0.0], [-6.0, 0.0], [0.0, 0.0], [0.0, -8.0]]
    np.testing.assert_array_equal(value(embedding.embeddings), expected)


# --- what is refused ------------------------------------------------------------------------------


def test_gradients_that_are_not_one_per_variable_are_refused():
    with pytest.raises(StepError) as caught:
        gradients.apply([tf.ones(2)], [weights(), weights()], SGD(1.0))

    assert str(caught.value) == (
        "apply needs one gradient per variable.\n"
        "  expected: 2 gradients, one for each variable\n"
        "  received: 1 gradients\n"
        "  do: pass both lists in the same order"
    )


def test_gradients_of_ones_own_that_are_all_none_are_refused():
    with pytest.raises(StepError, match="No variable has a gradient"):
        gradients.apply([None], [weights()], SGD(1.0))


def test_a_variable_without_a_gradient_of_its_own_is_named_and_left_alone():
    first, second = weights(), keras.Variable(START, name="left_out")

    with pytest.warns(lw.StepWarning, match="1 of 2 variables have no gradient.*: left_out"):
        gradients.apply([tf.constant(GRADIENT), None], [first, second], SGD(1.0))

    np.testing.assert_array_equal(value(first), START - GRADIENT)
    np.testing.assert_array_equal(value(second), START)


# --- while building -------------------------------------------------------------------------------


def test_a_dry_run_notes_who_trains_what_and_changes_nothing():
    w, optimizer, met = weights(), SGD(1.0), []

    with entered(StepContext(requested=met, updates=False)):
        minimized(w, optimizer)
        applied(w, optimizer)

    assert met == [(optimizer, [w]), (optimizer, [w])]
    assert not optimizer.built
    np.testing.assert_array_equal(value(w), START)


def test_an_optimizer_is_built_once_for_all_variables_that_a_dry_run_met():
    first, second, optimizer = weights(), weights(), SGD(1.0, momentum=0.9)

    gradients.build_optimizers([(optimizer, [first]), (optimizer, [second, first])])
    applied(second, optimizer)

    np.testing.assert_array_equal(value(second), START - GRADIENT)


def test_the_norm_adds_up_rows_that_an_embedding_was_asked_for_twice():
    class Lookup(lw.Task):
        def __init__(self):
            super().__init__()
            self.table = keras.layers.Embedding(3, 1)
            self.optimizer = keras.optimizers.SGD()

        def train_step(self, batch):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(self.table(batch))
            return {"norm": self.minimize(loss, self.table, self.optimizer, tape)}

    history = lw.Trainer(Lookup()).fit(np.array([1, 1]), verbose=0).history
    assert history["norm"] == [pytest.approx(2.0)]
