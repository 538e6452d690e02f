"""Internals that have moved lead to a warning or a refusal, never to a wrong number."""

from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.mirrored import mirrored

import loopwright as lw
from loopwright.compat import internals, keras_internals, keras_optimizers, tensorflow_internals
from loopwright.errors import ConfigurationError, LoopwrightWarning

X, Y = np.ones((8, 2), "float32"), np.ones((8, 1), "float32")


@pytest.fixture(autouse=True)
def warns_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(internals, "_warned", set[str]())


def supervised(**options: Any) -> lw.Supervised:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
    return lw.Supervised(model, "mse", keras.optimizers.SGD(0.1, **options))


def weights(trainer: lw.Trainer) -> np.ndarray:
    trainer.fit(X, Y, batch_size=4, shuffle=False, verbose=0)
    return trainer.task.model.get_weights()[0]


def owner_of(kind: type, name: str) -> type:
    return next(owner for owner in kind.__mro__ if name in vars(owner))


def a_branch() -> Any:
    with tensorflow_internals.scratch_graph() as graph:
        tf.cond(tf.equal(tf.size(tf.zeros([2])), 2), lambda: 1.0, lambda: 2.0)
    return next(op for op in graph.get_operations() if "If" in op.type)


def run_on_copies() -> None:
    counter = tf.Variable(1.0)
    concrete: Any = tf.function(lambda: counter.assign_add(1.0)).get_concrete_function()
    tensorflow_internals.run_on_copies(concrete, ())
    assert float(counter) == 1.0


@pytest.mark.parametrize(
    ("owner", "name", "call", "result", "warning"),
    [
        (
            getattr(internals.module("tensorflow.python.eager.function"), "ConcreteFunction"),  # noqa: B009
            "_call_flat",
            run_on_copies,
            None,
            "TensorFlow .* has moved _call_flat: XLA compiles",
        ),
        (
            owner_of(keras.Model, "_symbolic_build"),
            "_symbolic_build",
            lambda: keras_internals.build_compiled_model(SimpleNamespace(model=keras.Model()), 0),
            None,
            "build a compiled model and its optimizer before",
        ),
        (
            tf.Graph,
            "_get_function",
            lambda: tensorflow_internals.inner_graphs(a_branch()),
            [],
            "has moved _get_function",
        ),
        (
            tensorflow_internals.auto_control_deps_utils,
            "get_read_write_resource_inputs",
            lambda: tensorflow_internals.written_handles(tf.Graph()),
            None,
            "is reported as 0",
        ),
        (
            tensorflow_internals,
            "device_lib",
            tensorflow_internals.gpu_memory_bytes,
            None,
            "the memory of the host decides",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_without_an_internal_there_is_one_warning_and_an_answer(
    owner: Any, name: str, call: Any, result: Any, warning: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: ["GPU:0"])
    monkeypatch.setattr(owner, name, None)
    with pytest.warns(LoopwrightWarning, match=warning):
        assert call() == result
    assert call() == result  # and only once


def test_without_the_reduction_of_keras_one_replica_is_warned_and_several_are_refused(
    monkeypatch: pytest.MonkeyPatch,
):
    name = "_all_reduce_sum_gradients"
    monkeypatch.delattr(owner_of(keras.optimizers.SGD, name), name)
    with (
        pytest.raises(ConfigurationError, match="has moved _all_reduce_sum_gradients, and"),
        keras_optimizers.optimizers_reduce_nothing(replicas=2),
    ):
        pass
    with pytest.raises(ConfigurationError, match="updates would be too large"):
        lw.Trainer(supervised, plan="graph", strategy=mirrored()).fit(X, Y, verbose=0)
    with (
        pytest.warns(LoopwrightWarning, match="with one replica memory grows"),
        keras_optimizers.optimizers_reduce_nothing(),
    ):
        pass


def test_without_the_scaling_of_losses_one_replica_trains_and_several_are_refused(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(keras_optimizers, "keras_loss", None)
    weights(lw.Trainer(supervised(), plan="graph"))
    with pytest.raises(ConfigurationError, match="losses would be too small"):
        lw.Trainer(supervised, plan="graph", strategy=mirrored()).fit(X, Y, verbose=0)


def test_without_accumulators_several_replicas_are_refused():
    optimizer = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
    variable = keras.Variable(1.0)
    optimizer.build([variable])
    del optimizer._accumulated_gradients
    with pytest.raises(ConfigurationError, match="accumulation with several replicas is refused"):
        keras_optimizers.accumulators(optimizer, [variable])


def test_without_the_count_of_calls_iterations_is_used_unless_gradients_are_accumulated():
    class Other:
        gradient_accumulation_steps: int | None = None
        iterations = 7

    assert keras_optimizers.update_counter(Other()) == 7
    accumulating = Other()
    accumulating.gradient_accumulation_steps = 2
    with pytest.raises(ConfigurationError, match="with it training is refused"):
        keras_optimizers.update_counter(accumulating)


def test_without_the_learning_rate_the_config_has_it():
    class Other:
        def __init__(self, rate: Any) -> None:
            self.learning_rate = 0.5
            self._config = keras.optimizers.SGD(rate).get_config()

        def get_config(self) -> dict[str, Any]:
            return self._config

    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    found = keras_optimizers.learning_rate_of(Other(schedule))
    assert found.get_config() == schedule.get_config()
    assert keras_optimizers.learning_rate_of(Other(0.5)) == 0.5


def test_without_the_list_of_layers_those_of_models_are_found(monkeypatch: pytest.MonkeyPatch):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    expected = keras_internals.layers_in(model)
    monkeypatch.delattr(owner_of(keras.Model, "_flatten_layers"), "_flatten_layers")
    with pytest.warns(LoopwrightWarning, match="has moved _flatten_layers"):
        found = keras_internals.layers_in(model)
    assert [layer for layer in expected if isinstance(layer, keras.layers.Dense)] == [
        layer for layer in found if isinstance(layer, keras.layers.Dense)
    ]


def test_a_private_module_that_has_moved_is_none():
    assert internals.module("tensorflow.python.ops.no_such_module") is None


def test_without_the_seeds_of_a_shuffle_it_counts_as_reshuffled(monkeypatch: pytest.MonkeyPatch):
    data = tf.data.Dataset.range(4).shuffle(4, seed=1)
    del data._reshuffle_each_iteration
    assert tensorflow_internals.pipeline_parts(data)[0].draws_each_pass
