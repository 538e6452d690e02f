"""Steps of one's own, in the patterns of Keras' guides for customising `fit`."""

from typing import Any

import keras
import tensorflow as tf
from keras import layers, ops
from tests.programs.right.right_program import BATCH, Program, classes, numbers


def _regression(kind: type[keras.Model] = keras.Model) -> Any:
    inputs = keras.Input((5,))
    outputs = layers.Dense(1)(layers.Dense(4, activation="relu")(inputs))
    return kind(inputs, outputs)


def _pairs() -> dict[str, Any]:
    return {"x": numbers(5), "y": numbers(1, seed=1)}


class GuideModel(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}


def train_step_with_compiled_metrics() -> Program:
    model = _regression(GuideModel)
    model.compile(optimizer="adam", loss="mse", metrics=["mae"])
    return Program(model, **_pairs())


def train_step_with_two_compiled_metrics_and_validation() -> Program:
    model = _regression(GuideModel)
    model.compile(optimizer="sgd", loss="mse", metrics=["mae", keras.metrics.R2Score()])
    return Program(model, **_pairs(), options={"validation_split": 0.34})


def train_step_without_metrics() -> Program:
    model = _regression(GuideModel)
    model.compile(optimizer="adam", loss="mse")
    return Program(model, **_pairs())


def train_step_with_loss_and_metrics_of_its_own() -> Program:
    class Own(keras.Model):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.loss_tracker = keras.metrics.Mean(name="loss")
            self.mae_metric = keras.metrics.MeanAbsoluteError(name="mae")
            self.loss_fn = keras.losses.MeanSquaredError()

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                y_pred = self(x, training=True)
                loss = self.loss_fn(y, y_pred)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
            self.loss_tracker.update_state(loss)
            self.mae_metric.update_state(y, y_pred)
            return {"loss": self.loss_tracker.result(), "mae": self.mae_metric.result()}

        @property
        def metrics(self):
            return [self.loss_tracker, self.mae_metric]

    model = _regression(Own)
    model.compile(optimizer="adam")
    return Program(model, **_pairs())


def train_step_with_sample_weights() -> Program:
    class Weighted(keras.Model):
        def train_step(self, data):
            if len(data) == 3:
                x, y, sample_weight = data
            else:
                sample_weight = None
                x, y = data
            with tf.GradientTape() as tape:
                y_pred = self(x, training=True)
                loss = self.compute_loss(y=y, y_pred=y_pred, sample_weight=sample_weight)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
            for metric in self.metrics:
                if metric.name == "loss":
                    metric.update_state(loss)
                else:
                    metric.update_state(y, y_pred, sample_weight=sample_weight)
            return {m.name: m.result() for m in self.metrics}

    model = _regression(Weighted)
    model.compile(optimizer="adam", loss="mse", metrics=["mae"])
    weights = abs(numbers(seed=3))
    return Program(model, **_pairs(), options={"sample_weight": weights})


def test_step_of_its_own() -> Program:
    class Tested(keras.Model):
        def test_step(self, data):
            x, y = data
            y_pred = self(x, training=False)
            loss = self.compute_loss(y=y, y_pred=y_pred)
            for metric in self.metrics:
                if metric.name == "loss":
                    metric.update_state(loss)
                else:
                    metric.update_state(y, y_pred)
            return {m.name: m.result() for m in self.metrics}

    model = _regression(Tested)
    model.compile(loss="mse", metrics=["mae"], optimizer="sgd")
    pair = (numbers(5, seed=4), numbers(1, seed=5))
    return Program(model, **_pairs(), options={"validation_data": pair})


def train_step_that_returns_metrics_by_hand() -> Program:
    class ByHand(keras.Model):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                y_pred = self(x, training=True)
                loss = self.compute_loss(x, y, y_pred)
            self.optimizer.apply_gradients(
                zip(
                    tape.gradient(loss, self.trainable_weights), self.trainable_weights, strict=True
                )
            )
            return self.compute_metrics(x, y, y_pred) | {"batch_loss": loss}

    model = _regression(ByHand)
    model.compile(optimizer="rmsprop", loss="mse", metrics=["mae"])
    return Program(model, **_pairs())


def compute_loss_of_its_own() -> Program:
    class OwnLoss(keras.Model):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.tracker = keras.metrics.Mean(name="own_loss")

        def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
            loss = ops.mean(ops.square(y_pred - y)) + ops.sum(self.losses)
            self.tracker.update_state(loss)
            return loss

        def reset_metrics(self):
            self.tracker.reset_state()

        @property
        def metrics(self):
            return [self.tracker]

    inputs = keras.Input((5,))
    hidden = layers.Dense(3, activity_regularizer="l2")(inputs)
    model = OwnLoss(inputs, layers.Dense(1)(hidden))
    model.compile(optimizer="adam")
    return Program(model, **_pairs(), options={"validation_data": tuple(_pairs().values())})


def losses_added_by_a_layer() -> Program:
    class ActivityLoss(layers.Layer):
        def call(self, inputs):
            self.add_loss(1e-2 * ops.sum(inputs))
            return inputs

    inputs = keras.Input((5,))
    hidden = ActivityLoss()(layers.Dense(4, activation="relu", kernel_regularizer="l2")(inputs))
    model = keras.Model(inputs, layers.Dense(1)(hidden))
    model.compile(optimizer="adam", loss="mse", metrics=["mae"])
    return Program(model, **_pairs())


def an_endpoint_layer_with_loss_and_metric() -> Program:
    class LogisticEndpoint(layers.Layer):
        def __init__(self):
            super().__init__()
            self.loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)
            self.accuracy_metric = keras.metrics.BinaryAccuracy(name="binary")

        def call(self, targets, logits, sample_weight=None):
            self.add_loss(self.loss_fn(targets, logits, sample_weight))
            self.accuracy_metric.update_state(targets, logits, sample_weight)
            return ops.sigmoid(logits)

    inputs, targets = keras.Input((5,), name="inputs"), keras.Input((1,), name="targets")
    predictions = LogisticEndpoint()(targets, layers.Dense(1)(inputs))
    model = keras.Model([inputs, targets], predictions)
    model.compile(optimizer="adam")
    return Program(model, {"inputs": numbers(5), "targets": classes(2, 1).astype("float32")})


def subclassed_model_with_dropout() -> Program:
    class Subclassed(keras.Model):
        def __init__(self):
            super().__init__()
            self.hidden = layers.Dense(6, activation="relu")
            self.dropout = layers.Dropout(0.5, seed=3)
            self.classify = layers.Dense(3)

        def call(self, inputs, training=False):
            return self.classify(self.dropout(self.hidden(inputs), training=training))

    model = Subclassed()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=loss, metrics=["accuracy"])
    return Program(model, numbers(5), classes(3))


def loss_and_metric_classes_of_its_own() -> Program:
    class Pinball(keras.losses.Loss):
        def __init__(self, quantile=0.7, name="pinball"):
            super().__init__(name=name)
            self.quantile = quantile

        def call(self, y_true, y_pred):
            error = y_true - y_pred
            return ops.mean(ops.maximum(self.quantile * error, (self.quantile - 1) * error), -1)

    class Positives(keras.metrics.Metric):
        def __init__(self, name="positives"):
            super().__init__(name=name)
            self.count = self.add_weight(name="count", initializer="zeros")

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.count.assign_add(ops.sum(ops.cast(y_pred > 0, "float32")))

        def result(self):
            return self.count + 0.0

        def reset_state(self):
            self.count.assign(0.0)

    model = _regression()
    model.compile(optimizer="adam", loss=Pinball(), metrics=[Positives()])
    return Program(model, **_pairs(), options={"validation_split": 0.34})


def run_eagerly_with_python_in_the_step() -> Program:
    class Watched(keras.Model):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                y_pred = self(x, training=True)
                loss = self.compute_loss(y=y, y_pred=y_pred)
            self.seen = [*getattr(self, "seen", []), float(loss.numpy())]
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
            return {"loss": loss, "steps": float(len(self.seen))}

    model = _regression(Watched)
    model.compile(optimizer="sgd", loss="mse", run_eagerly=True)
    return Program(model, **_pairs(), plan="auto")


def float64_from_a_pipeline() -> Program:
    class Exact(keras.Model):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(y=y, y_pred=self(x, training=True))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
            return {"loss": loss, "large": tf.reduce_sum(x * tf.constant(1e12, tf.float64))}

    model = _regression(Exact)
    model.compile(optimizer="sgd", loss="mse")
    pairs = (numbers(5).astype("float64"), numbers(1, seed=1).astype("float64"))
    return Program(model, tf.data.Dataset.from_tensor_slices(pairs).batch(BATCH))
