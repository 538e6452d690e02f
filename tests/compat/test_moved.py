"""Internals that have moved lead to a warning or a refusal, never to a wrong number."""

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


def defining(kind: type, name: str) -> type:
    return next(owner for owner in kind.__mro__ if name in vars(owner))


def test_without_calls_on_copies_xla_compiles_at_the_first_step(monkeypatch: pytest.MonkeyPatch):
    variable = tf.Variable(1.0)
    concrete = tf.function(lambda: variable.assign_add(1.0)).get_concrete_function()
    monkeypatch.delattr(defining(type(concrete), "_call_flat"), "_call_flat")
    with pytest.warns(LoopwrightWarning, match=r"TensorFlow .* has moved _call_flat: XLA compiles"):
        tensorflow_internals.run_on_copies(concrete, ())
    tensorflow_internals.run_on_copies(concrete, ())  # and only once
    assert float(variable) == 1.0


def test_without_autograph_a_step_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch):
    def step(x):
        return x + 1

    monkeypatch.delattr(tf.__internal__.autograph, "tf_convert")
    with pytest.warns(LoopwrightWarning, match=r"has moved tf_convert: if and while on tensors"):
        assert tensorflow_internals.autograph(step) is step


def test_without_the_reduction_of_keras_one_replica_is_warned_and_several_are_refused(
    monkeypatch: pytest.MonkeyPatch,
):
    name = "_all_reduce_sum_gradients"
    monkeypatch.delattr(defining(keras.optimizers.SGD, name), name)
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
    monkeypatch.delattr(defining(keras.Model, "_flatten_layers"), "_flatten_layers")
    with pytest.warns(LoopwrightWarning, match="has moved _flatten_layers"):
        found = keras_internals.layers_in(model)
    assert [layer for layer in expected if isinstance(layer, keras.layers.Dense)] == [
        layer for layer in found if isinstance(layer, keras.layers.Dense)
    ]


def test_without_the_build_of_a_compiled_model_it_has_to_be_built(monkeypatch: pytest.MonkeyPatch):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    monkeypatch.delattr(defining(keras.Model, "_symbolic_build"), "_symbolic_build")
    task = type("Task", (), {"model": model})()
    with pytest.warns(LoopwrightWarning, match="build a compiled model and its optimizer before"):
        keras_internals.build_compiled_model(task, None)


def test_without_inner_graphs_an_operation_has_none(monkeypatch: pytest.MonkeyPatch):
    with tensorflow_internals.scratch_graph() as graph:
        tf.cond(tf.equal(tf.size(tf.zeros([2])), 2), lambda: 1.0, lambda: 2.0)
    (branch,) = (op for op in graph.get_operations() if "If" in op.type)
    assert len(tensorflow_internals.inner_graphs(branch)) == 2
    monkeypatch.delattr(defining(type(graph), "_get_function"), "_get_function")
    with pytest.warns(LoopwrightWarning, match="has moved _get_function"):
        assert tensorflow_internals.inner_graphs(branch) == []


def test_without_written_handles_the_answer_is_unknown(monkeypatch: pytest.MonkeyPatch):
    util = tensorflow_internals.auto_control_deps_utils
    monkeypatch.delattr(util, "get_read_write_resource_inputs")
    with (
        tensorflow_internals.scratch_graph() as graph,
        pytest.warns(LoopwrightWarning, match="is reported as 0"),
    ):
        assert tensorflow_internals.written_handles(graph) is None


def test_without_watched_variables_none_is_refused(monkeypatch: pytest.MonkeyPatch):
    with pytest.warns(LoopwrightWarning, match="uses variables outside of the task"):
        assert tensorflow_internals.captured_variables(object()) == []


def test_a_second_mirrored_strategy_is_made_with_a_warning(monkeypatch: pytest.MonkeyPatch):
    made = []

    class Mirrored:
        def __init__(self, devices: Any) -> None:
            made.append(devices)

    monkeypatch.setattr(tf.distribute, "MirroredStrategy", Mirrored)
    with pytest.warns(LoopwrightWarning, match="has moved _collective_key_base"):
        tensorflow_internals.mirrored_strategy(["CPU:0"])
    assert made == [["CPU:0"]]


def test_without_device_lists_the_memory_of_the_host_counts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: ["GPU:0"])
    monkeypatch.setattr(tensorflow_internals, "device_lib", None)
    with pytest.warns(LoopwrightWarning, match="the memory of the host decides"):
        assert tensorflow_internals.gpu_memory_bytes() is None


def test_a_private_module_that_has_moved_is_none():
    assert internals.module("tensorflow.python.ops.no_such_module") is None


def pipeline() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(8, seed=1).batch(4)


def test_without_states_of_iterators_a_stream_says_that_it_cannot_be_resumed(
    monkeypatch: pytest.MonkeyPatch,
):
    assert lw.Stream(pipeline()).objection_to_resume() is None
    monkeypatch.delattr(tf.raw_ops, "SerializeIterator")
    reason = tensorflow_internals.unsaved_positions()
    assert reason is not None
    assert "has moved SerializeIterator: positions of tf.data pipelines are not" in reason
    assert reason in str(lw.Stream(pipeline()).objection_to_resume())
    assert lw.Stream(pipeline(), replay=True).objection_to_resume() is None
    with pytest.raises(ConfigurationError, match="position of an iterator is refused"):
        tensorflow_internals.restore_iterator(iter(pipeline()), tf.constant(""))
    history = lw.Trainer(supervised(), plan="graph").fit(pipeline(), verbose=0)
    assert len(history.history["loss"]) == 1


def test_without_the_parts_of_pipelines_a_stream_says_that_it_may_not_be_repeatable(
    monkeypatch: pytest.MonkeyPatch,
):
    is_present = internals.is_present
    monkeypatch.setattr(
        internals, "is_present", lambda name: not name.endswith("._inputs") and is_present(name)
    )
    assert tensorflow_internals.pipeline_parts(pipeline()) == []
    objection = lw.Stream(pipeline()).objection_to_resume()
    assert "every one is reported as possibly not repeatable" in str(objection)
    lw.Trainer(supervised(), plan="graph").fit(pipeline(), verbose=0)


def test_without_the_seeds_of_a_shuffle_it_counts_as_reshuffled(monkeypatch: pytest.MonkeyPatch):
    data = tf.data.Dataset.range(4).shuffle(4, seed=1)
    del data._reshuffle_each_iteration
    assert tensorflow_internals.pipeline_parts(data)[0].draws_each_pass
