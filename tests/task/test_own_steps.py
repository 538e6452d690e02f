"""Tasks written by hand: any number of models, optimizers and metrics, and a step in plain
TensorFlow.
"""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.tasks import ByHand

import loopwright as lw

random = np.random.default_rng(2)
X = random.normal(size=(40, 4)).astype("float32")
Y = (X @ np.array([[1.0], [-2.0], [0.5], [0.0]], "float32")).astype("float32")
QUIET: dict[str, Any] = {"batch_size": 8, "verbose": 0}


def mlp(*sizes: int, inputs: int | None = 4) -> keras.Model:
    """Dense layers; `inputs=None` leaves the model unbuilt."""
    body = [keras.layers.Dense(size, activation="relu") for size in sizes[:-1]]
    given = [] if inputs is None else [keras.Input((inputs,))]
    return keras.Sequential([*given, *body, keras.layers.Dense(sizes[-1])])


def squared_error(y: Any, predictions: Any) -> Any:
    return tf.reduce_mean(tf.square(y - predictions))


class Regression(ByHand):
    """The smallest task: one model, one optimizer, no metrics."""

    def __init__(self, model: keras.Model | None = None, optimizer: Any = None):
        held = mlp(8, 1) if model is None else model
        super().__init__(held, optimizer or keras.optimizers.SGD(0.05))


class Descent(lw.Task):
    """One number `w`, which each step lowers by what `gradient` says: easy to follow by hand."""

    def __init__(self, start: float = 0.0):
        super().__init__()
        self.w = keras.Variable(start, name="w")
        self.optimizer = keras.optimizers.SGD(1.0)
        self.trace = tf.Variable(tf.fill((64, 2), np.nan), trainable=False)
        self.calls = tf.Variable(0, trainable=False)

    def note(self) -> None:
        """Writes down (step, w) after the update."""
        row = [tf.cast(self.step, tf.float32), tf.convert_to_tensor(self.w)]
        self.trace.scatter_nd_update([[self.calls.read_value()]], [row])
        self.calls.assign_add(1)

    @property
    def noted(self) -> np.ndarray:
        return self.trace.numpy()[: int(self.calls.numpy())]


def last(history: Any, key: str = "loss") -> float:
    return history.history[key][-1]


# --- any number of models ---------------------------------------------------------------------


class GAN(lw.Task):
    def __init__(self, built: bool = True, discriminator_rate: float = 1e-2):
        super().__init__()
        self.generator = mlp(8, 4, inputs=3 if built else None)
        self.discriminator = mlp(8, 1, inputs=4 if built else None)
        self.generator_optimizer = keras.optimizers.Adam(1e-2)
        self.discriminator_optimizer = keras.optimizers.Adam(discriminator_rate)
        self.cross_entropy = keras.losses.BinaryCrossentropy(from_logits=True)
        self.seed = keras.random.SeedGenerator(0)

    def train_step(self, batch):
        noise = keras.random.normal((tf.shape(batch)[0], 3), seed=self.seed)
        with tf.GradientTape() as tape:
            real, fake = self.discriminator(batch), self.discriminator(self.generator(noise))
            d_loss = self.cross_entropy(tf.ones_like(real), real)
            d_loss += self.cross_entropy(tf.zeros_like(fake), fake)
        self.minimize(d_loss, self.discriminator, self.discriminator_optimizer, tape)
        with tf.GradientTape() as tape:
            fake = self.discriminator(self.generator(noise))
            g_loss = self.cross_entropy(tf.ones_like(fake), fake)
        self.minimize(g_loss, self.generator, self.generator_optimizer, tape)
        return {"d_loss": d_loss, "g_loss": g_loss}


def moved(model: keras.Model, before: list[np.ndarray]) -> bool:
    pairs = zip(before, model.get_weights(), strict=True)
    return any(not np.array_equal(was, now) for was, now in pairs)


def test_each_optimizer_moves_only_its_own_model():
    task = GAN(discriminator_rate=0.0)
    generator, discriminator = task.generator.get_weights(), task.discriminator.get_weights()

    lw.Trainer(task).fit(X, **QUIET)

    assert moved(task.generator, generator)
    assert not moved(task.discriminator, discriminator)


def test_models_without_an_input_are_built_by_the_first_fit():
    task = GAN(built=False)

    history = lw.Trainer(task).fit(X, epochs=2, **QUIET).history

    assert task.generator.layers[0].kernel.shape == (3, 8)
    assert task.discriminator.layers[0].kernel.shape == (4, 8)
    assert int(task.generator_optimizer.iterations.numpy()) == 10
    assert np.all(np.isfinite(history["d_loss"]))


def test_building_a_model_does_not_train_it():
    """Tracing runs nothing: the first reported loss is that of the untouched weights."""
    keras.utils.set_random_seed(4)
    model = mlp(8, 1, inputs=None)
    keras.utils.set_random_seed(4)
    twin = mlp(8, 1, inputs=None)
    untouched = float(squared_error(Y, twin(X)))

    history = lw.Trainer(Regression(model)).fit(X, Y, batch_size=40, verbose=0)

    assert last(history) == pytest.approx(untouched, rel=1e-5)


# --- updates ----------------------------------------------------------------------------------


def test_gradients_of_ones_own_make_exactly_the_update_computed_by_hand():
    class SignDescent(lw.Task):
        def __init__(self):
            super().__init__()
            self.model = mlp(1)
            self.optimizer = keras.optimizers.SGD(0.1)

        def train_step(self, batch):
            x, y = batch
            kernel = self.model.trainable_variables[0]
            error = tf.matmul(x, kernel) - y
            gradient = tf.sign(tf.matmul(x, error, transpose_a=True))
            self.apply([gradient], [kernel], self.optimizer)
            return {"loss": tf.reduce_mean(tf.square(error))}

    task = SignDescent()
    expected = task.model.get_weights()[0]
    losses = []
    for start in range(0, 40, 8):
        x, y = X[start : start + 8], Y[start : start + 8]
        losses.append(np.mean((x @ expected - y) ** 2))
        expected = expected - np.float32(0.1) * np.sign(x.T @ (x @ expected - y))

    history = lw.Trainer(task).fit(X, Y, shuffle=False, **QUIET)

    np.testing.assert_allclose(task.model.get_weights()[0], expected, rtol=1e-6)
    assert last(history) == pytest.approx(np.mean(losses), rel=1e-5)


@pytest.mark.parametrize("by", ["minimize", "apply"])
def test_when_updates_exactly_every_fifth_step(by: str):
    class EveryFifth(Descent):
        def train_step(self, batch):
            with tf.GradientTape() as tape:
                loss = 1.0 * self.w
            when = self.step % 5 == 0
            if by == "minimize":
                self.minimize(loss, [self.w], self.optimizer, tape, when=when)
            else:
                self.apply([tf.constant(1.0)], [self.w], self.optimizer, when=when)
            self.note()
            return {"batch": tf.reduce_mean(batch)}

    task = EveryFifth()
    lw.Trainer(task).fit(X, epochs=4, **QUIET)

    steps, w = task.noted[:, 0], task.noted[:, 1]
    assert len(steps) == 20
    np.testing.assert_array_equal(-np.diff(w, prepend=0.0), steps % 5 == 0)
    assert float(task.w.numpy()) == -4.0
    assert int(task.optimizer.iterations.numpy()) == 4


def test_transform_sees_gradients_and_variables_and_its_result_is_applied():
    seen = []

    def halve_kernels(gradients, variables):
        seen.append((gradients, variables))
        return [
            gradient / 2 if len(variable.shape) == 2 else tf.zeros_like(gradient)
            for gradient, variable in zip(gradients, variables, strict=True)
        ]

    class Transformed(Regression):
        def train_step(self, batch):
            x, y = batch
            with tf.GradientTape() as tape:
                loss = squared_error(y, self.model(x))
            self.minimize(loss, self.model, self.optimizer, tape, transform=halve_kernels)
            return {"loss": loss}

    task = Transformed(mlp(1), keras.optimizers.SGD(1.0))
    kernel, bias = task.model.get_weights()
    expected = kernel - X.T @ (X @ kernel + bias - Y) * 2 / len(X) / 2

    lw.Trainer(task).fit(X, Y, batch_size=40, verbose=0)

    gradients, variables = seen[-1]
    assert isinstance(gradients, list)
    assert isinstance(variables, list)
    assert [tuple(g.shape) for g in gradients] == [tuple(v.shape) for v in variables]
    assert [v.path for v in variables] == [v.path for v in task.model.trainable_variables]
    np.testing.assert_allclose(task.model.get_weights()[0], expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(task.model.get_weights()[1], bias)


# --- what is reported -------------------------------------------------------------------------


class Watching(lw.Task):
    """Learns nothing worth naming; reports numbers that are easy to compute by hand."""

    def __init__(self):
        super().__init__()
        self.parts = {"body": mlp(3), "heads": [mlp(1, inputs=3), mlp(1, inputs=3)]}
        self.optimizers = [keras.optimizers.SGD(0.01), {"head": keras.optimizers.SGD(0.01)}]
        self.meters = [keras.metrics.Sum(name="rows"), {"deep": keras.metrics.Mean(name="level")}]

    def watch(self, x):
        rows, level = self.meters[0], self.meters[1]["deep"]
        rows.update_state(tf.ones(tf.shape(x)[0]))
        level.update_state(tf.reduce_max(x))

    def train_step(self, batch):
        x, y = batch
        heads = self.parts["heads"]
        with tf.GradientTape(persistent=True) as tape:
            code = self.parts["body"](x)
            loss = squared_error(y, heads[0](code)) + squared_error(y, heads[1](code))
        self.minimize(loss, self.parts["body"], self.optimizers[0], tape)
        variables = [v for head in heads for v in head.trainable_variables]
        self.minimize(loss, variables, self.optimizers[1]["head"], tape)
        self.watch(x)
        return {"loss": loss}

    def test_step(self, batch):
        x, y = batch
        self.watch(x)
        return {"loss": squared_error(y, self.parts["heads"][0](self.parts["body"](x)))}


def test_parts_in_lists_and_dicts_are_found_and_metrics_start_anew_each_epoch():
    task = Watching()
    models = [task.parts["body"], *task.parts["heads"]]
    before = [model.get_weights() for model in models]

    history = lw.Trainer(task).fit(X, Y, epochs=3, shuffle=False, **QUIET).history

    assert set(history) == {"loss", "rows", "level"}
    assert history["rows"] == [40.0, 40.0, 40.0]
    level = np.mean([X[start : start + 8].max() for start in range(0, 40, 8)])
    assert history["level"] == pytest.approx([level] * 3, rel=1e-6)
    assert all(moved(model, weights) for model, weights in zip(models, before, strict=True))


class Reporting(lw.Task):
    """Reports the mean of its batch, as a scalar and with a weight of its own."""

    def train_step(self, batch):
        total = tf.reduce_sum(tf.abs(batch))
        return {
            "mean": tf.reduce_mean(batch),
            "rows": tf.shape(batch)[0],
            "weighted": lw.Mean(tf.reduce_mean(batch), total),
        }

    test_step = train_step


# Rows 0..9 in batches of 4: the last batch has two rows, and the greatest values.
COUNT = np.arange(10, dtype="float32")[:, None]


@pytest.mark.parametrize("through", ["fit", "evaluate"])
def test_scalars_are_averaged_over_examples_and_lw_mean_over_its_weights(through: str):
    trainer = lw.Trainer(Reporting())
    if through == "fit":
        history = trainer.fit(COUNT, batch_size=4, shuffle=False, verbose=0).history
        numbers = {name: values[-1] for name, values in history.items()}
    else:
        numbers = trainer.evaluate(COUNT, batch_size=4)

    assert numbers["mean"] == pytest.approx(4.5, rel=1e-6)  # over batches it would be 5.17
    assert numbers["rows"] == pytest.approx((4 * 4 + 4 * 4 + 2 * 2) / 10, rel=1e-6)
    weighted = (6 * 1.5 + 22 * 5.5 + 17 * 8.5) / 45
    assert numbers["weighted"] == pytest.approx(weighted, rel=1e-6)


# --- the course of a run ----------------------------------------------------------------------


class Counting(Descent):
    """Lowers `w` by one at each step."""

    def train_step(self, batch):
        self.apply([tf.constant(1.0)], [self.w], self.optimizer)
        self.note()
        return {"w": self.w, "batch": tf.reduce_mean(batch)}


def test_fitting_again_trains_on():
    task = Counting()
    trainer = lw.Trainer(task)

    first = trainer.fit(X, epochs=2, **QUIET).history["w"]
    second = trainer.fit(X, **QUIET).history["w"]

    steps, w = task.noted[:, 0], task.noted[:, 1]
    np.testing.assert_array_equal(np.diff(steps), np.ones(14))  # 3 epochs of 5 steps, no gap
    np.testing.assert_array_equal(w, -np.arange(1.0, 16.0))
    assert first == [-3.0, -8.0]
    assert second == [-13.0]
    assert int(task.step) == 15


@pytest.mark.parametrize(
    ("step", "use"),
    [
        ("test_step", lambda trainer: trainer.evaluate(X, Y)),
        ("test_step", lambda trainer: trainer.fit(X, Y, validation_data=(X, Y), **QUIET)),
        ("predict_step", lambda trainer: trainer.predict(X)),
    ],
    ids=["evaluate", "validation", "predict"],
)
def test_a_missing_step_is_named_with_its_class_and_what_to_write(step: str, use: Any):
    task = Regression(mlp(1))
    before = task.model.get_weights()

    with pytest.raises(lw.errors.MissingStepError) as caught:
        use(lw.Trainer(task))

    assert "Regression" in str(caught.value)
    assert f"def {step}(self, batch)" in str(caught.value)
    assert not moved(task.model, before)


# --- plain TensorFlow -------------------------------------------------------------------------


def test_python_control_flow_on_tensors_works_in_a_step_and_in_what_it_calls():
    class Branching(Descent):
        def train_step(self, batch):
            if tf.reduce_mean(batch) > 8.0:
                gradient = 20.0
            elif tf.reduce_mean(batch) > 4.0:
                gradient = 10.0
            else:
                gradient = 1.0
            self.apply([gradient * self.ones(batch)], [self.w], self.optimizer)
            return {"w": self.w}

        def ones(self, batch):
            count = 0.0
            for row in batch:
                if row[0] < 8.0:
                    continue
                count += 1.0
            while count > 1.0:
                count -= 1.0
            return tf.maximum(count, 1.0)

    task = Branching()
    # batches of 4, 4 and 2: means 1.5, 5.5 and 8.5; w falls by 1, 10 and 20
    history = lw.Trainer(task).fit(COUNT, batch_size=4, shuffle=False, verbose=0)

    assert float(task.w.numpy()) == -31.0
    assert last(history, "w") == pytest.approx((4 * -1 + 4 * -11 + 2 * -31) / 10, rel=1e-6)


def test_python_control_flow_works_in_the_steps_that_score_and_predict():
    class Clipping(lw.Task):
        def clipped(self, batch):
            if tf.reduce_max(batch) > 5.0:
                batch = tf.minimum(batch, 5.0)
            return batch

        def test_step(self, batch):
            return {"mean": tf.reduce_mean(self.clipped(batch))}

        def predict_step(self, batch):
            return self.clipped(batch)

    trainer = lw.Trainer(Clipping())

    assert trainer.evaluate(COUNT, batch_size=4)["mean"] == pytest.approx(3.5, rel=1e-6)
    np.testing.assert_array_equal(trainer.predict(COUNT, batch_size=4), np.minimum(COUNT, 5.0))
