"""Mistakes inside a step that its trace shows."""

import keras
import numpy as np
import tensorflow as tf
from tests.programs.wrong.wrong_program import Wrong, on_plans
from tests.tasks import ByHand

X = np.random.default_rng(3).normal(size=(16, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
UNTIL = {"until": "4 steps"}


class _Regression(ByHand):
    """A step by hand, with the loss that a program gives it."""

    def __init__(self, *layers: keras.Layer) -> None:
        last = keras.layers.Dense(1, name="last")
        super().__init__(keras.Sequential([keras.Input((4,)), *layers, last], name="net"))


class _KerasModel(keras.Model):
    """A compiled model with a step by hand."""

    def __init__(self, **options) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.compile("sgd", "mse", **options)

    def call(self, x):
        return self.dense(x)

    def loss_of(self, x, y):
        return tf.reduce_mean(tf.square(y - self(x, training=True)))


# --- updates --------------------------------------------------------------------------------------


def minimize_forgotten(mistake: bool) -> Wrong:
    class Watching(_Regression):
        def train_step(self, batch):
            with tf.GradientTape() as tape:
                loss = self.loss_of(*batch)
            if not mistake:
                self.minimize(loss, self.model, self.optimizer, tape)
            return {"loss": loss}

    return Wrong(Watching(), X, Y)


def update_of_a_keras_model_forgotten(mistake: bool) -> Wrong:
    class Forgetful(_KerasModel):
        def train_step(self, data):
            with tf.GradientTape() as tape:
                loss = self.loss_of(*data)
            gradients = tape.gradient(loss, self.trainable_variables)
            if not mistake:
                self.optimizer.apply(gradients, self.trainable_variables)
            return {"loss": loss}

    return Wrong(Forgetful(), X, Y)


def two_optimizers_for_one_model(mistake: bool) -> Wrong:
    class Both(_Regression):
        def __init__(self):
            super().__init__()
            self.other = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            self.second = keras.optimizers.Adam()

        def train_step(self, batch):
            x, y = batch
            with tf.GradientTape(persistent=True) as tape:
                loss = self.loss_of(x, y)
                other = tf.reduce_mean(tf.square(y - self.other(x, training=True)))
            self.minimize(loss, self.model, self.optimizer, tape)
            if mistake:
                self.minimize(loss, self.model, self.second, tape)
            else:
                self.minimize(other, self.other, self.second, tape)
            return {"loss": loss + other}

    return Wrong(Both(), X, Y)


def epochs_inside_the_step(mistake: bool) -> Wrong:
    class Unrolled(_Regression):
        def train_step(self, batch):
            scalars = {}
            for _ in range(12 if mistake else 2):
                scalars = super().train_step(batch)
            return scalars

    return Wrong(Unrolled(), X, Y)


def variables_before_gradients(mistake: bool) -> Wrong:
    class Swapped(_Regression):
        def train_step(self, batch):
            with tf.GradientTape() as tape:
                loss = self.loss_of(*batch)
            weights = self.model.trainable_variables
            pairs = (tape.gradient(loss, weights), weights)
            pairs = reversed(pairs) if mistake else pairs
            self.optimizer.apply_gradients(zip(*pairs, strict=True))  # here
            return {"loss": loss}

    return Wrong(Swapped(), X, Y)


def optimizer_made_in_the_step(mistake: bool) -> Wrong:
    class Fresh(_Regression):
        def train_step(self, batch):
            if mistake:
                self.optimizer = keras.optimizers.SGD(0.01)  # here
            return super().train_step(batch)

    return Wrong(Fresh(), X, Y)


def layer_made_in_the_step(mistake: bool) -> Wrong:
    class Fresh(_Regression):
        def loss_of(self, x, y):
            if not mistake:
                return super().loss_of(x, y)
            x = keras.layers.Dense(4)(x)  # here
            return super().loss_of(x, y)

    return Wrong(Fresh(), X, Y)


# --- gradients ------------------------------------------------------------------------------------


@on_plans("graph", "eager")
def loss_outside_the_tape(mistake: bool) -> Wrong:
    class Outside(_Regression):
        def train_step(self, batch):
            loss = self.loss_of(*batch)
            with tf.GradientTape() as tape:
                loss = 2.0 * (loss if mistake else self.loss_of(*batch))
            self.minimize(loss, self.model, self.optimizer, tape)
            return {"loss": loss}

    return Wrong(Outside(), X, Y)


def layer_that_the_loss_does_not_use(mistake: bool) -> Wrong:
    class Half(_Regression):
        def __init__(self):
            super().__init__()
            self.unused = keras.layers.Dense(1, name="spare")
            self.unused.build((None, 4))

        def train_step(self, batch):
            with tf.GradientTape() as tape:
                loss = self.loss_of(*batch)
            models = [self.model, self.unused] if mistake else [self.model]
            self.minimize(loss, models, self.optimizer, tape)
            return {"loss": loss}

    return Wrong(Half(), X, Y)


@on_plans("graph", "eager")
def frozen_model(mistake: bool) -> Wrong:
    task = _Regression()
    task.model.trainable = not mistake
    return Wrong(task, X, Y)


def tape_used_twice(mistake: bool) -> Wrong:
    class Twice(_Regression):
        def train_step(self, batch):
            with tf.GradientTape(persistent=not mistake) as tape:
                loss = self.loss_of(*batch)
            norm = tf.linalg.global_norm(tape.gradient(loss, self.model.trainable_variables))
            self.minimize(loss, self.model, self.optimizer, tape)  # here
            return {"loss": loss, "norm": norm}

    return Wrong(Twice(), X, Y)


def loss_that_was_not_reduced(mistake: bool) -> Wrong:
    class Vector(_Regression):
        def train_step(self, batch):
            x, y = batch
            with tf.GradientTape() as tape:
                errors = tf.square(y - self.model(x, training=True))[:, 0]
                loss = tf.reduce_mean(errors)
            self.minimize(errors if mistake else loss, self.model, self.optimizer, tape)
            return {"loss": loss}

    return Wrong(Vector(), X, Y)


def losses_of_layers_left_out(mistake: bool) -> Wrong:
    class Regularized(_Regression):
        def loss_of(self, x, y):
            loss = super().loss_of(x, y)
            return loss if mistake else loss + sum(self.model.losses)

    return Wrong(Regularized(keras.layers.Dense(2, kernel_regularizer="l2")), X, Y)


def model_called_without_training(mistake: bool) -> Wrong:
    class Inference(_Regression):
        def loss_of(self, x, y):
            predictions = self.model(x) if mistake else self.model(x, training=True)
            return tf.reduce_mean(tf.square(y - predictions))

    return Wrong(Inference(keras.layers.BatchNormalization(name="norm")), X, Y)


# --- the batch ------------------------------------------------------------------------------------


def labels_without_their_axis(mistake: bool) -> Wrong:
    class Spread(_Regression):
        def loss_of(self, x, y):
            difference = y - self.model(x, training=True)  # here
            return tf.reduce_mean(tf.square(difference))

    return Wrong(Spread(), X, Y[:, 0] if mistake else Y)


def step_closed_over_its_batch(mistake: bool) -> Wrong:
    x, y = tf.constant(X[:8]), tf.constant(Y[:8])

    class Closed(_Regression):
        @tf.function
        def train_step(self, batch):
            return super().train_step((x, y) if mistake else batch)

    return Wrong(Closed(), X, Y)


def loss_of_other_examples(mistake: bool) -> Wrong:
    first = tf.constant(X[:8]), tf.constant(Y[:8])

    class Outside(_Regression):
        def train_step(self, batch):
            scalars = super().train_step(first if mistake else batch)
            return {**scalars, "labels": tf.reduce_mean(batch[1])}

    return Wrong(Outside(), X, Y)


def step_without_a_batch_argument(mistake: bool) -> Wrong:
    class Seedlike(_Regression):
        pass

    def train_step():
        return _Regression.train_step(task, (X[:8], Y[:8]))

    task = Seedlike()
    if mistake:
        vars(task)["train_step"] = train_step
    return Wrong(task, X, Y)


def fixed_batch_without_data(mistake: bool) -> Wrong:
    class Baked(_Regression):
        def __init__(self):
            super().__init__()
            self.seed = keras.random.SeedGenerator(0)

        def train_step(self):  # pyright: ignore[reportIncompatibleMethodOverride]
            x = X[:8] if mistake else keras.random.normal((8, 4), seed=self.seed)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self.model(x, training=True)))  # here
            self.minimize(loss, self.model, self.optimizer, tape)
            return {"loss": loss}

    return Wrong(Baked(), options=UNTIL)


def batch_drawn_by_numpy(mistake: bool) -> Wrong:
    class Drawn(_Regression):
        def __init__(self):
            super().__init__()
            self.seed, self.x = keras.random.SeedGenerator(0), tf.constant(X)

        def train_step(self):  # pyright: ignore[reportIncompatibleMethodOverride]
            rows = keras.random.randint((3,), 0, 16, seed=self.seed)
            x = tf.gather(self.x, rows)
            if mistake:
                x = tf.gather(self.x, np.random.randint(16, size=3))  # here
            return super().train_step((x, tf.reduce_sum(x, axis=1, keepdims=True)))

    return Wrong(Drawn(), options=UNTIL)


# --- Python ---------------------------------------------------------------------------------------


def numpy_function(mistake: bool) -> Wrong:
    class ByNumpy(_Regression):
        def loss_of(self, x, y):
            if not mistake:
                return super().loss_of(x, y)
            return np.mean(tf.square(y - self.model(x, training=True)))  # here

    return Wrong(ByNumpy(), X, Y)


def predictions_by_predict(mistake: bool) -> Wrong:
    class Predicting(_Regression):
        def loss_of(self, x, y):
            if not mistake:
                return super().loss_of(x, y)
            return tf.reduce_mean(tf.square(y - self.model.predict(x)))  # here

    return Wrong(Predicting(), X, Y)


def print_in_the_step(mistake: bool) -> Wrong:
    class Printing(_Regression):
        def loss_of(self, x, y):
            loss = super().loss_of(x, y)
            print("loss:", loss)  # here
            return loss

    class Quiet(_Regression):
        def loss_of(self, x, y):
            loss = super().loss_of(x, y)
            if tf.executing_eagerly():
                print("loss:", loss)
            return loss

    return Wrong(Printing() if mistake else Quiet(), X, Y)


def losses_appended_to_a_list(mistake: bool) -> Wrong:
    class Appending(_Regression):
        def __init__(self):
            super().__init__()
            self.past = []

        def train_step(self, batch):
            scalars = super().train_step(batch)
            self.past.append(scalars["loss"])  # here
            return scalars

    class Local(_Regression):
        def train_step(self, batch):
            found = []
            scalars = super().train_step(batch)
            found.append(scalars["loss"])
            return {"loss": tf.add_n(found)}

    return Wrong(Appending() if mistake else Local(), X, Y)


def steps_counted_by_python(mistake: bool) -> Wrong:
    class Counting(_Regression):
        def __init__(self):
            super().__init__()
            self.steps = 0

        def train_step(self, batch):
            self.steps += 1  # here
            return super().train_step(batch)

    return Wrong(Counting() if mistake else _Regression(), X, Y)


def updates_chosen_by_a_python_count(mistake: bool) -> Wrong:
    class Alternating(_Regression):
        def __init__(self):
            super().__init__()
            self.turn = 0

        def train_step(this, batch):  # pyright: ignore[reportSelfClsParameterName]
            this.turn = (this.turn + 1) % 4  # here
            return super().train_step(batch)

    class Cached(_Regression):
        def __init__(self):
            super().__init__()
            self.features, self.traced = None, False

        def train_step(self, batch):
            self.traced = True
            if self.features is None:
                self.features = batch[0].shape[-1]
            return super().train_step(batch)

    return Wrong(Alternating() if mistake else Cached(), X, Y)


def an_optimizer_that_is_never_used(mistake: bool) -> Wrong:
    class Alternating(_Regression):
        def __init__(self):
            super().__init__(keras.layers.Dense(3, name="first"))
            self.slow = keras.optimizers.SGD(0.001)
            self.turns = [1]

        def train_step(self, batch):
            with tf.GradientTape(persistent=True) as tape:
                loss = self.loss_of(*batch)
            self.turns[0] = self.turns[0] + 1
            first, last = self.model.layers
            self.minimize(loss, last, self.optimizer, tape)
            if not mistake:
                self.minimize(loss, first, self.slow, tape, when=self.step % 3 == 0)
            elif self.turns[0] % 1000 == 0:
                self.minimize(loss, first, self.slow, tape)
            return {"loss": loss}

    return Wrong(Alternating(), X, Y)


# --- what a step returns --------------------------------------------------------------------------


@on_plans("graph", "eager")
def nothing_returned(mistake: bool) -> Wrong:
    class Silent(_Regression):
        def train_step(self, batch):  # pyright: ignore[reportIncompatibleMethodOverride]
            scalars = super().train_step(batch)
            return None if mistake else scalars

    return Wrong(Silent(), X, Y)


def one_number_for_each_example(mistake: bool) -> Wrong:
    class Vector(_Regression):
        def train_step(self, batch):
            scalars = super().train_step(batch)
            error = tf.abs(batch[1] - self.model(batch[0], training=True))
            return {**scalars, "error": error if mistake else tf.reduce_mean(error)}

    return Wrong(Vector(), X, Y)


def count_of_updates_for_a_loss(mistake: bool) -> Wrong:
    class Counting(_Regression):
        def train_step(self, batch):
            with tf.GradientTape() as tape:
                loss = self.loss_of(*batch)
            weights = self.model.trainable_variables
            pairs = zip(tape.gradient(loss, weights), weights, strict=True)
            applied = self.optimizer.apply_gradients(pairs)
            return {"loss": applied if mistake else loss}

    return Wrong(Counting(), X, Y)


def loss_that_was_not_trained(mistake: bool) -> Wrong:
    class Other(_Regression):
        def train_step(self, batch):
            scalars = super().train_step(batch)
            return {"loss": tf.reduce_mean(batch[1])} if mistake else scalars

    return Wrong(Other(), X, Y)


# --- metrics and layers ---------------------------------------------------------------------------


def metric_without_updates(mistake: bool) -> Wrong:
    class Idle(_Regression):
        def __init__(self):
            super().__init__()
            self.error = keras.metrics.MeanAbsoluteError(name="error")

        def train_step(self, batch):
            if not mistake:
                self.error.update_state(batch[1], self.model(batch[0], training=True))
            return super().train_step(batch)

    return Wrong(Idle(), X, Y)


def metric_without_updates_in_a_keras_model(mistake: bool) -> Wrong:
    class Idle(_KerasModel):
        def __init__(self):
            super().__init__()
            self.error = keras.metrics.MeanAbsoluteError(name="error")

        def train_step(self, data):
            scalars = super().train_step(data)
            if not mistake:
                self.error.update_state(data[1], self(data[0], training=True))
            return {**scalars, "error": self.error.result()}

    return Wrong(Idle(), X, Y)


def compiled_metrics_without_updates(mistake: bool) -> Wrong:
    class Forgetful(_KerasModel):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                predictions = self(x, training=True)
                loss = self.compute_loss(x, y, predictions)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
            return {"loss": loss, **({} if mistake else self.compute_metrics(x, y, predictions))}

    return Wrong(Forgetful(metrics=["mae"]), X, Y)


class _Unsavable(keras.layers.Layer):
    def call(self, inputs):
        return inputs

    def get_config(self):
        return {**super().get_config(), "units": units}  # noqa: F821  # pyright: ignore


def layer_that_cannot_be_saved(mistake: bool) -> Wrong:
    return Wrong(_Regression(*([_Unsavable()] if mistake else [])), X, Y)
