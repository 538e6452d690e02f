"""Supervised: a task for inputs, labels and a loss."""

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, final

import keras
import tensorflow as tf

from loopwright.compat.lines import shape_text
from loopwright.compat.tensorflow_internals import autograph
from loopwright.errors import StepError
from loopwright.task.dataflow import ELEMENTWISE, flow
from loopwright.task.gradients import Transform
from loopwright.task.task import Scalars, Task


@final
class Supervised(Task):
    """Train a model on batches of `(x, y)` or `(x, y, sample_weight)`.

    Loss, optimizer and metrics are what Keras' `compile` takes: names, objects, plain functions,
    and lists or dicts of them for several outputs. The model's own losses are always added.
    `gradients` are functions that transform the gradients, in this order, as in `minimize`.

    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    >>> task = Supervised(model, "mse", "sgd", metrics=["mae"])
    """

    def __init__(
        self,
        model: keras.Model,
        loss: Any,
        optimizer: Any,
        metrics: Any = (),
        *,
        weighted_metrics: Any = (),
        loss_weights: Any = None,
        gradients: Sequence[Transform] = (),
    ) -> None:
        self.model = model
        self.optimizer = keras.optimizers.get(optimizer)
        is_scaled = isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer)
        if model.dtype_policy.name == "mixed_float16" and not is_scaled:
            # float16 gradients underflow without a scale; `compile` wraps for the same reason.
            self.optimizer = keras.optimizers.LossScaleOptimizer(self.optimizer)
        self.gradients = list(gradients)
        self._loss = loss
        self._objective = _Objective(model)
        self._objective.compile(
            optimizer=None,
            loss=loss,
            loss_weights=loss_weights,
            metrics=_or_none(metrics),
            weighted_metrics=_or_none(weighted_metrics),
            run_eagerly=False,
            jit_compile=False,
        )

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        """The requested metrics, named as in Keras, and those that layers of the model hold."""
        asked = [metric for metric in self._objective.metrics if metric.name != "loss"]
        # Those of the layers: `model.metrics` would add those of a `compile` that is not ours.
        return list(dict.fromkeys([*asked, *keras.Layer.metrics.fget(self.model)]))

    def train_step(self, batch: Any) -> Scalars:
        """Predict, score and update."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        with tf.GradientTape() as tape:
            predictions = self.model(x, training=True)
            scalars = self._losses(y, predictions, sample_weight)
        loss = scalars["loss"]
        self.minimize(loss, self.model, self.optimizer, tape, transform=self.gradients)
        self._objective.compute_metrics(x, y, predictions, sample_weight)
        return scalars

    def test_step(self, batch: Any) -> Scalars:
        """Predict and score."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        predictions = self.model(x, training=False)
        scalars = self._losses(y, predictions, sample_weight)
        self._objective.compute_metrics(x, y, predictions, sample_weight)
        return scalars

    def predict_step(self, batch: Any) -> Any:
        """Predict; labels and weights in the batch are ignored."""
        x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
        return self.model(x, training=False)

    def _losses(self, y: Any, predictions: Any, sample_weight: Any) -> dict[str, Any]:
        if y is None and self._loss is not None:
            raise StepError(
                "Supervised has a loss, but the data has no labels.",
                expected="fit(x, y), or a dataset of (inputs, labels)",
                received="inputs only",
                do="pass the labels; with loss=None a model is trained on its own losses",
            )
        self._check_labels(y, predictions)
        own = self.model.losses
        loss = self._objective.compute_loss(y=y, y_pred=predictions, sample_weight=sample_weight)
        return {"loss": loss} | ({"regularization_loss": tf.add_n(own)} if own else {})

    # AutoGraph has nothing to convert here, and would take half a second to find out.
    @tf.autograph.experimental.do_not_convert
    def _check_labels(self, y: Any, predictions: Any) -> None:
        if y is None:
            return
        names = getattr(self.model, "output_names", None) or []
        if not isinstance(predictions, Mapping | list | tuple):
            (loss, *_) = keras.tree.flatten(self._loss) or (None,)
            check_labels(loss, y, predictions)
            return
        for key, label, prediction in _pairs(y, predictions, names):
            loss = self._loss
            if isinstance(loss, Mapping):
                loss = loss.get(key)
            elif isinstance(loss, list | tuple) and key in names:
                loss = loss[names.index(key)]
            if loss is not None:
                check_labels(loss, label, prediction, f" of output {key!r}")


@final
class _Objective(keras.Model):
    """Keras' handling of loss and metrics, outside of the model instead of compiled into it."""

    def __init__(self, model: keras.Model) -> None:
        super().__init__(name=f"{model.name}_objective", dtype=model.dtype_policy)
        self.model = model
        self.output_names = getattr(model, "output_names", None)
        self.built = True

    def call(self, inputs: Any) -> Any:
        return self.model(inputs)


def _or_none(metrics: Any) -> Any:
    return list(metrics) or None if isinstance(metrics, list | tuple) else metrics


def _pairs(y: Any, predictions: Any, names: list[str]) -> list[tuple[str, Any, Any]]:
    if isinstance(predictions, Mapping):
        labels = y if isinstance(y, Mapping) else {}
        return [(key, labels[key], p) for key, p in predictions.items() if key in labels]
    keys = names or [str(index) for index in range(len(predictions))]
    if isinstance(y, Mapping):
        return [(k, y[k], p) for k, p in zip(keys, predictions, strict=True) if k in y]
    return list(zip(keys, y, predictions, strict=False))


def check_labels(loss: Any, labels: Any, predictions: Any, output: str = "") -> None:
    """Raise if labels and predictions would only fit by broadcasting in a loss passed as `loss=`.

    Keras' own losses handle a missing last axis. With a loss of your own it is refused: Keras adds
    the axis to the labels of a function too, and a function that expects it to be missing, with
    `y - predictions[:, 0]`, would compute n x n differences.
    """
    y, p = getattr(labels, "shape", None), getattr(predictions, "shape", None)
    if y is None or p is None or y.rank is None or p.rank is None or _takes_class_numbers(loss):
        return
    longer, shorter = (p, y) if p.rank > y.rank else (y, p)
    missing_axis = longer.rank == shorter.rank + 1 and longer[-1] == 1
    if is_of_keras(loss):
        fits = missing_axis or _same(y, p)
    else:
        fits = not missing_axis and (_same(y, p) or not _meet_in(loss, y, p))
    if not fits:
        result = "(n, n)" if missing_axis and shorter.rank == 1 else "a larger shape"
        raise StepError(
            f"Labels and predictions{output} only fit by broadcasting to {result}.",
            expected="labels and predictions of the same shape",
            received=f"labels {shape_text(y)}, predictions {shape_text(p)}",
            do="reshape the labels (for instance y[:, None]) or the model's last layer"
            + ("" if missing_axis else "; for class numbers as labels use a sparse loss"),
        )


def _takes_class_numbers(loss: Any) -> bool:
    """Return whether it is a Keras loss whose labels rightly differ in shape from predictions."""
    names = [loss, type(loss).__name__]
    names += [getattr(loss, attribute, "") for attribute in ("name", "__name__")]
    names += [getattr(getattr(loss, "fn", None), "__name__", "")]
    words = " ".join(name.lower() for name in names if isinstance(name, str))
    return loss in ("ce", "crossentropy") or bool(re.search("sparse|ctc|circle|generalized", words))


def is_of_keras(loss: Any) -> bool:
    """Return whether a loss comes with Keras: a name, an object or a function."""
    modules = (type(loss).__module__, getattr(loss, "__module__", None) or "")
    return isinstance(loss, str) or any(module.startswith("keras.") for module in modules)


def _same(y: tf.TensorShape, p: tf.TensorShape) -> bool:
    return y.rank == p.rank and y.is_compatible_with(p)


def _meet_in(loss: Any, y: tf.TensorShape, p: tf.TensorShape) -> bool:
    """Return whether a custom loss combines the labels with predictions of another shape.

    A function may take class numbers and look them up: only its graph shows that.
    """
    if tf.executing_eagerly():
        return False
    function = loss.call if isinstance(loss, keras.losses.Loss) else loss
    specs = [tf.TensorSpec(shape, keras.config.floatx()) for shape in (y, p)]
    with contextlib.suppress(Exception):  # any other mistake shows when the loss is called
        graph = tf.function(autograph(function)).get_concrete_function(*specs).graph
        labels = flow(graph, graph.inputs[:1], through=("Cast", "Identity"))
        predictions = flow(graph, graph.inputs[1:2])
        for op in graph.get_operations():
            if op.type in ELEMENTWISE:
                a, b = op.inputs
                for one, other in ((a, b), (b, a)):
                    if one.name in labels and other.name in predictions:
                        return not _same(one.shape, other.shape)
    return False
