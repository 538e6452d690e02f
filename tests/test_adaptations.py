"""Every place where Loopwright changes how Keras behaves: scoped, undone, and still needed.

A test here that fails after an update of Keras or TensorFlow says which internal has moved.
"""

import contextlib
import functools
import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import loopwright
from loopwright import adaptations
from loopwright.compiled import CompiledModel
from loopwright.errors import StepError

SGD = keras.optimizers.SGD
Adam = keras.optimizers.Adam
LossScaleOptimizer = keras.optimizers.LossScaleOptimizer

HERE = str(Path(loopwright.__file__).parent)
OPTIMIZER = "keras.src.backend.tensorflow.optimizer.TFOptimizer"
BASE_OPTIMIZER = "keras.src.optimizers.base_optimizer.BaseOptimizer"

Scope = Callable[[], contextlib.AbstractContextManager[Any]]


def accumulating() -> contextlib.AbstractContextManager[None]:
    return adaptations.without_accumulation(SGD(1.0, gradient_accumulation_steps=2))


NO_LOSSES = {"deserialize", "get", "serialize"}
LOSS_FUNCTIONS = {
    name
    for name, value in vars(keras.losses).items()
    if isinstance(value, FunctionType) and name not in NO_LOSSES
}

SCOPES: dict[str, tuple[Scope, set[str]]] = {
    "losses": (
        adaptations.losses_as_for_one_device,
        {
            "keras.src.losses.loss.scale_loss_for_distribution",
            "keras.src.losses.loss.unscale_loss_for_distribution",
        },
    ),
    "reduction": (
        adaptations.optimizers_reduce_nothing,
        {f"{OPTIMIZER}._all_reduce_sum_gradients"},
    ),
    "plain apply": (
        adaptations.plain_apply_refused,
        {
            f"{BASE_OPTIMIZER}.apply",
            "keras.src.optimizers.loss_scale_optimizer.LossScaleOptimizer.apply",
        },
    ),
    "accumulation": (accumulating, {f"{BASE_OPTIMIZER}.iterations"}),
    "model losses": (adaptations.watching_losses, {"keras.src.layers.layer.Layer.losses"}),
    "calls": (
        adaptations.watching_calls,
        {
            "keras.src.layers.layer.Layer.__call__",
            "keras.src.losses.loss.Loss.__call__",
            *(f"keras.losses.{name}" for name in LOSS_FUNCTIONS),
        },
    ),
}
each_scope = pytest.mark.parametrize(("scope", "names"), list(SCOPES.values()), ids=list(SCOPES))


def ours() -> set[str]:
    """Every function of Keras and TensorFlow that is now one of Loopwright's."""
    libraries = ("keras.", "tensorflow.")
    modules = {n: m for n, m in sys.modules.items() if n.startswith(libraries) and m is not None}
    return {name for module in modules.values() for name in _ours_in(vars(module), module.__name__)}


def _ours_in(names: Any, path: str) -> Iterator[str]:
    for name, value in list(names.items()):
        if isinstance(value, type) and value.__module__ == path:  # not wherever it is imported
            yield from _ours_in(vars(value), f"{path}.{name}")
        function = value.fget if isinstance(value, property) else value
        if isinstance(function, FunctionType) and function.__code__.co_filename.startswith(HERE):
            yield f"{path}.{name}"


@functools.cache
def two_replicas() -> tf.distribute.Strategy:
    return tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )


def one_variable(optimizer: Any) -> keras.Variable:
    """A variable in reach of the optimizer, which is built for it."""
    w = keras.Variable(0.0)
    optimizer.build([w])
    return w


# --- all of them ----------------------------------------------------------------------------------


def test_importing_every_module_changes_nothing_in_keras_and_tensorflow():
    for module in pkgutil.walk_packages([HERE], "loopwright."):
        if not module.name.startswith("loopwright.recipes"):
            importlib.import_module(module.name)

    assert ours() == set()


@each_scope
def test_a_scope_changes_exactly_what_it_says(scope: Scope, names: set[str]):
    with scope():
        assert ours() == names


@each_scope
def test_a_scope_is_undone_when_it_ends(scope: Scope, names: set[str]):
    with scope():
        pass

    assert ours() == set()


@each_scope
def test_a_scope_is_undone_after_an_error(scope: Scope, names: set[str]):
    with pytest.raises(ZeroDivisionError), scope():
        _ = 1 / 0

    assert ours() == set()


@each_scope
def test_a_scope_inside_itself_is_undone_in_order(scope: Scope, names: set[str]):
    with scope():
        with scope():
            pass
        assert ours() == names

    assert ours() == set()


# --- autograph ------------------------------------------------------------------------------------


def absolute(x):
    if x < 0:
        x = -x
    return x


def test_a_branch_on_a_tensor_becomes_part_of_the_graph():
    def step(x):
        return adaptations.autograph(absolute)(x)

    function = adaptations.compiled(step, [tf.TensorSpec(())])

    assert [float(function(tf.constant(x))) for x in (-2.0, 3.0)] == [2.0, 3.0]


def test_a_converted_function_can_merge_replicas():
    def merged(x):
        if x < 0:
            x = -x
        return tf.distribute.get_replica_context().merge_call(lambda strategy, v: v, args=(x,))

    strategy = two_replicas()

    def step():
        return strategy.run(adaptations.autograph(merged), args=(tf.constant(-2.0),))

    results = strategy.experimental_local_results(adaptations.compiled(step)())

    assert [float(x) for x in results] == [2.0, 2.0]


def test_an_error_of_ours_leaves_a_converted_function_as_it_is():
    error = StepError("ours")

    def step():
        raise error

    with adaptations.scratch_graph(), pytest.raises(StepError) as caught:
        adaptations.autograph(step)()

    assert caught.value is error


# --- graphs ---------------------------------------------------------------------------------------


def test_a_scratch_graph_takes_all_operations_and_runs_none():
    counter = tf.Variable(0)

    with adaptations.scratch_graph() as graph:
        counter.assign_add(1)
        assert not tf.executing_eagerly()

    assert tf.executing_eagerly()
    assert "AssignAddVariableOp" in {op.type for op in graph.get_operations()}
    assert int(counter.numpy()) == 0


def test_variables_made_in_a_scratch_graph_are_real():
    dense = keras.layers.Dense(1, kernel_initializer="ones")

    with adaptations.scratch_graph():
        dense(tf.ones((2, 3)))

    np.testing.assert_array_equal(dense.get_weights()[0], np.ones((3, 1)))


def test_many_compiled_functions_from_one_line_are_no_reason_for_a_warning(
    caplog: pytest.LogCaptureFixture,
):
    def each_anew(make: Any) -> list[str]:
        caplog.clear()
        for _ in range(8):
            make(lambda x: x + 1.0)(tf.constant(1.0))
        return [record.message for record in caplog.records]

    logger = tf.get_logger()
    logger.addHandler(caplog.handler)
    try:
        assert each_anew(adaptations.compiled) == []
        assert "triggered tf.function retracing" in each_anew(tf.function)[0]
    finally:
        logger.removeHandler(caplog.handler)


# --- losses ---------------------------------------------------------------------------------------


def keras_losses() -> list[float]:
    """A loss object, and a compiled loss with a regulariser: 1 and 1 + 1 on one device."""
    loss = keras.losses.MeanSquaredError()
    ones = tf.ones((4, 1))
    dense = keras.layers.Dense(1, kernel_initializer="ones", kernel_regularizer="l2")
    model = keras.Sequential([keras.Input((100,)), dense])  # 100 x 0.01
    model.compile(loss=loss)
    both = model.compute_loss(x=None, y=tf.zeros_like(ones), y_pred=ones)
    return [float(loss(tf.zeros_like(ones), ones)), float(both)]


def test_keras_losses_weigh_as_on_one_device():
    with two_replicas().scope():
        divided = keras_losses()
        with adaptations.losses_as_for_one_device():
            whole = keras_losses()

    assert whole == pytest.approx([1.0, 2.0])
    assert divided == pytest.approx([0.5, 1.0])


# --- reduction ------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [SGD, lambda rate: LossScaleOptimizer(SGD(rate), 1.0)])
def test_gradients_that_are_reduced_already_are_not_summed_again(make: Any):
    strategy = two_replicas()
    with strategy.scope():
        optimizer = make(1.0)
        w = one_variable(optimizer)

    def update():
        optimizer.apply([tf.constant(1.0)], [w])

    with adaptations.optimizers_reduce_nothing():
        strategy.run(update)
    assert float(w.numpy()) == -1.0

    strategy.run(update)
    assert float(w.numpy()) == -3.0  # by itself, Keras adds the two


@pytest.mark.parametrize("make", [SGD, Adam, lambda: LossScaleOptimizer(SGD())])
@pytest.mark.parametrize("method", ["apply", "apply_gradients"])
def test_a_plain_apply_is_refused_where_nobody_would_divide(make: Any, method: str):
    optimizer = make()
    w = one_variable(optimizer)
    gradient = tf.constant(1.0)

    def update() -> None:
        if method == "apply":
            optimizer.apply([gradient], [w])
        else:
            optimizer.apply_gradients([(gradient, w)])

    with adaptations.plain_apply_refused() as reduced:
        with reduced():
            update()
        with pytest.raises(StepError) as caught:
            update()

    assert str(caught.value) == (
        f"The step calls {type(optimizer).__name__}.apply itself, with several replicas.\n"
        "  expected: self.minimize(...) or self.apply(...), which average over replicas\n"
        "  received: optimizer.apply or optimizer.apply_gradients\n"
        "  do: write self.apply(gradients, variables, optimizer)"
    )
    assert int(optimizer.iterations.numpy()) == 1


# --- accumulation ---------------------------------------------------------------------------------


def test_an_update_without_accumulation_is_made_at_once():
    optimizer = SGD(1.0, gradient_accumulation_steps=2)
    w = one_variable(optimizer)

    with adaptations.without_accumulation(optimizer):
        optimizer.apply([tf.constant(1.0)], [w])

    assert float(w.numpy()) == -1.0
    assert optimizer.gradient_accumulation_steps == 2


def test_iterations_go_on_counting_updates_and_not_calls():
    optimizer, other = SGD(1.0, gradient_accumulation_steps=3), SGD(1.0)
    w, v = one_variable(optimizer), one_variable(other)
    for _ in range(3):
        optimizer.apply([tf.constant(1.0)], [w])
        other.apply([tf.constant(1.0)], [v])

    with adaptations.without_accumulation(optimizer):
        assert int(optimizer.iterations) == 1
        assert int(other.iterations.numpy()) == 3


def test_the_setting_comes_back_after_an_error():
    optimizer = SGD(1.0, gradient_accumulation_steps=2)

    with pytest.raises(ZeroDivisionError), adaptations.without_accumulation(optimizer):
        _ = 1 / 0

    assert optimizer.gradient_accumulation_steps == 2


def test_an_optimizer_that_does_not_accumulate_is_left_alone():
    with adaptations.without_accumulation(SGD(1.0)):
        assert ours() == set()


def test_accumulators_belong_to_the_variables_asked_for():
    optimizer = SGD(1.0, gradient_accumulation_steps=2)
    variables = [keras.Variable(np.zeros(n, "float32")) for n in (1, 2, 3)]
    optimizer.build(variables)
    optimizer.apply([tf.fill((n,), float(n)) for n in (1, 2, 3)], variables)

    third, first = adaptations.accumulators(optimizer, [variables[2], variables[0]])

    assert isinstance(first, tf.Variable)
    np.testing.assert_array_equal(third, [3.0, 3.0, 3.0])
    np.testing.assert_array_equal(first, [1.0])


def test_the_counter_counts_calls_where_iterations_count_updates():
    optimizer = SGD(1.0, gradient_accumulation_steps=2)
    w = one_variable(optimizer)
    for _ in range(3):
        optimizer.apply([tf.constant(1.0)], [w])

    assert int(adaptations.update_counter(optimizer)) == 3
    assert int(optimizer.iterations) == 1


# --- model losses ---------------------------------------------------------------------------------


def test_a_layer_asked_for_its_losses_is_noted_with_all_it_holds():
    first, second = (keras.layers.Dense(1, kernel_regularizer="l2") for _ in range(2))
    model, other = keras.Sequential([first, second]), keras.layers.Dense(1)
    model.build((None, 1))

    with adaptations.watching_losses() as was_asked:
        assert not was_asked(model)
        assert len(second.losses) == 1
        assert [was_asked(layer) for layer in (model, first, second)] == [False, False, True]
        assert len(model.losses) == 2
        assert [was_asked(layer) for layer in (model, first, other)] == [True, True, False]


def test_outer_calls_of_layers_and_losses_are_noted_with_what_they_were_given():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    x = tf.ones((2, 1))
    with adaptations.watching_calls() as called:
        y = model(x, training=True)
        model(x)
        keras.losses.MeanSquaredError()(x, y)
        keras.losses.mean_absolute_error(x, y)

    assert called.layers == [(model, True), (model, None)]
    assert [name for name, *_ in called.losses] == ["MeanSquaredError", "mean_absolute_error"]
    assert all(first is x and second is y for _, first, second in called.losses)


# --- compiled models ------------------------------------------------------------------------------


def test_a_compiled_model_is_built_with_its_optimizer_and_metrics_and_nothing_is_trained():
    model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile("adam", "mse", metrics=["mae"])

    adaptations.build_compiled_model(
        CompiledModel(model), (tf.TensorSpec((None, 3)), tf.TensorSpec((None, 1)))
    )

    assert model.built
    assert model.optimizer.built
    assert len(model.optimizer.variables) == 6  # iterations, rate, two moments of kernel and bias
    assert (
        "mean_absolute_error" in model.get_metrics_result() or "mae" in model.get_metrics_result()
    )
    np.testing.assert_array_equal(model.get_weights()[0], np.ones((3, 1)))
    assert int(model.optimizer.iterations.numpy()) == 0


DRAWS = {
    "uniform": lambda seed: keras.random.uniform((64,), seed=seed),
    "normal": lambda seed: keras.random.normal((64,), seed=seed),
    "truncated normal": lambda seed: keras.random.truncated_normal((64,), seed=seed),
    "integers": lambda seed: keras.random.randint((64,), 0, 1000, seed=seed),
    "categorical": lambda seed: keras.random.categorical(tf.zeros((8, 5)), 4, seed=seed),
    "shuffle": lambda seed: keras.random.shuffle(tf.range(64), seed=seed),
    "dropout": lambda seed: keras.random.dropout(tf.ones(64), 0.5, seed=seed),
    "gaussian noise": lambda seed: _layer(keras.layers.GaussianNoise, 0.5)(tf.ones((8, 8))),
    "augmentation, flip": lambda seed: _layer(keras.layers.RandomFlip)(IMAGES),
    "augmentation, brightness": lambda seed: _layer(keras.layers.RandomBrightness, 0.4)(IMAGES),
    "augmentation, contrast": lambda seed: _layer(keras.layers.RandomContrast, 0.4)(IMAGES),
}
IMAGES = np.linspace(0, 255, 8 * 6 * 6 * 3).reshape(8, 6, 6, 3).astype("float32")


def _layer(kind, *settings):
    """A random layer in training, made before anything is traced."""
    if (kind, settings) not in _LAYERS:
        with tf.init_scope():
            _LAYERS[kind, settings] = kind(*settings, seed=7)
    layer = _LAYERS[kind, settings]
    return lambda inputs: layer(inputs, training=True)


_LAYERS = {}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
def test_random_numbers_for_xla_are_the_ones_that_xla_draws_anyway(draw):
    def drawn(scope):
        seed = keras.random.SeedGenerator(3)
        _LAYERS.clear()

        def function():
            with scope():
                return draw(seed)

        return tf.function(function, jit_compile=True, autograph=False)().numpy()

    adapted, plain = drawn(adaptations.random_numbers_for_xla), drawn(contextlib.nullcontext)
    np.testing.assert_array_equal(adapted, plain)


def test_random_numbers_for_xla_ask_for_philox_by_name_and_only_in_scope():
    def algorithms():
        seed = keras.random.SeedGenerator(3)
        function = tf.function(lambda: keras.random.uniform((4,), seed=seed), autograph=False)
        graph = function.get_concrete_function().graph
        return {op.type for op in graph.get_operations()}

    with adaptations.random_numbers_for_xla():
        named = algorithms()
    open_choice = algorithms()
    # The operation that chooses by device, and whose choice XLA makes slowly.
    assert "StatelessRandomGetKeyCounter" not in named
    assert "StatelessRandomGetKeyCounter" in open_choice


def test_a_tensorflow_that_has_moved_the_function_is_left_alone(monkeypatch):
    monkeypatch.delattr(adaptations.random_ops_util, "get_key_counter_alg")
    with adaptations.random_numbers_for_xla():
        assert not hasattr(adaptations.random_ops_util, "get_key_counter_alg")
    note = adaptations.slow_random_numbers()
    assert note is not None
    assert note.startswith("random numbers inside XLA are drawn slowly: TensorFlow")

    dense = keras.layers.Dense(1, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((4,)), dense])
    trainer = loopwright.Trainer(loopwright.Supervised(model, "mse", "sgd"), plan="fused")
    trainer.fit(np.zeros((8, 4)), np.zeros((8, 1)), shuffle=False, verbose=0)
    assert trainer.plan_history.notes == (note,)


def test_two_strategies_in_one_process_do_not_meet_in_their_collectives():
    def summed(strategy: Any, size: int) -> Any:
        @tf.function
        def every() -> Any:
            return strategy.reduce("SUM", strategy.run(lambda: tf.ones([size])), axis=None)

        return every().numpy().tolist()

    one, other = (adaptations.mirrored_strategy(["CPU:0", "CPU:1"]) for _ in range(2))
    assert summed(one, 3) == [2.0] * 3
    assert summed(other, 5) == [2.0] * 5
    assert summed(one, 4) == [2.0] * 4
