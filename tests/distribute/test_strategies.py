"""Two replicas on two virtual CPU devices train as one device does."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.distribute import trainings
from tests.distribute.trainings import ROWS, data
from tests.engine.test_runner import Descent
from tests.mirrored import mirrored

import loopwright as lw
from loopwright.errors import ConfigurationError, StepError


class Regression(lw.Task):
    def __init__(self, optimizer, *, every=1, transform=None, batch_norm=False, built=True):
        super().__init__()
        keras.utils.set_random_seed(1)
        penalty = keras.regularizers.L2(0.05)
        layers = [keras.layers.Dense(8, "relu", use_bias=False, kernel_regularizer=penalty)]
        layers += [keras.layers.BatchNormalization()] if batch_norm else []
        self.model = keras.Sequential([*layers, keras.layers.Dense(1)])
        if built:
            self.model.build((None, 5))
        self.optimizer = optimizer
        self.loss = keras.losses.MeanSquaredError()
        self.mae = keras.metrics.MeanAbsoluteError(name="mae")
        self.every, self.transform = every, transform

    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            predictions = self.model(x, training=True)
            loss = self.loss(y, predictions) + sum(self.model.losses)
        self.mae.update_state(y, predictions)
        when = True if self.every == 1 else self.step % self.every == 0
        norm = self.minimize(
            loss, self.model, self.optimizer, tape, when=when, transform=self.transform
        )
        return {"loss": loss, "norm": norm}

    test_step, predict_step = trainings.Regression.test_step, trainings.Regression.predict_step


@functools.cache
def trained(make_task, strategy):
    x, y = data()
    trainer = lw.Trainer(make_task, strategy=strategy)
    history = trainer.fit(
        x, y, batch_size=20, epochs=2, validation_data=(x[:33], y[:33]), verbose=0
    )
    return history.history, trainer.predict(x), trainer


def assert_same_training(make_task):
    one, one_predicts, _ = trained(make_task, None)
    two, two_predicts, _ = trained(make_task, mirrored())
    assert one.keys() == two.keys()
    for name in one:
        np.testing.assert_allclose(two[name], one[name], rtol=1e-5, err_msg=name)
    np.testing.assert_allclose(two_predicts, one_predicts, atol=1e-5)


def supervised():
    keras.utils.set_random_seed(1)
    kernel = keras.regularizers.L2(0.05)
    hidden = keras.layers.Dense(8, "tanh", kernel_regularizer=kernel)
    model = keras.Sequential([keras.Input((5,)), hidden, keras.layers.Dense(1)])
    return lw.Supervised(model, "mse", keras.optimizers.Adam(1e-2), metrics=["mae"])


CASES = {
    "adam": lambda: Regression(keras.optimizers.Adam(1e-2)),
    "every third step": lambda: Regression(keras.optimizers.Adam(1e-2), every=3),
    "accumulation": lambda: Regression(keras.optimizers.Adam(1e-2, gradient_accumulation_steps=3)),
    "accumulation every second step": lambda: Regression(
        keras.optimizers.SGD(1e-2, momentum=0.9, gradient_accumulation_steps=2), every=2
    ),
    "global clipping": lambda: Regression(keras.optimizers.SGD(1e-2, global_clipnorm=0.1)),
    "clipping by value": lambda: Regression(keras.optimizers.SGD(1e-2, clipvalue=0.05)),
    "weight decay": lambda: Regression(keras.optimizers.AdamW(1e-2, weight_decay=0.1)),
    "averaged weights": lambda: Regression(keras.optimizers.Adam(1e-2, use_ema=True)),
    "schedule": lambda: Regression(
        keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(1e-2, 5, 0.5))
    ),
    "loss scale": lambda: Regression(
        keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(1e-2), dynamic_growth_steps=5)
    ),
    "transform": lambda: Regression(
        keras.optimizers.SGD(1e-2), transform=lambda g, v: tf.clip_by_global_norm(g, 0.1)[0]
    ),
    "unbuilt model": lambda: Regression(keras.optimizers.Adam(1e-2), built=False),
    "supervised": supervised,
}


@pytest.mark.parametrize("make_task", CASES.values(), ids=CASES.keys())
def test_two_replicas_train_as_one(make_task):
    assert_same_training(make_task)


def test_sample_weights_mean_the_same_on_two_replicas():
    x, y = data()
    weights = np.linspace(0.1, 2.0, ROWS).astype("float32")

    def losses(strategy):
        def make_task():
            keras.utils.set_random_seed(1)
            model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
            return lw.Supervised(model, "mse", "sgd")

        trainer = lw.Trainer(make_task, strategy=strategy)
        return trainer.fit(x, y, weights, batch_size=20, epochs=3, verbose=0).history["loss"]

    np.testing.assert_allclose(losses(mirrored()), losses(None), rtol=1e-5)


def test_a_batch_with_fewer_examples_than_replicas_leaves_statistics_finite():
    def make_task():
        return Regression(keras.optimizers.Adam(1e-2), batch_norm=True)

    _, predictions, trainer = trained(make_task, mirrored())
    moving = [w.numpy() for w in trainer.task.model.non_trainable_weights]
    assert all(np.isfinite(w).all() for w in moving)
    assert np.isfinite(predictions).all()


@pytest.mark.kernels
def test_gradients_that_are_not_finite_on_one_replica_are_found_at_their_step():
    class Rooted(Regression):
        def train_step(self, batch):
            x, y = batch
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.sqrt(tf.abs(self.model(x, training=True) * y)))
                loss += sum(self.model.losses)
            self.minimize(loss, self.model, self.optimizer, tape)
            return {"loss": loss}

    x, y = data()
    y[59] = 0.0  # the last row of the third batch: the gradient of the root of 0 is infinite
    trainer = lw.Trainer(
        lambda: Rooted(keras.optimizers.SGD(0.01)),
        strategy=mirrored(),
        plan="graph",
        silence=["idle-metric"],
    )
    with pytest.raises(lw.NotFiniteError, match="Step 3 wrote NaN or infinity"):
        trainer.fit(x, y, batch_size=20, shuffle=False, epochs=3, verbose=0)


class Drawing(lw.Task):
    """Reports what each replica draws; its share of the examples is a half."""

    def __init__(self):
        super().__init__()
        self.seed = keras.random.SeedGenerator(3)

    def train_step(self, batch):
        number = tf.distribute.get_replica_context().replica_id_in_sync_group
        drawn = keras.random.normal((), seed=self.seed) + tf.reduce_sum(batch)
        return {f"replica {i}": drawn if number == i else 0.0 for i in range(2)}

    def predict_step(self, batch):
        return keras.random.normal(tf.shape(batch), seed=self.seed)


def test_replicas_draw_random_numbers_of_their_own_and_the_first_those_of_one_device():
    x = np.zeros((8, 1), "float32")
    told = {}
    for strategy in (None, mirrored()):
        trainer = lw.Trainer(Drawing, strategy=strategy, plan="graph")
        told[strategy] = trainer.fit(x, batch_size=4, epochs=2, verbose=0).history
        parts = np.split(trainer.predict(x, batch_size=8)[:, 0], 2)
        assert not np.any(parts[0] == parts[1])
    one, two = told[None], told[mirrored()]
    np.testing.assert_allclose(np.multiply(two["replica 0"], 2), one["replica 0"], rtol=1e-6)
    assert not np.isclose(two["replica 0"], two["replica 1"]).any()


def test_the_eager_plan_trains_two_replicas_as_well():
    x, y = data()
    histories = []
    for strategy in (None, mirrored()):
        trainer = lw.Trainer(CASES["adam"], strategy=strategy, plan="eager")
        histories.append(trainer.fit(x, y, batch_size=50, epochs=1, verbose=0).history)
    np.testing.assert_allclose(histories[1]["loss"], histories[0]["loss"], rtol=1e-5)


def test_a_compiled_model_keeps_the_training_keras_gives_it_on_two_replicas():
    x, y = data()

    def make_model():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(1e-2), "mse", metrics=["mae"])
        return model

    ours = lw.Trainer(make_model, strategy=mirrored())
    mine = ours.fit(x[:100], y[:100], batch_size=20, epochs=2, shuffle=False, verbose=0).history
    with mirrored().scope():
        model = make_model()
    theirs = model.fit(x[:100], y[:100], batch_size=20, epochs=2, shuffle=False, verbose=0).history
    np.testing.assert_allclose(mine["loss"], theirs["loss"], rtol=1e-5)
    np.testing.assert_allclose(mine["mae"], theirs["mae"], rtol=1e-5)


def test_streams_and_named_validation_sets_train_on_two_replicas():
    x, y = data()
    stream = tf.data.Dataset.from_tensor_slices((x, y)).filter(lambda *_: True).batch(20)
    histories = []
    for strategy in (None, mirrored()):
        trainer = lw.Trainer(CASES["adam"], strategy=strategy)
        sets = {"near": (x[:33], y[:33]), "far": (x[33:], y[33:])}
        histories.append(trainer.fit(stream, epochs=2, validation_data=sets, verbose=0).history)
    assert {"val_near_loss", "val_far_loss", "val_near_mae"} <= histories[0].keys()
    for name, values in histories[0].items():
        np.testing.assert_allclose(histories[1][name], values, rtol=1e-5, err_msg=name)


def test_the_tuner_never_picks_what_replicas_cannot_run():
    x, y = data()
    trainer = lw.Trainer(CASES["adam"], strategy=mirrored(), plan="auto")
    trainer.fit(x, y, batch_size=2, epochs=4, verbose=0)
    assert {change.plan.step for change in trainer.plan_history.changes} == {"graph"}
    with pytest.raises(ConfigurationError, match="XLA does not run a step on several replicas"):
        lw.Trainer(CASES["adam"], strategy=mirrored(), plan="xla").fit(x, y, verbose=0)


def test_a_task_built_outside_the_scope_is_refused_with_the_remedy():
    task = CASES["adam"]()
    with pytest.raises(ConfigurationError, match="outside the strategy's scope") as refusal:
        lw.Trainer(task, strategy=mirrored())
    assert "pass a function" in str(refusal.value)


def test_a_plain_optimizer_apply_is_refused_on_several_replicas():
    class Plain(Regression):
        def train_step(self, batch):
            x, y = batch
            with tf.GradientTape() as tape:
                loss = self.loss(y, self.model(x, training=True))
            variables = self.model.trainable_variables
            self.optimizer.apply(tape.gradient(loss, variables), variables)
            return {"loss": loss}

    x, y = data()
    trainer = lw.Trainer(lambda: Plain(keras.optimizers.SGD()), strategy=mirrored())
    with pytest.raises(StepError, match=r"SGD\.apply itself, with several replicas") as refusal:
        trainer.fit(x, y, verbose=0)
    assert "self.apply(gradients, variables, optimizer)" in str(refusal.value)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: keras.optimizers.Adam(use_ema=True, ema_overwrite_frequency=5),
        lambda: keras.optimizers.LossScaleOptimizer(
            keras.optimizers.Adam(gradient_accumulation_steps=2)
        ),
    ],
)
def test_what_replicas_cannot_do_is_refused_in_words(optimizer):
    x, y = data()
    trainer = lw.Trainer(lambda: Regression(optimizer()), strategy=mirrored())
    with pytest.raises(ConfigurationError, match="cannot run on several replicas"):
        trainer.fit(x, y, verbose=0)


def test_a_step_without_data_trains_on_two_replicas():
    losses = []
    for strategy in (None, mirrored()):
        trainer = lw.Trainer(Descent, strategy=strategy)
        losses.append(trainer.fit(None, until="20 steps", verbose=0).history["loss"])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-6)


class NoisyGradients(lw.Task):
    """Adds noise to the gradient, after it was reduced over replicas."""

    def __init__(self):
        super().__init__()
        self.weight = tf.Variable(1.0)
        self.optimizer = keras.optimizers.SGD(0.1)
        self.seed = keras.random.SeedGenerator(3)

    def noisy(self, gradients, variables):
        return [g + keras.random.normal(g.shape, seed=self.seed) for g in gradients]

    def train_step(self, batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(batch) * self.weight
        self.minimize(loss, [self.weight], self.optimizer, tape, transform=self.noisy)
        return {"loss": loss}


def test_what_is_drawn_for_reduced_gradients_is_the_same_on_all_replicas():
    weights = []
    for strategy in (None, mirrored()):
        trainer = lw.Trainer(NoisyGradients, strategy=strategy, plan="graph")
        trainer.fit(np.ones((8, 1), "float32"), batch_size=4, epochs=2, verbose=0)
        held = trainer.task.weight
        weights.append([float(w) for w in held.values] if strategy else [float(held)])
    (one,), two = weights
    assert two[0] == two[1]
    assert two[0] == pytest.approx(one, rel=1e-6)
