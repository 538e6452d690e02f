"""Every place where Loopwright changes how Keras behaves: scoped, and undone.

A test here that fails after an update of Keras or TensorFlow says which internal has moved.
"""

import contextlib
import importlib
import pkgutil
from collections.abc import Callable
from types import FunctionType
from typing import Any

import keras
import pytest
from tests.compat.changes import HERE, ours

from loopwright.compat import keras_internals, keras_optimizers, tensorflow_internals

SGD = keras.optimizers.SGD

OPTIMIZER = "keras.src.backend.tensorflow.optimizer.TFOptimizer"
BASE_OPTIMIZER = "keras.src.optimizers.base_optimizer.BaseOptimizer"
# Replicas run in other threads, which get the changes of the thread that starts them.
CARRIED = "tensorflow.python.distribute.distribute_lib.StrategyExtendedV1.call_for_each_replica"
TRAINER = "keras.src.backend.tensorflow.trainer.TensorFlowTrainer"

Scope = Callable[[], contextlib.AbstractContextManager[Any]]


def accumulating() -> contextlib.AbstractContextManager[None]:
    return keras_optimizers.without_accumulation(SGD(1.0, gradient_accumulation_steps=2))


NO_LOSSES = {"deserialize", "get", "serialize"}
LOSS_FUNCTIONS = {
    name
    for name, value in vars(keras.losses).items()
    if isinstance(value, FunctionType) and name not in NO_LOSSES
}

SCOPES: dict[str, tuple[Scope, set[str]]] = {
    "losses": (
        keras_optimizers.losses_as_for_one_device,
        {
            "keras.src.losses.loss.scale_loss_for_distribution",
            "keras.src.losses.loss.unscale_loss_for_distribution",
        },
    ),
    "reduction": (
        keras_optimizers.optimizers_reduce_nothing,
        {f"{OPTIMIZER}._all_reduce_sum_gradients"},
    ),
    "plain apply": (
        keras_optimizers.plain_apply_refused,
        {
            f"{BASE_OPTIMIZER}.apply",
            "keras.src.optimizers.loss_scale_optimizer.LossScaleOptimizer.apply",
        },
    ),
    "accumulation": (
        accumulating,
        {
            f"{BASE_OPTIMIZER}.iterations",
            "keras.src.optimizers.optimizer.Optimizer.gradient_accumulation_steps",
        },
    ),
    "model losses": (keras_internals.watching_losses, {"keras.src.layers.layer.Layer.losses"}),
    "tapes": (
        tensorflow_internals.watching_tapes,
        {"tensorflow.python.eager.backprop.GradientTape.gradient"},
    ),
    "calls": (
        keras_internals.watching_calls,
        {
            "keras.src.layers.layer.Layer.__call__",
            "keras.src.losses.loss.Loss.__call__",
            "keras.src.metrics.reduction_metrics.MeanMetricWrapper.update_state",
            *(f"{TRAINER}.{name}" for name in ("fit", "evaluate", "predict")),
            *(f"{TRAINER}.{name}_on_batch" for name in ("train", "test", "predict")),
            *(f"keras.losses.{name}" for name in LOSS_FUNCTIONS),
        },
    ),
}


def test_importing_every_module_changes_nothing_in_keras_and_tensorflow():
    for module in pkgutil.walk_packages([HERE], "loopwright."):
        if module.name != "loopwright.digits":
            importlib.import_module(module.name)

    assert ours() == set()


@pytest.mark.parametrize(("scope", "names"), list(SCOPES.values()), ids=list(SCOPES))
def test_a_scope_changes_exactly_what_it_says_and_is_undone(scope: Scope, names: set[str]):
    with scope():
        assert ours() == {*names, CARRIED}
        with scope():
            pass
        assert ours() == {*names, CARRIED}
    assert ours() == set()
    with pytest.raises(ZeroDivisionError), scope():
        _ = 1 / 0
    assert ours() == set()
