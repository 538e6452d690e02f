"""Whole models and metrics, and what Keras notes down in them."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf


def build_compiled_model(task: Any, batch_spec: Any) -> None:
    """Creates what a compiled model makes lazily, as Keras' own `fit` does before it trains.

    If this moves: with several replicas a compiled model has to arrive built, optimizer included.
    """
    batch = tf.nest.map_structure(lambda s: keras.KerasTensor(s.shape, s.dtype.name), batch_spec)
    task.model._symbolic_build(data_batch=batch)


def better(metric: keras.metrics.Metric) -> str | None:
    """`"max"` or `"min"`, where the metric says which is better.

    If this moves: `EarlyStopping("val_accuracy")` asks for a mode.
    """
    return {"up": "max", "down": "min"}.get(getattr(metric, "_direction", None) or "")


def loss_arguments(loss: keras.losses.Loss) -> dict[str, Any]:
    """What a loss passes to its function; the config of Huber does not have its delta.

    If this moves: an edited argument of a loss goes unnoticed (tested).
    """
    return dict(getattr(loss, "_fn_kwargs", None) or {})


def without_values(metric: keras.metrics.Metric) -> bool:
    """Whether these are the metrics of `compile(metrics=...)`, and no step has updated them yet.

    If this moves: a step that forgets them fails at the end of the epoch, as in Keras (tested).
    """
    return type(metric).__name__ == "CompileMetrics" and not getattr(metric, "built", True)


def is_loss_tracker(metric: keras.metrics.Metric, model: keras.Model) -> bool:
    """Whether a metric is Keras' own mean of the loss, which a step of one's own need not update.

    If this moves: a right step of a Keras model is warned of an idle metric (tested).
    """
    return metric is getattr(model, "_loss_tracker", None)


@contextlib.contextmanager
def watching_updates(metrics: Sequence[keras.metrics.Metric]) -> Iterator[set[Any]]:
    """The metrics whose `update_state` is called while it lasts, also by calling the metric.

    If this moves: in eager steps only a metric whose values have changed counts as updated.
    """
    updated = set[Any]()

    def watching(metric: keras.metrics.Metric) -> Any:
        update = metric.update_state

        def update_state(*args: Any, **kwargs: Any) -> Any:
            updated.add(metric)
            return update(*args, **kwargs)

        return update_state

    before = [vars(metric).get("update_state") for metric in metrics]
    for metric in metrics:
        object.__setattr__(metric, "update_state", watching(metric))  # Keras would track it
    try:
        yield updated
    finally:
        for metric, own in zip(metrics, before, strict=True):
            if own is None:
                object.__delattr__(metric, "update_state")
            else:
                object.__setattr__(metric, "update_state", own)


def take_initial_epoch(model: keras.Model) -> int:
    """The epoch with which `BackupAndRestore` asks Keras' own `fit` to go on; 0 if it did not.

    If this moves: nobody is told that epochs count from zero here.
    """
    epoch = getattr(model, "_initial_epoch", None) or 0
    if epoch:
        model._initial_epoch = None
    return epoch


def is_bookkeeping(attribute: str) -> bool:
    """Whether Keras keeps lists in this attribute, of what its objects hold in others as well.

    If this moves: the names of some variables change, and checkpoints from before are refused.
    """
    return attribute in _BOOKKEEPING or attribute.startswith("_self_")


_BOOKKEEPING = frozenset(
    [
        "_layers",
        "_metrics",
        "_variables",
        "_trainable_variables",
        "_non_trainable_variables",
        "_seed_generators",
        "_functional",
        "_operations",
        "_loss_tracker",
        "_compile_metrics",
        "_compile_loss",
    ]
)
