"""Random numbers by Threefry: where they are drawn, and that they are random."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from loopwright.compat import xla_rewrites

pytestmark = pytest.mark.kernels

PHILOX, THREEFRY = 1, 2
STEPS, SIZE = 64, 4096


# --- where ----------------------------------------------------------------------------------------


def algorithms(draw: Callable[[Any], Any]) -> set[int]:
    """Which algorithms a step traced for XLA asks for, in its branches and functions too."""
    seed = tf.Variable([3, 5])

    def step() -> Any:
        with xla_rewrites.applied(("threefry",)):
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


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_every_draw_that_xla_can_make_can_be_made_with_the_rewrite(dtype: str):
    seed, shape = keras.random.SeedGenerator(3), (7, 3)

    def step() -> list[Any]:
        with xla_rewrites.applied(("threefry",)):
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


# --- their quality: seeds are fixed, so a bound is passed or not, the same in every run -----------


@pytest.fixture(scope="module")
def drawn() -> dict[str, np.ndarray]:
    """What two generators of Keras draw in the steps of a loop inside XLA: a row for each step."""
    generators = [keras.random.SeedGenerator(7), keras.random.SeedGenerator(8)]

    def draws(seed: Any) -> list[Any]:
        return [
            keras.random.normal((SIZE,), seed=seed),
            keras.random.uniform((SIZE,), seed=seed),
            keras.random.uniform((SIZE,), dtype="float64", seed=seed),
            keras.random.randint((SIZE,), 0, 1000, seed=seed),
            keras.random.dropout(tf.ones(SIZE), 0.5, seed=seed),
        ]

    def loop() -> Any:
        def body(done: Any, arrays: Any) -> Any:
            with xla_rewrites.applied(("threefry",)):
                rows = zip(*map(draws, generators), strict=True)
                stacked = [tf.stack(pair) for pair in rows]
            pairs = zip(arrays, stacked, strict=True)
            return done + 1, [array.write(done, row) for array, row in pairs]

        kinds = (tf.float32, tf.float32, tf.float64, tf.int32, tf.float32)
        arrays = [tf.TensorArray(kind, STEPS, element_shape=(2, SIZE)) for kind in kinds]
        _, arrays = tf.while_loop(lambda done, _: done < STEPS, body, (0, arrays))
        return [array.stack() for array in arrays]

    compiled: Any = tf.function(loop, autograph=False, jit_compile=True)
    names = ("normal", "uniform", "double", "integers", "dropout")
    rows = [np.array(value).reshape(STEPS * 2, SIZE) for value in compiled()]
    return dict(zip(names, rows, strict=True))


def chi_square(places: np.ndarray, bins: int) -> float:
    """How many standard deviations the counts are from even ones."""
    counts = np.bincount(places.ravel(), minlength=bins)
    assert counts.size == bins
    expected = places.size / bins
    statistic = float(((counts - expected) ** 2).sum() / expected)
    return (statistic - (bins - 1)) / np.sqrt(2 * (bins - 1))


def test_normal_draws_have_the_moments_of_the_distribution(drawn: dict[str, np.ndarray]):
    values = drawn["normal"].astype("float64").ravel()
    deviations = {
        "mean": values.mean() / np.sqrt(1 / values.size),
        "variance": ((values**2).mean() - 1) / np.sqrt(2 / values.size),
        "skew": (values**3).mean() / np.sqrt(15 / values.size),
        "kurtosis": ((values**4).mean() - 3) / np.sqrt(96 / values.size),
    }
    assert {name: z for name, z in deviations.items() if abs(z) > 4} == {}


def test_uniform_draws_and_integers_are_even_to_their_lowest_bits(drawn: dict[str, np.ndarray]):
    single, double = drawn["uniform"], drawn["double"]
    deviations = {
        "uniform": chi_square((single * 256).astype(int), 256),
        "lowest bits": chi_square((single * 2**23).astype(int) & 255, 256),
        "double": chi_square((double * 256).astype(int), 256),
        "lowest bits of double": chi_square((double * 2**52).astype("int64") & 255, 256),
        "integers": chi_square(drawn["integers"], 1000),
        "dropout": chi_square((drawn["dropout"] > 0).astype(int), 2),
        "pairs": chi_square(
            (single[:, ::2] * 32).astype(int) * 32 + (single[:, 1::2] * 32).astype(int), 1024
        ),
        "halves": chi_square(
            (single[:, : SIZE // 2] * 32).astype(int) * 32
            + (single[:, SIZE // 2 :] * 32).astype(int),
            1024,
        ),
    }
    assert {name: z for name, z in deviations.items() if abs(z) > 4} == {}


@pytest.mark.parametrize("kind", ["normal", "uniform", "double", "integers", "dropout"])
def test_steps_and_seeds_draw_independently(kind: str, drawn: dict[str, np.ndarray]):
    """Rows are steps of two generators, whose seeds are neighbours, as Keras counts them up."""
    rows = drawn[kind].astype("float64")
    rows = (rows - rows.mean()) / rows.std()
    between = (rows @ rows.T / np.sqrt(SIZE))[np.triu_indices(len(rows), 1)]
    assert np.abs(between).max() < 5.5, "8,128 pairs: above 5.5 once in 3,000 sets of draws"
    spread = np.sqrt(2 / between.size)
    assert abs((between**2).mean() - 1) < 4 * spread
    within = [(rows[:, lag:] * rows[:, :-lag]).mean() for lag in (1, 2, 4, SIZE // 2)]
    assert np.abs(within).max() * np.sqrt(rows.size / 2) < 4
    means = rows.mean(axis=1) * np.sqrt(SIZE)
    assert abs((means**2).mean() - 1) < 4 * np.sqrt(2 / len(rows))


def test_no_step_and_no_seed_draws_what_another_has_drawn(drawn: dict[str, np.ndarray]):
    values = drawn["double"].ravel()
    assert np.unique(values).size == values.size
    masks = drawn["dropout"] > 0
    assert np.unique(masks, axis=0).shape == masks.shape
