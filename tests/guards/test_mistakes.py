"""The mistakes of the documents that this library comes from: each trains right or is named."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import loopwright as lw
from loopwright.recipes import regression

random = np.random.default_rng(5)
X = random.normal(size=(16, 4)).astype("float32")
Y = X @ np.array([[1.0], [-2.0], [0.5], [0.0]], "float32")


def dense(*more: keras.Layer) -> keras.Model:
    return keras.Sequential([keras.Input((4,)), *more, layers.Dense(1)])


class Regression(lw.Task):
    """A step by hand; each mistake is in its loss, its model or its step."""

    def __init__(self, loss: Callable[..., Any] | None = None, model: keras.Model | None = None):
        super().__init__()
        self.model = model or dense()
        self.optimizer = keras.optimizers.SGD(0.01)
        self.loss = loss or squared_error

    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = self.loss(self.model, x, y)
        self.minimize(loss, self.model, self.optimizer, tape)
        return {"loss": loss}


def squared_error(model, x, y):
    return tf.reduce_mean(tf.square(y - model(x, training=True)))


def fit(task: lw.Task, *data: Any, **options: Any) -> lw.History:
    trainer = lw.Trainer(task, plan="graph", run_dir=options.pop("run_dir", None))
    return trainer.fit(*(data or (X, Y)), batch_size=8, verbose=0, **options)


def warned(task: lw.Task) -> str:
    """The one warning of a training that goes on all the same."""
    with pytest.warns(lw.StepWarning) as caught:
        fit(task)
    texts = {str(warning.message) for warning in caught}
    assert len(texts) == 1
    text, silence = texts.pop().rsplit("\n", 1)
    assert silence.startswith('  silence: Trainer(..., silence=["')
    return text


def line_of(marker: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(n for n, text in enumerate(lines, 1) if text.endswith(f"  # {marker}"))


# --- what is passed to what -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "loss"),
    [
        ("MeanSquaredError", keras.losses.MeanSquaredError),
        ("mean_squared_error", lambda: keras.losses.mean_squared_error),
    ],
)
def test_a_loss_called_with_predictions_first_has_its_arguments_swapped(name: str, loss: Any):
    def swapped(model, x, y):
        return tf.reduce_mean(loss()(model(x, training=True), y))

    assert warned(Regression(swapped)) == (
        f"The arguments of {name} are swapped: predictions first, then labels.\n"
        f"  expected: {name}: labels first, then predictions\n"
        "  received: a first argument that depends on weights, and a second that does not\n"
        "  do: write loss(labels, predictions)"
    )


def test_swapped_arguments_are_named_also_where_keras_refuses_them():
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    task = Regression(lambda model, x, y: cross_entropy(model(x, training=True), y), model)
    with (
        pytest.warns(lw.StepWarning, match="are swapped"),
        pytest.raises(ValueError, match="shape"),
    ):
        fit(task, X, np.arange(16) % 3)


def test_float64_labels_train_as_float32_labels_do_and_integers_stay():
    def trained(labels: Any) -> list[float]:
        keras.utils.set_random_seed(0)
        return fit(Regression(), X, labels).history["loss"]

    assert trained(Y.astype("float64")) == trained(Y)

    seen = []

    def note(model, x, y):
        seen.append(y.dtype)
        return squared_error(model, x, tf.cast(y, tf.float32))

    fit(Regression(note), X, np.ones((16, 1), "int64"))
    assert set(seen) == {tf.int64}


# --- what a step leaves out -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (lambda: layers.Dropout(0.5, seed=1, name="dropout"), "dropout"),
        (lambda: layers.BatchNormalization(name="norm"), "norm"),
    ],
)
def test_a_model_called_without_training_is_in_inference_mode(layer: Any, name: str):
    model = dense(layer())
    task = Regression(lambda model, x, y: tf.reduce_mean(tf.square(y - model(x))), model)
    assert warned(task) == (
        f"The step calls {model.name!r} without training=True: dropout and batch norm are in "
        "inference mode while training.\n"
        f"  received: inference mode for {name}\n"
        "  do: write model(x, training=True) in train_step, or False if that is intended"
    )


def frozen() -> keras.Model:
    model = dense(layers.BatchNormalization())
    model.layers[0].trainable = False
    return model


@pytest.mark.parametrize(
    ("loss", "model"),
    [
        (squared_error, lambda: dense(layers.Dropout(0.5, seed=1))),
        (lambda model, x, y: squared_error(model, x, y) + 0 * model(x)[0, 0], dense),
        (
            lambda model, x, y: tf.reduce_mean(tf.square(y - model(x, training=False))),
            lambda: dense(layers.BatchNormalization()),
        ),
        (lambda model, x, y: tf.reduce_mean(tf.square(y - model(x))), dense),
        (lambda model, x, y: tf.reduce_mean(tf.square(y - model(x))), frozen),
    ],
    ids=["training", "once each", "meant", "no modes", "frozen"],
)
def test_a_model_that_is_called_as_it_should_be_is_no_mistake(loss: Any, model: Any):
    fit(Regression(loss, model()))  # a warning would be an error here


# --- what a step returns ----------------------------------------------------------------------


@pytest.mark.parametrize("start", [None, 0.0], ids=["alone", "added"])
def test_what_apply_gradients_returns_is_no_loss(start: Any):
    class Counting(Regression):
        def train_step(self, batch):
            x, y = batch
            with tf.GradientTape() as tape:
                loss = self.loss(self.model, x, y)
            variables = self.model.trainable_variables
            pairs = zip(tape.gradient(loss, variables), variables, strict=True)
            applied = self.optimizer.apply_gradients(pairs)
            return {"loss": applied if start is None else start + applied}

    with pytest.raises(lw.StepError) as caught:
        fit(Counting())
    assert str(caught.value) == (
        "Counting.train_step returned 'loss', which is not a loss but a number of updates.\n"
        "  expected: a number computed from the batch\n"
        "  received: what optimizer.apply_gradients returns: its count of updates\n"
        "  do: return the loss from which the gradients were taken"
    )


def test_a_validation_loss_is_a_mean_over_examples_however_they_are_batched():
    task = lw.Supervised(dense(), "mse", "sgd")
    scores = [
        lw.Trainer(task, plan="graph").evaluate(X, Y, batch_size=size)["loss"] for size in (16, 5)
    ]
    assert scores[0] == pytest.approx(scores[1], rel=1e-5)
    assert scores[0] == pytest.approx(float(np.mean((Y - task.model(X)) ** 2)), rel=1e-5)


def test_a_metric_begins_anew_with_every_epoch():
    class Counted(Regression):
        def __init__(self):
            super().__init__()
            self.examples = keras.metrics.Sum(name="examples")

        def train_step(self, batch):
            self.examples.update_state(tf.ones_like(batch[1]))
            return super().train_step(batch)

    assert fit(Counted(), epochs=3).history["examples"] == [16, 16, 16]


@pytest.mark.parametrize("method", ["apply_gradients", "apply"])
def test_updates_by_the_optimizer_itself_are_unrolled_too(method: str):
    class ByHand(Regression):
        def train_step(self, batch):
            x, y = batch
            loss = tf.zeros(())
            for _epoch in range(12):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.square(y - self.model(x, training=True)))
                variables = self.model.trainable_variables
                gradients = tape.gradient(loss, variables)
                if method == "apply":
                    self.optimizer.apply(gradients, variables)
                else:
                    self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
            return {"loss": loss}

    assert warned(ByHand()).startswith(
        "ByHand.train_step makes the same update 12 times: a Python loop was unrolled 12 times"
    )


def test_a_loop_in_the_train_step_of_a_keras_model_is_unrolled_too():
    class ByHand(keras.Sequential):
        def train_step(self, data):
            x, y = data
            loss = tf.zeros(())
            for _epoch in range(12):
                with tf.GradientTape() as tape:
                    loss = self.compute_loss(x, y, self(x, training=True))
                gradients = tape.gradient(loss, self.trainable_variables)
                self.optimizer.apply_gradients(
                    zip(gradients, self.trainable_variables, strict=True)
                )
            return {"loss": loss}

    model = ByHand([keras.Input((X.shape[1],)), layers.Dense(1)])
    model.compile("sgd", "mse")
    assert "makes the same update 12 times" in warned(model)


def test_a_few_updates_of_one_batch_by_hand_are_no_unrolled_loop():
    class Critic(Regression):
        def train_step(self, batch):
            x, y = batch
            loss = tf.zeros(())
            for _ in range(5):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.square(y - self.model(x, training=True)))
                variables = self.model.trainable_variables
                self.optimizer.apply(tape.gradient(loss, variables), variables)
            return {"loss": loss}

    fit(Critic())


def test_a_loop_of_tensorflow_inside_a_step_is_not_unrolled():
    class Looping(Regression):
        def train_step(self, batch):
            loss = tf.zeros(())
            for _ in tf.range(12):
                loss = Regression.train_step(self, batch)["loss"]
            return {"loss": loss}

    task = Looping()
    fit(task)
    assert int(task.optimizer.iterations) == 24


# --- numbers ----------------------------------------------------------------------------------


def naive_softplus(z):
    return tf.math.log(tf.exp(z) + 1.0)  # overflow


@pytest.mark.parametrize("plan", ["graph", "eager"])
def test_an_overflow_is_named_and_eagerly_also_the_operation_where_it_began(plan: str):
    task = Regression(model=dense(layers.Dense(3, activation=naive_softplus)))
    trainer = lw.Trainer(task, plan=plan)
    with pytest.raises(lw.NotFiniteError) as caught:
        trainer.fit(1000 * X, Y, batch_size=8, verbose=0)

    text = str(caught.value)
    assert text.startswith("The loss is NaN or infinite at step 1.\n")
    assert 'plan="eager" names the first operation that is not finite' in text
    place = f'(file "test_mistakes.py", line {line_of("overflow")}: return tf.math.log('
    assert (f"first in Exp {place}" in text) == (plan == "eager")


def test_looking_for_the_first_operation_leaves_the_state_as_the_step_left_it():
    def infinite(model, x, y):
        return squared_error(model, x, y) * tf.exp(1000.0)

    task = Regression(infinite)
    with pytest.raises(lw.NotFiniteError, match="first in Exp"):
        lw.Trainer(task, plan="eager").fit(X, Y, batch_size=8, verbose=0)
    assert int(task.optimizer.iterations) == int(task.step) == 1
    assert not np.isfinite(task.model.get_weights()[0]).any()


# --- what is saved ----------------------------------------------------------------------------


class Noise(keras.layers.Layer):
    def call(self, inputs):
        return inputs + tf.random.normal(tf.shape(inputs))


def test_noise_from_a_hidden_state_in_a_layer_cannot_be_resumed(tmp_path: Path):
    with pytest.raises(lw.StepError) as caught:
        fit(Regression(model=dense(Noise())), run_dir=tmp_path / "run")
    assert "tf.random.normal (instead: keras.random.normal(..., seed=self.seed))" in str(
        caught.value
    )


def test_test_data_is_scaled_by_what_the_training_data_says():
    x = regression.load()["test"][0]
    assert abs(x.mean(0)).max() > 0.01  # its own statistics would have made this 0
