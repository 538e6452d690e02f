"""Random numbers by Threefry: where they are drawn, and that steps and seeds draw apart."""

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from loopwright.rewrites import scope

pytestmark = pytest.mark.kernels

PHILOX, THREEFRY = 1, 2
STEPS, SIZE = 64, 4096


def algorithms(draw: Callable[[Any], Any]) -> set[int]:
    """Which algorithms a step traced for XLA asks for, in its branches and functions too."""
    seed = tf.Variable([3, 5])

    def step() -> Any:
        with scope.applied(("threefry",)):
            return draw(seed.read_value())

    concrete: Any = tf.function(step, autograph=False).get_concrete_function()
    definition = concrete.graph.as_graph_def()
    found = set[int]()
    for nodes in (definition.node, *(each.node_def for each in definition.library.function)):
        constants = {node.name: node for node in nodes if node.op == "Const"}
        for node in nodes:
            if node.op.startswith("StatelessRandom") and node.op.endswith("V2"):
                name = node.input[3].partition(":")[0]
                found.add(int(tf.make_ndarray(constants[name].attr["value"].tensor)))
    return found


def uniform(seed: Any, **options: Any) -> Any:
    return tf.random.stateless_uniform([4], seed, **options)


def run_at_once(seed: Any) -> Any:
    """As a layer does that makes its weights in the step."""
    with tf.init_scope():
        uniform([1, 2])
        uniform(tf.constant([1, 2]))
    return seed


@pytest.mark.parametrize(
    ("draw", "expected"),
    [
        (uniform, {THREEFRY}),
        (lambda seed: tf.cond(seed[0] > 0, lambda: uniform(seed), lambda: tf.zeros(4)), {THREEFRY}),
        (
            lambda seed: tf.map_fn(lambda i: uniform(seed + i), tf.range(3), tf.float32),
            {THREEFRY},
        ),
        # TensorFlow keeps this trace, and calls it without XLA too.
        (tf.function(uniform, autograph=False), {PHILOX}),
        (run_at_once, set()),
        (lambda seed: uniform(seed, alg="philox"), {PHILOX}),
        (lambda seed: uniform(tf.cast(seed, tf.int64)), {PHILOX}),
        (lambda seed: uniform([1, 2]), {PHILOX}),
    ],
    ids=["step", "branch", "loop", "function", "at once", "by name", "64 bits", "constant"],
)
def test_threefry_draws_only_what_runs_inside_xla_for_sure(
    draw: Callable[[Any], Any], expected: set[int]
):
    # Philox scrambles its seed by a draw of its own, which asks for Philox too.
    assert algorithms(draw) == expected


DRAWS = {
    "uniform": lambda seed: keras.random.uniform((64,), seed=seed),
    "normal": lambda seed: keras.random.normal((64,), seed=seed),
    "truncated normal": lambda seed: keras.random.truncated_normal((64,), seed=seed),
    "integers": lambda seed: keras.random.randint((64,), 0, 1000, seed=seed),
    "categorical": lambda seed: keras.random.categorical(tf.zeros((8, 5)), 4, seed=seed),
    "shuffle": lambda seed: keras.random.shuffle(tf.range(64), seed=seed),
    "dropout": lambda seed: keras.random.dropout(tf.ones(64), 0.5, seed=seed),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
def test_random_numbers_for_xla_are_the_ones_that_xla_draws_anyway(draw):
    def drawn(rewritten):
        seed = keras.random.SeedGenerator(3)

        def function():
            with rewritten():
                return draw(seed)

        return tf.function(function, jit_compile=True, autograph=False)().numpy()

    adapted, plain = drawn(lambda: scope.applied(())), drawn(contextlib.nullcontext)
    np.testing.assert_array_equal(adapted, plain)


def test_random_numbers_for_xla_ask_for_philox_by_name_and_only_in_scope():
    def algorithms():
        seed = keras.random.SeedGenerator(3)
        function = tf.function(lambda: keras.random.uniform((4,), seed=seed), autograph=False)
        graph = function.get_concrete_function().graph
        return {op.type for op in graph.get_operations()}

    with scope.applied(()):
        named = algorithms()
    open_choice = algorithms()
    # The operation that chooses by device, and whose choice XLA makes slowly.
    assert "StatelessRandomGetKeyCounter" not in named
    assert "StatelessRandomGetKeyCounter" in open_choice


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_every_draw_that_xla_can_make_can_be_made_with_the_rewrite(dtype: str):
    seed, shape = keras.random.SeedGenerator(3), (7, 3)

    def step() -> list[Any]:
        with scope.applied(("threefry",)):
            return [
                keras.random.uniform(shape, dtype=dtype, seed=seed),
                keras.random.normal(shape, dtype=dtype, seed=seed),
                keras.random.truncated_normal(shape, dtype=dtype, seed=seed),
                keras.random.dropout(tf.ones(shape, dtype), 0.5, seed=seed),
                keras.random.randint(shape, 0, 99, seed=seed),
                keras.random.randint(shape, 0, 99, dtype="int64", seed=seed),
                keras.random.shuffle(tf.range(21), seed=seed),
                keras.random.categorical(tf.zeros((7, 5)), 3, seed=seed),
                tf.random.split(tf.cast(seed.next(), tf.int32), 2),
                tf.random.fold_in(seed.next(), 7),
                # By a constant seed Philox's kernel draws it; XLA has none.
                tf.random.experimental.stateless_shuffle(tf.range(21), [1, 2]),
                tf.vectorized_map(lambda i: uniform(tf.stack([i, 5])), tf.range(3)),
            ]

    compiled: Any = tf.function(step, autograph=False, jit_compile=True)
    first, second = ([np.array(value, "float64") for value in compiled()] for _ in range(2))
    assert all(np.isfinite(value).all() for value in first)
    pairs = zip(first[:10], second, strict=False)
    assert not any(np.array_equal(one, other) for one, other in pairs), "each step draws anew"


def test_no_step_and_no_seed_draws_what_another_has_drawn():
    """Rows are steps of two generators, whose seeds are neighbours, as Keras counts them up."""
    generators = [keras.random.SeedGenerator(7), keras.random.SeedGenerator(8)]

    def loop() -> Any:
        def body(done: Any, array: Any) -> Any:
            with scope.applied(("threefry",)):
                draws = [keras.random.normal((SIZE,), seed=seed) for seed in generators]
            return done + 1, array.write(done, tf.stack(draws))

        array = tf.TensorArray(tf.float32, STEPS, element_shape=(2, SIZE))
        return tf.while_loop(lambda done, _: done < STEPS, body, (0, array))[1].stack()

    compiled: Any = tf.function(loop, autograph=False, jit_compile=True)
    rows = np.array(compiled(), "float64").reshape(STEPS * 2, SIZE)
    assert abs(rows.mean()) < 4 / np.sqrt(rows.size)
    assert abs(rows.var() - 1) < 4 * np.sqrt(2 / rows.size)
    between = (rows @ rows.T / np.sqrt(SIZE))[np.triu_indices(len(rows), 1)]
    assert np.abs(between).max() < 5.5, "8,128 pairs: above 5.5 once in 3,000 sets of draws"
