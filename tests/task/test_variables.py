"""Every variable of a task has a name: its own, always the same, and none is left out."""

import enum
import gc
import json
import os
import sys
import textwrap
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.mirrored import mirrored
from tests.processes import run_command
from tests.tasks import ByHand

import loopwright as lw
from loopwright.checkpoints import snapshot
from loopwright.compat import tensorflow_internals
from loopwright.distribute.team import Team
from loopwright.engine.engine import Engine
from loopwright.engine.trace import Built
from loopwright.errors import StepError
from loopwright.task import variables
from loopwright.task.keras_model import CompiledModel, as_task

layers, optimizers = keras.layers, keras.optimizers

SPEC = (tf.TensorSpec((None, 2)), tf.TensorSpec((None, 2)))


class Holder:
    """Anything with attributes: what is walked is a task, or looks like one."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class CallableHolder(Holder):
    def __call__(self, value: Any) -> Any:
        return value


class Module(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = tf.Variable(1.0)
        self.rest = [tf.Variable(2.0)]

    def __call__(self, value: Any) -> Any:
        return value * self.first


class Block(layers.Layer):
    """Sublayers and variables in attributes, lists and dicts, and one weight that has none."""

    def __init__(self) -> None:
        super().__init__()
        self._first = layers.Dense(2)
        self.rest = [layers.Dense(2), layers.Dropout(0.3)]
        self.by_name = {"last": layers.Dense(2)}
        self.temperature = tf.Variable(1.0)

    def build(self, input_shape: Any) -> None:
        self.scale = self.add_weight(shape=(2,))
        self.kept = (lambda weight: lambda: weight)(self.add_weight(shape=(2,), name="loose"))

    def call(self, x: Any) -> Any:
        x = self.rest[1](self.rest[0](self._first(x)))
        return self.by_name["last"](x) * self.scale * self.temperature + self.kept()


class Nested(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = keras.Sequential([layers.Dense(2), layers.BatchNormalization()])
        self.tracker = keras.metrics.Mean()

    def call(self, x: Any) -> Any:
        return self.encoder(x)


def functional(*inner: Any) -> keras.Model:
    inputs = x = keras.Input((2,))
    for layer in inner:
        x = layer(x)
    return keras.Model(inputs, x)


def dense_names(path: str) -> list[str]:
    return [f"{path}.kernel", f"{path}.bias"]


class Own(ByHand):
    """A step that trains `model` with `optimizer`, and whatever a test adds to it."""

    def __init__(
        self, model: Any, optimizer: Any, add: Callable[[Any], Any] = lambda x: 0.0, **held: Any
    ) -> None:
        self.optimizer, self.model = optimizer, model  # the optimizer first: it must not matter
        self.add = add
        vars(self).update(held)

    def loss_of(self, x: Any, y: Any) -> Any:
        return super().loss_of(x, y) + self.add(x)


def small_model() -> keras.Model:
    return keras.Sequential([keras.Input((2,)), layers.Dense(2)])


def built(task: Any, strategy: Any = None) -> Built:
    strategy = strategy or tf.distribute.get_strategy()
    return Engine(as_task(task, strategy), Team(strategy)).built("train_step", SPEC)


def names(held: Any) -> list[str]:
    return list(variables.named(held))


# --- what is named, and how -----------------------------------------------------------------------


def test_variables_are_named_by_their_attributes():
    holder = Holder(
        weight=tf.Variable(1.0),
        heads=[tf.Variable(1.0), keras.Variable(2.0)],
        critics={"left": tf.Variable(3.0), 7: tf.Variable(4.0)},
        settings=Holder(rate=tf.Variable(5.0)),
    )
    expected = ["weight", "heads[0]", "heads[1]", "critics['left']", "critics[7]", "settings.rate"]
    assert names(holder) == expected
    assert all(isinstance(variable, tf.Variable) for variable in variables.named(holder).values())
    assert variables.named(holder)["heads[1]"] is holder.heads[1].value  # pyright: ignore


def test_random_states_are_named():
    holder = Holder(seed=keras.random.SeedGenerator(0), drawn=tf.random.Generator.from_seed(1))
    assert names(holder) == ["seed.state", "drawn.state"]


def test_layers_of_a_model_are_named_by_their_place():
    model = functional(layers.Dense(2), layers.Dropout(0.5), small_model())
    assert names(Holder(model=model)) == [
        *dense_names("model.layers[1]"),
        "model.layers[2].seed_generator.state",
        *dense_names("model.layers[3].layers[0]"),
    ]


def test_a_sequential_model_has_the_same_names_with_and_without_an_input():
    with_input = keras.Sequential([keras.Input((2,)), layers.Dense(2), layers.Dense(2)])
    without = keras.Sequential([layers.Dense(2), layers.Dense(2)])
    without.build((None, 2))
    assert names(Holder(model=with_input)) == names(Holder(model=without))


def test_a_layer_of_ones_own_is_named_by_its_attributes():
    assert names(Holder(model=functional(Block()))) == [
        *dense_names("model.layers[1].first"),
        *dense_names("model.layers[1].rest[0]"),
        "model.layers[1].rest[1].seed_generator.state",
        *dense_names("model.layers[1].by_name['last']"),
        "model.layers[1].temperature",
        "model.layers[1].scale",
        "model.layers[1].variables[1]",
    ]


def test_a_private_attribute_keeps_its_underscore_beside_a_public_one_of_that_name():
    layer = layers.Layer()
    layer.a, layer._a = tf.Variable(1.0), tf.Variable(2.0)
    named = variables.named(Holder(layer=layer))
    assert named["layer.a"] is layer.a
    assert named["layer._a"] is layer._a


def test_a_model_of_ones_own_is_named_by_its_attributes():
    model = Nested()
    model(np.zeros((1, 2), "float32"))
    assert names(Holder(model=model)) == [
        *dense_names("model.encoder.layers[0]"),
        *(f"model.encoder.layers[1].{n}" for n in ("gamma", "beta")),
        *(f"model.encoder.layers[1].{n}" for n in ("moving_mean", "moving_variance")),
        "model.tracker.total",
        "model.tracker.count",
    ]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: layers.MultiHeadAttention(1, 1), "model.layers[1].query_dense.kernel"),
        (
            lambda: layers.Bidirectional(layers.LSTM(2)),
            "model.layers[1].backward_layer.cell.recurrent_kernel",
        ),
    ],
)
def test_layers_inside_layers_of_keras_are_named(make: Any, expected: str):
    inputs, layer = keras.Input((3, 2)), make()
    outputs = layer(inputs, inputs) if "Attention" in type(layer).__name__ else layer(inputs)
    model = keras.Model(inputs, outputs)
    named = variables.named(Holder(model=model))
    assert expected in named
    assert len(named) == len(model.variables)
    assert not [name for name in named if "variables[" in name]


def test_what_is_shared_is_named_once_by_its_first_path():
    model = small_model()
    task = Holder(first=model, second=model, kernel=model.layers[0].kernel, all=[model.layers[0]])
    assert names(task) == dense_names("first.layers[0]")


def test_the_step_counter_is_the_step():
    task = Own(small_model(), optimizers.SGD())
    built(task)
    assert variables.named(task)["step"] is task.step_counter


def test_what_is_callable_or_a_module_is_walked_too():
    holder = Holder(augment=CallableHolder(seed=keras.random.SeedGenerator(1)), module=Module())
    assert names(holder) == ["augment.seed.state", "module.first", "module.rest[0]"]


def test_what_is_not_built_has_no_names_yet():
    task = Holder(model=keras.Sequential([layers.Dense(2)]), optimizer=optimizers.Adam())
    assert names(task) == ["optimizer.iterations", "optimizer.learning_rate"]


def test_attributes_that_look_like_paths_do_not_hide_each_other():
    task = Holder(heads=[tf.Variable(1.0)])
    setattr(task, "heads[0]", tf.Variable(2.0))
    assert names(task) == ["heads[0]", "heads[0]'"]


def test_a_key_without_a_text_of_its_own_counts():
    kind = enum.Enum("Kind", ["LEFT"])
    task = Holder(by_key={object(): tf.Variable(1.0), kind.LEFT: tf.Variable(2.0)})
    assert names(task) == ["by_key[#0]", "by_key[<Kind.LEFT: 1>]"]


def test_a_set_of_parts_is_refused_because_it_has_no_order():
    assert names(Holder(few={tf.random.Generator.from_seed(1)}, words={"a", "b"})) == [
        "few[0].state"
    ]
    generators = {tf.random.Generator.from_seed(1), tf.random.Generator.from_seed(2)}
    with pytest.raises(StepError) as caught:
        variables.named(Holder(inner=Holder(drawn=generators)))
    assert str(caught.value) == (
        "inner.drawn is a set, which has no order: its variables cannot be identified.\n"
        "  expected: a list, a tuple or a dict\n"
        "  received: a set of 2\n"
        "  do: make inner.drawn a list"
    )


# --- optimizers -----------------------------------------------------------------------------------

EACH_OPTIMIZER: dict[str, Callable[[], Any]] = {
    "SGD": lambda: optimizers.SGD(momentum=0.9),
    "RMSprop": lambda: optimizers.RMSprop(momentum=0.9, centered=True),
    "Adam": lambda: optimizers.Adam(amsgrad=True),
    "AdamW": optimizers.AdamW,
    "Adadelta": optimizers.Adadelta,
    "Adagrad": optimizers.Adagrad,
    "Adamax": optimizers.Adamax,
    "Adafactor": optimizers.Adafactor,
    "Nadam": optimizers.Nadam,
    "Ftrl": optimizers.Ftrl,
    "Lion": optimizers.Lion,
    "Lamb": optimizers.Lamb,
    "Muon": optimizers.Muon,
    "averaged": lambda: optimizers.Adam(use_ema=True),
    "accumulating": lambda: optimizers.SGD(gradient_accumulation_steps=3),
    "scaled": lambda: optimizers.LossScaleOptimizer(optimizers.Adam(use_ema=True)),
    "scheduled": lambda: optimizers.Adam(optimizers.schedules.CosineDecay(0.1, 10)),
}


@pytest.mark.parametrize("make", EACH_OPTIMIZER.values(), ids=EACH_OPTIMIZER.keys())
def test_all_that_an_optimizer_keeps_is_named_after_what_it_is_kept_for(make: Any):
    task = Own(small_model(), make())
    captured = built(task).captured

    named = variables.named(task)
    held = {id(variable) for variable in named.values()}
    assert {id(variable.value) for variable in task.optimizer.variables} <= held
    variables.require_complete(named, captured, "Own.train_step")
    assert not [name for name in named if "variables[" in name]
    kept_for = [name for name in named if name.endswith("[model.layers[0].kernel]")]
    if optimizer_keeps_slots := len(task.optimizer.variables) > 2:
        assert kept_for
    assert bool(kept_for) == optimizer_keeps_slots
    shapes = {tuple(named[name].shape) for name in kept_for}
    assert shapes <= {(2, 2), (2,)}


def test_the_names_of_adam_are_these():
    task = Own(small_model(), optimizers.Adam())
    built(task)
    kernel, bias = dense_names("model.layers[0]")
    assert names(task) == [
        kernel,
        bias,
        "step",
        "optimizer.iterations",
        "optimizer.learning_rate",
        f"optimizer.momentums[{kernel}]",
        f"optimizer.momentums[{bias}]",
        f"optimizer.velocities[{kernel}]",
        f"optimizer.velocities[{bias}]",
    ]


def test_freezing_another_layer_of_the_same_shape_changes_the_names():
    def slots(frozen: int) -> list[str]:
        model = keras.Sequential([keras.Input((2,)), layers.Dense(2), layers.Dense(2)])
        model.layers[frozen].trainable = False
        task = Own(model, optimizers.SGD(momentum=0.9))
        built(task)
        return [name for name in names(task) if "momentums" in name]

    assert slots(0) == [f"optimizer.momentums[{n}]" for n in dense_names("model.layers[1]")]
    assert slots(1) == [f"optimizer.momentums[{n}]" for n in dense_names("model.layers[0]")]


def test_what_is_kept_for_a_variable_without_a_name_is_counted():
    elsewhere = keras.Variable(np.zeros(2))
    optimizer = optimizers.SGD(momentum=0.9)
    optimizer.build([elsewhere])
    assert names(Holder(optimizer=optimizer))[-1] == "optimizer.momentums[0]"


# --- tasks that come ready ------------------------------------------------------------------------


def compiled_model() -> keras.Model:
    model = small_model()
    model.compile("adam", "mse", metrics=["mae", keras.metrics.MeanSquaredError()])
    return model


def test_a_compiled_model_is_named_with_its_optimizer_and_metrics():
    model = compiled_model()
    task = CompiledModel(model)
    built(task)
    named = names(task)
    assert named[:8] == [
        *dense_names("model.layers[0]"),
        *(f"model.metrics[0].{n}" for n in ("total", "count")),
        *(f"model.metrics[1].metrics[0].{n}" for n in ("total", "count")),
        *(f"model.metrics[1].metrics[1].{n}" for n in ("total", "count")),
    ]
    assert "model.optimizer.velocities[model.layers[0].bias]" in named
    assert len(named) == 8 + len(model.optimizer.variables) + 1


SCRIPT = """
    import json, sys
    import keras, numpy as np, tensorflow as tf
    sys.path.insert(0, sys.argv[1])
    import test_variables

    def tell():
        named = test_variables.variables.named(test_variables.everything())
        print(json.dumps(test_variables.variables.table(named)))

    tell()
    for _ in range(2):
        test_variables.everything()
        keras.random.uniform((1,))
    tell()
"""


def everything() -> Any:
    """A task with something of each kind, built by a trace."""
    model = functional(Block(), layers.BatchNormalization(), layers.Dense(2))
    held = {
        "accuracy": keras.metrics.MeanSquaredError(),
        "critics": {name: small_model() for name in ("left", "right")},
        "seed": keras.random.SeedGenerator(),
        "drawn": tf.random.Generator.from_non_deterministic_state(),
        "nested": Nested(),
        "compiled": compiled_model(),
    }
    inner = optimizers.Nadam(use_ema=True, gradient_accumulation_steps=2)
    task = Own(model, optimizers.LossScaleOptimizer(inner), **held)
    task.nested(np.zeros((1, 2), "float32"))  # pyright: ignore
    built(task)
    return task


def test_names_are_the_same_in_any_process_whatever_was_made_before():
    here = variables.table(variables.named(everything()))
    assert len(here) > 60
    assert len({row["name"] for row in here}) == len(here)
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    done = run_command(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), str(Path(__file__).parent)],
        env={"PYTHONHASHSEED": seed, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    at_once, after_others = (json.loads(line) for line in done.stdout.splitlines()[-2:])
    assert at_once == here
    assert after_others == here


# --- nothing is left out --------------------------------------------------------------------------

TEMPERATURE: list[tf.Variable] = []


@pytest.fixture
def temperature() -> Any:
    """A variable that no task holds."""
    TEMPERATURE.append(tf.Variable(1.0, name="temperature"))
    yield TEMPERATURE[0]
    TEMPERATURE.clear()


def written(value: Any) -> Any:
    TEMPERATURE[0].assign(tf.reduce_mean(value), read_value=False)
    return 0.0


def in_branch(value: Any) -> Any:
    return tf.cond(value[0, 0] > 0, TEMPERATURE[0].read_value, lambda: 0.0)


@tf.function
def in_function(value: Any) -> Any:
    return TEMPERATURE[0] * value[0, 0]


USES = {
    "read": (lambda x: TEMPERATURE[0] * 1.0, "temperature (float32 ())"),
    "added to": (lambda x: TEMPERATURE[0].assign_add(1.0), "temperature (float32 ())"),
    "only written": (written, "a variable that the step only writes"),
    "read in a branch": (in_branch, "temperature (float32 ())"),
    "read in a function": (in_function, "temperature (float32 ())"),
}


@pytest.mark.parametrize(("use", "described"), USES.values(), ids=USES.keys())
def test_a_variable_that_the_task_does_not_hold_is_refused_by_name(
    temperature: Any, use: Any, described: str
):
    task = Own(small_model(), optimizers.SGD(), use)
    captured = built(task).captured

    with pytest.raises(StepError) as caught:
        variables.require_complete(variables.named(task), captured, "Own.train_step")
    assert str(caught.value) == (
        "Own.train_step uses variables that the task does not hold: a resumed run would lose "
        "them.\n"
        "  expected: every variable that the step reads or changes, reachable from the task\n"
        f"  received: {described}\n"
        "  do: make them attributes of the task, or of a model or list that it holds: "
        "self.temperature = tf.Variable(1.0) in __init__, self.temperature in the step"
    )

    task.temperature = temperature  # pyright: ignore
    variables.require_complete(variables.named(task), captured, "Own.train_step")


def test_keras_random_without_a_seed_is_refused_and_explained():
    task = Own(small_model(), optimizers.SGD(), lambda x: keras.random.uniform(()))
    captured = built(task).captured
    with pytest.raises(StepError) as caught:
        variables.require_complete(variables.named(task), captured, "Own.train_step")
    received, do = str(caught.value).splitlines()[2:]
    assert "seed_generator_state (int64 (2,))" in received
    assert do == (
        "  do: seed_generator_state: keras.random without a seed draws from a generator that all "
        "of Keras shares; write self.seed = keras.random.SeedGenerator(0) in __init__, and pass "
        "seed=self.seed to keras.random, or seed= to the layer that draws; or pass "
        'exact="best_effort" to Trainer: a resumed run then draws its sequence from the start'
    )


def test_an_optimizer_that_the_task_does_not_hold_is_refused():
    task = Own(small_model(), optimizers.SGD(momentum=0.9))
    captured = built(task).captured
    hidden = task.optimizer
    del task.optimizer
    with pytest.raises(StepError, match="learning_rate"):
        variables.require_complete(variables.named(task), captured, "Own.train_step")
    task.optimizer = hidden
    variables.require_complete(variables.named(task), captured, "Own.train_step")


def test_tables_and_constants_are_no_variables():
    constant = tf.constant(3.0)
    rows = tf.lookup.KeyValueTensorInitializer([0], [1.0])
    table = tf.lookup.StaticHashTable(rows, 0.0)
    task = Own(small_model(), optimizers.SGD(), lambda x: constant * table.lookup(tf.constant(0)))
    variables.require_complete(variables.named(task), built(task).captured, "Own.train_step")


READY: dict[str, Callable[[], Any]] = {
    "own": everything,
    "compiled": lambda: CompiledModel(compiled_model()),
    "supervised": lambda: lw.Supervised(
        functional(Block(), layers.BatchNormalization(), layers.Dense(2)),
        "mse",
        optimizers.Adam(use_ema=True),
        metrics=["mae"],
    ),
}


@pytest.mark.parametrize("make", READY.values(), ids=READY.keys())
def test_all_that_a_step_uses_is_named(make: Any):
    task = make()
    captured = built(task).captured
    assert len(captured) >= 9
    variables.require_complete(variables.named(task), captured, "train_step")


def test_what_is_kept_of_a_trace_does_not_hold_its_graph(monkeypatch: pytest.MonkeyPatch):
    graphs: list[weakref.ref[Any]] = []
    original = tensorflow_internals.captured_variables

    def noted(graph: Any) -> list[Any]:
        graphs.append(weakref.ref(graph))
        return original(graph)

    monkeypatch.setattr(tensorflow_internals, "captured_variables", noted)
    kept = built(Own(small_model(), optimizers.Adam()))
    gc.collect()
    assert kept.captured
    assert [graph() for graph in graphs] == [None]


# --- replicas -------------------------------------------------------------------------------------


def two_replicas() -> tf.distribute.Strategy:
    return mirrored()


def test_a_variable_is_named_for_each_replica_where_replicas_may_differ():
    strategy = two_replicas()

    def make() -> Any:
        model = functional(layers.Dense(2), layers.BatchNormalization(), layers.Dropout(0.5))
        return Own(model, optimizers.Adam(), error=keras.metrics.MeanSquaredError())

    task = as_task(make, strategy)
    captured = Engine(task, Team(strategy)).built("train_step", SPEC).captured
    named = variables.named(task)
    variables.require_complete(named, captured, "Own.train_step")

    def is_one(name: str) -> bool:
        return name in named and f"{name}.replicas[0]" not in named

    def is_for_each(name: str) -> bool:
        own = [named.get(f"{name}.replicas[{index}]") for index in (0, 1)]
        return name not in named and all(isinstance(v, tf.Variable) for v in own)

    kernel = "model.layers[1].kernel"
    for name in (kernel, f"optimizer.velocities[{kernel}]", "optimizer.iterations", "step"):
        assert is_one(name)
        assert len(variables.replicas(named[name])) == 2
    each = ["model.layers[2].moving_mean", "model.layers[3].seed_generator.state", "error.total"]
    assert [name for name in each if not is_for_each(name)] == []


# --- tables ---------------------------------------------------------------------------------------


def test_a_table_survives_json():
    named = {
        "weight": tf.Variable([[1.0, 2.0]]),
        "step": tf.Variable(3, dtype=tf.int64),
        "half": tf.Variable([1.0], dtype=tf.bfloat16),
        "rows": tf.Variable([[1.0]], shape=tf.TensorShape((None, 1))),
        "any": tf.Variable([1.0], shape=tf.TensorShape(None)),
    }
    table = variables.table(named)
    assert table == [
        {"name": "weight", "dtype": "float32", "shape": [1, 2]},
        {"name": "step", "dtype": "int64", "shape": []},
        {"name": "half", "dtype": "bfloat16", "shape": [1]},
        {"name": "rows", "dtype": "float32", "shape": [None, 1]},
        {"name": "any", "dtype": "float32", "shape": None},
    ]
    assert snapshot.difference(json.loads(json.dumps(table)), table) is None
