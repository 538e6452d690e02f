"""`lw.Trainer` reports and learns what Keras `fit` reports and learns.

Every case trains two copies of one model on the same batches: one with Keras `fit`, one with
Loopwright, through `lw.Supervised` and through the compiled model as it stands.
"""

import functools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import loopwright as lw

pytestmark = pytest.mark.kernels

ROWS, BATCH, EPOCHS = 150, 32, 3  # 150 = 4 * 32 + 22: the last batch is smaller
BOTH = ("supervised", "compiled")
ONLY_OURS = {"regularization_loss", "val_regularization_loss"}

random = np.random.default_rng(7)
X = random.normal(size=(ROWS, 6)).astype("float32")
MAPPING = random.normal(size=(6, 3)).astype("float32")
LABELS = np.argmax(X @ MAPPING + random.normal(size=(ROWS, 3)), axis=1).astype("int32")
ONE_HOT = np.eye(3, dtype="float32")[LABELS]
BINARY = (LABELS > 0).astype("float32")
TARGETS = (X @ MAPPING).astype("float32")
WEIGHTS = random.uniform(0.1, 3.0, size=ROWS).astype("float32")
XV, LABELS_V = X[:50][::-1].copy(), LABELS[:50][::-1].copy()
WEIGHTS_V = WEIGHTS[50:100].copy()


def made_of(value: Any) -> Any:
    return value() if callable(value) else value


@dataclass(frozen=True)
class Case:
    """A model, how it is compiled, and what `fit` is given; built afresh for each copy.

    Pipelines are given as functions that make them: no tensor is made while this is imported.
    """

    build: Callable[[], keras.Model]
    settings: Callable[[], dict[str, Any]]
    x: Any = field(default_factory=lambda: X)
    y: Any = field(default_factory=lambda: LABELS)
    fit: Mapping[str, Any] = field(default_factory=dict)
    score: tuple[Any, ...] | None = None  # given to evaluate() and predict(), where they matter
    routes: tuple[str, ...] = ("supervised",)
    keras_miscounts: bool = False  # its optimizer counts a step when the data ends, every epoch
    loss_rtol: float = 1e-5
    weights_rtol: float = 1e-4

    @property
    def fit_arguments(self) -> dict[str, Any]:
        arrays = {} if callable(self.x) else {"y": self.y, "batch_size": BATCH}
        given = {**arrays, "x": self.x, **self.fit}
        made = {name: made_of(value) for name, value in given.items()}
        return {"epochs": EPOCHS, "shuffle": False, "verbose": 0, **made}


@dataclass(frozen=True)
class Outcome:
    """All that a user can see of a finished training."""

    history: dict[str, list[float]]
    weights: list[np.ndarray]
    optimizer: list[np.ndarray]
    scores: dict[str, float] = field(default_factory=dict)
    predictions: Any = None


def identical(build: Callable[[], keras.Model]) -> keras.Model:
    """The same model at each call, down to the initial weights, built or not."""
    keras.utils.set_random_seed(3)
    return build()


# --- models -----------------------------------------------------------------------------------


def classifier(outputs: int = 3, activation: str | None = "softmax") -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.Dense(outputs, activation=activation),
        ]
    )


def normalised() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, kernel_regularizer=keras.regularizers.L2(1e-2)),
            keras.layers.BatchNormalization(momentum=0.8),
            keras.layers.ReLU(),
            keras.layers.Dense(3, activation="softmax", bias_regularizer="l1"),
        ]
    )


def frozen_below() -> keras.Model:
    model = normalised()
    for layer in model.layers[:2]:
        layer.trainable = False
    return model


def two_outputs(as_dict: bool = True) -> keras.Model:
    inputs = keras.Input((6,))
    body = keras.layers.Dense(8, activation="relu")(inputs)
    kind = keras.layers.Dense(3, activation="softmax", name="kind")(body)
    size = keras.layers.Dense(1, name="size")(body)
    return keras.Model(inputs, {"kind": kind, "size": size} if as_dict else [kind, size])


def two_inputs(as_dict: bool = True) -> keras.Model:
    left, right = keras.Input((2,), name="left"), keras.Input((4,), name="right")
    joined = keras.layers.Concatenate()([left, keras.layers.Dense(3, activation="tanh")(right)])
    outputs = keras.layers.Dense(3, activation="softmax")(joined)
    return keras.Model({"left": left, "right": right} if as_dict else [left, right], outputs)


class Spread(keras.layers.Layer):
    """Adds a loss of its own, which depends on the batch."""

    def call(self, inputs):
        self.add_loss(0.05 * keras.ops.mean(keras.ops.square(inputs)))
        return inputs


def self_penalising(head: bool = True) -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, activation="relu", activity_regularizer="l2"),
            Spread(),
            *([keras.layers.Dense(3, activation="softmax")] if head else []),
        ]
    )


class Unbuilt(keras.Model):
    """A subclassed model that knows its shapes only when it sees data."""

    def __init__(self, **options):
        super().__init__(**options)
        self.body = keras.layers.Dense(8, activation="relu", dtype=self.dtype_policy)
        self.norm = keras.layers.BatchNormalization(dtype=self.dtype_policy)
        self.head = keras.layers.Dense(3, activation="softmax", dtype="float32")

    def call(self, inputs, training=False):
        return self.head(self.norm(self.body(inputs), training=training))


# --- losses and metrics -----------------------------------------------------------------------


def cubed_error(y_true, y_pred):
    return keras.ops.mean(keras.ops.abs(y_true - y_pred) ** 3, axis=-1)


def largest_miss(y_true, y_pred):
    return keras.ops.max(keras.ops.abs(y_true - y_pred), axis=-1)


def sparse(optimizer: Callable[[], Any] | str = "sgd", **more: Any) -> Callable[[], dict[str, Any]]:
    """Settings of a classifier of sparse labels; `optimizer` is made afresh for each copy."""
    return lambda: {
        "loss": "sparse_categorical_crossentropy",
        "optimizer": optimizer if isinstance(optimizer, str) else optimizer(),
        "metrics": ["accuracy"],
        **more,
    }


def loss_scaled() -> keras.optimizers.Optimizer:
    """Overflows in its first steps, so that skipped updates and a changing scale are compared."""
    return keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.1), initial_scale=2.0**24, dynamic_growth_steps=4
    )


def batches(*parts: Any) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(parts).batch(BATCH)


SCHEDULE = functools.partial(keras.optimizers.schedules.ExponentialDecay, 0.2, 4, 0.7)
VALIDATION = {"validation_data": (XV, LABELS_V)}

CASES = {
    "batch norm, penalties and a smaller last batch": Case(
        normalised,
        sparse(lambda: keras.optimizers.Adam(0.01)),
        fit=VALIDATION,
        routes=BOTH,
        score=(X, LABELS),
    ),
    "sample weights": Case(
        classifier,
        sparse(weighted_metrics=["accuracy"]),
        fit={"sample_weight": WEIGHTS, "validation_data": (XV, LABELS_V, WEIGHTS_V)},
        routes=BOTH,
    ),
    "a validation split, with sample weights": Case(
        normalised, sparse(), fit={"validation_split": 0.2, "sample_weight": WEIGHTS}, routes=BOTH
    ),
    "class weights": Case(
        classifier,
        sparse(weighted_metrics=["accuracy"]),
        fit={"class_weight": {0: 0.5, 1: 4.0, 2: 1.5}},
        routes=BOTH,
    ),
    "two outputs in a dict": Case(
        two_outputs,
        lambda: {
            "loss": {"kind": "sparse_categorical_crossentropy", "size": "mse"},
            "loss_weights": {"kind": 0.7, "size": 0.2},
            "metrics": {"kind": ["accuracy"], "size": ["mae"]},
            "optimizer": keras.optimizers.SGD(0.05),
        },
        y={"kind": LABELS, "size": TARGETS[:, :1]},
        fit={"validation_data": (XV, {"kind": LABELS_V, "size": TARGETS[:50, :1]})},
        score=(XV, {"kind": LABELS_V, "size": TARGETS[:50, :1]}),
        routes=BOTH,
    ),
    "two outputs in a list": Case(
        functools.partial(two_outputs, as_dict=False),
        lambda: {
            "loss": ["sparse_categorical_crossentropy", keras.losses.Huber()],
            "loss_weights": [0.7, 0.2],
            "metrics": [["accuracy"], ["mae"]],
            "optimizer": keras.optimizers.SGD(0.05),
        },
        y=[LABELS, TARGETS[:, :1]],
        score=(XV, [LABELS_V, TARGETS[:50, :1]]),
    ),
    "two inputs in a dict": Case(
        two_inputs,
        sparse(),
        x={"left": X[:, :2], "right": X[:, 2:]},
        score=({"left": XV[:, :2], "right": XV[:, 2:]}, LABELS_V),
    ),
    "two inputs in a list": Case(
        functools.partial(two_inputs, as_dict=False),
        lambda: {"loss": "sparse_categorical_crossentropy", "optimizer": "sgd"},
        x=[X[:, :2], X[:, 2:]],
    ),
    "binary labels without a last axis": Case(
        functools.partial(classifier, 1, "sigmoid"),
        lambda: {
            "loss": "binary_crossentropy",
            "optimizer": "sgd",
            "metrics": ["accuracy", keras.metrics.AUC(name="auc")],
        },
        y=BINARY,
        score=(XV, BINARY[:50]),
    ),
    "one-hot labels and an optimizer as a string": Case(
        classifier,
        lambda: {
            "loss": keras.losses.CategoricalCrossentropy(label_smoothing=0.1),
            "optimizer": "adam",
            "metrics": ["accuracy"],
        },
        y=ONE_HOT,
    ),
    "a loss and metrics as functions": Case(
        functools.partial(classifier, 3, None),
        lambda: {"loss": cubed_error, "optimizer": "sgd", "metrics": [largest_miss]},
        y=TARGETS,
        fit={"sample_weight": WEIGHTS},
    ),
    "a pipeline with sample weights": Case(
        classifier,
        sparse(weighted_metrics=["accuracy"]),
        x=lambda: batches(X, LABELS, WEIGHTS),
        fit={"validation_data": lambda: batches(XV, LABELS_V, WEIGHTS_V)},
        score=(lambda: batches(XV, LABELS_V),),
        routes=BOTH,
    ),
    "a pipeline of unknown length": Case(
        classifier,
        sparse(),
        x=lambda: batches(X, LABELS).unbatch().filter(lambda x, _: x[0] > -0.5).batch(BATCH),
        keras_miscounts=True,
    ),
    "an endless pipeline": Case(
        classifier,
        sparse(),
        x=lambda: batches(X, LABELS).repeat(),
        fit={
            "steps_per_epoch": 4,
            "validation_data": lambda: batches(XV, LABELS_V).repeat(),
            "validation_steps": 1,
        },
        routes=BOTH,
    ),
    "layers that add losses": Case(
        self_penalising, sparse(), fit={"sample_weight": WEIGHTS, **VALIDATION}
    ),
    "no loss but those of layers": Case(
        functools.partial(self_penalising, head=False),
        lambda: {"optimizer": "sgd"},
        y=None,
        routes=("compiled",),
    ),
    "mixed precision with its loss scale": Case(
        functools.partial(Unbuilt, dtype="mixed_float16"),
        sparse(loss_scaled),
        fit=VALIDATION,
        routes=BOTH,
        loss_rtol=2e-3,
        weights_rtol=2e-2,
    ),
    "mixed precision with a plain optimizer": Case(
        functools.partial(Unbuilt, dtype="mixed_float16"),
        sparse(lambda: keras.optimizers.SGD(0.1)),
        loss_rtol=2e-3,
        weights_rtol=2e-2,
    ),
    "accumulated and clipped gradients": Case(
        classifier,
        sparse(
            lambda: keras.optimizers.Adam(
                0.01, gradient_accumulation_steps=3, global_clipnorm=0.1, weight_decay=0.01
            )
        ),
        routes=BOTH,
    ),
    "averaged weights": Case(
        normalised,
        sparse(lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.8)),
        fit=VALIDATION,
        score=(XV, LABELS_V),
        routes=BOTH,
    ),
    "averaged weights written back on the way": Case(
        classifier,
        sparse(
            lambda: keras.optimizers.SGD(
                0.1, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=4
            )
        ),
    ),
    "a learning rate schedule and a model that is not built": Case(
        Unbuilt, sparse(lambda: keras.optimizers.SGD(SCHEDULE(), momentum=0.9)), routes=BOTH
    ),
    "frozen layers": Case(frozen_below, sparse()),
}


# --- the comparison ---------------------------------------------------------------------------


def outcome(
    case: Case, model: keras.Model, optimizer: Any, history: Any, evaluate: Any, predict: Any
) -> Outcome:
    learned = (
        model.get_weights(),
        [np.asarray(variable.numpy()) for variable in optimizer.variables],
    )
    if case.score is None:
        return Outcome(history.history, *learned)
    given = [made_of(part) for part in case.score]
    return Outcome(history.history, *learned, evaluate(*given), predict(given[0]))


@functools.cache
def by_keras(name: str) -> Outcome:
    case = CASES[name]
    model = identical(case.build)
    model.compile(**case.settings())
    with warnings.catch_warnings():  # Keras warns when a pipeline of unknown length ends
        warnings.simplefilter("ignore")
        history = model.fit(**case.fit_arguments)
    evaluate = functools.partial(model.evaluate, verbose=0, return_dict=True)
    predict = functools.partial(model.predict, verbose=0)
    return outcome(case, model, model.optimizer, history, evaluate, predict)


def by_loopwright(name: str, route: str) -> Outcome:
    case = CASES[name]
    model = identical(case.build)
    if route == "supervised":
        task = lw.Supervised(model, **case.settings())
        trainer, optimizer = lw.Trainer(task), task.optimizer
    else:
        model.compile(**case.settings())
        trainer, optimizer = lw.Trainer(model), model.optimizer
    history = trainer.fit(**case.fit_arguments)
    return outcome(case, model, optimizer, history, trainer.evaluate, trainer.predict)


def assert_same_numbers(ours: Mapping[str, Any], by_keras: Mapping[str, Any], rtol: float) -> None:
    assert set(ours) - ONLY_OURS == set(by_keras)
    for key, values in by_keras.items():
        np.testing.assert_allclose(ours[key], values, rtol=rtol, atol=1e-7, err_msg=key)


def assert_same_arrays(ours: Any, by_keras: Any, rtol: float) -> None:
    keras.tree.assert_same_structure(ours, by_keras)
    for got, wanted in zip(keras.tree.flatten(ours), keras.tree.flatten(by_keras), strict=True):
        assert isinstance(got, np.ndarray)
        np.testing.assert_allclose(got, wanted, rtol=rtol, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "route"), [(name, route) for name, case in CASES.items() for route in case.routes]
)
def test_training_gives_what_keras_gives(name: str, route: str):
    case, expected, ours = CASES[name], by_keras(name), by_loopwright(name, route)

    assert expected.history["loss"][-1] < expected.history["loss"][0]  # models at rest would agree
    assert_same_numbers(ours.history, expected.history, case.loss_rtol)
    assert_same_arrays(ours.weights, expected.weights, case.weights_rtol)
    if not case.keras_miscounts:
        assert_same_arrays(ours.optimizer, expected.optimizer, case.weights_rtol)
    if case.score is not None:
        assert_same_numbers(ours.scores, expected.scores, case.loss_rtol)
        assert_same_arrays(ours.predictions, expected.predictions, case.weights_rtol)


def test_the_loss_scale_of_the_case_above_overflows_and_skips_updates():
    """Guards that case: a scale that only grew would compare less than it says."""
    optimizer = loss_scaled()
    expected = by_keras("mixed precision with its loss scale")
    scales = [value for value in expected.optimizer if value.ndim == 0 and value > 1000.0]
    assert scales
    assert max(scales) < optimizer.initial_scale


@pytest.mark.parametrize("route", BOTH)
def test_a_second_fit_trains_on_as_it_does_in_keras(route: str):
    case = CASES["averaged weights written back on the way"]
    reference, model = identical(case.build), identical(case.build)
    reference.compile(**case.settings())
    arguments = {**case.fit_arguments, "epochs": 1}
    expected = [reference.fit(**arguments).history for _ in range(2)]
    if route == "compiled":
        model.compile(**case.settings())
    trainer = lw.Trainer(model if route == "compiled" else lw.Supervised(model, **case.settings()))

    ours = [trainer.fit(**arguments).history for _ in range(2)]

    for got, wanted in zip(ours, expected, strict=True):
        assert_same_numbers(got, wanted, case.loss_rtol)
