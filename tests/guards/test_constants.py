"""Constants of a traced step: values that Python computed once, and fixed arrays."""

import random
import time
import warnings
from pathlib import Path
from random import uniform
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.guards.changed_step import Alone, Regression
from tests.guards.regression_step import RNG, X, Y, fit, refused

import loopwright as lw


def line_of(marker: str) -> str:
    lines = Path(__file__).read_text().splitlines()
    number, code = next((n, t) for n, t in enumerate(lines, 1) if t.endswith(f"  # {marker}"))
    return f'file "{Path(__file__).name}", line {number}: {code.strip()}'


# --- values that Python computes while the step is traced --------------------------------------


def random_batch(x, y, size=8):
    rows = np.random.randint(len(x), size=size)  # the draw
    return x[rows], y[rows]


class Drawn(Regression):
    def train_step(self):  # pyright: ignore[reportIncompatibleMethodOverride]
        x, y = random_batch(X, Y)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - self.model(x, training=True)))
        self.minimize(loss, self.model, self.optimizer, tape)
        return {"loss": loss}


@pytest.mark.parametrize("plan", ["auto", "graph", "fused"])
def test_a_batch_drawn_by_numpy_inside_the_step_is_refused_by_name_and_line(plan: str):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lw.StepWarning)
        text = refused(Drawn(), None, plan=plan)
    assert text.startswith("Drawn.train_step uses a value that Python computed while the step was")
    assert f"drawn by np.random.randint ({line_of('the draw')})" in text
    assert "float32 (8, 4)" in text
    assert "keras.random" in text


def noise(task, x, y):
    return x + np.random.normal(size=(1, 4)), y  # the noise


def scale(task, x, y):
    return x * random.random(), y  # the scale


def clock(task, x, y):
    return x + (time.time() % 1.0), y  # the clock


def shift(task, x, y):
    return tf.roll(x, int(RNG.integers(1000)), axis=1), y  # the shift


def counter(task, x, y):
    return x * task.traced, y  # the counter


def branch(task, x, y):
    task.heads = not getattr(task, "heads", False)
    return (tf.abs(x) if task.heads else x), y


@pytest.mark.parametrize("plan", ["graph", "fused"])
@pytest.mark.parametrize(
    ("change", "drawn", "marker"),
    [
        (noise, "np.random.normal", "the noise"),
        (scale, "random.random", "the scale"),
        (clock, "time.time", "the clock"),
        (counter, "", "the counter"),
    ],
    ids=["noise", "scale", "clock", "counter"],
)
def test_a_value_that_differs_between_two_traces_is_refused_with_its_line(
    change: Any, drawn: str, marker: str, plan: str
):
    text = refused(Regression(change), plan=plan)
    assert f"({line_of(marker)})" in text.splitlines()[0]
    assert f"drawn by {drawn} (" in text if drawn else "drawn by" not in text


@pytest.mark.parametrize("change", [shift, branch])
def test_an_index_and_a_branch_that_differ_between_two_traces_are_refused(change: Any):
    assert "two traces of the step gave" in refused(Regression(change))


def test_a_value_drawn_inside_a_branch_or_a_loop_is_refused():
    def inside(task, x, y):
        for _ in tf.range(3):
            if tf.reduce_sum(x) > 0:
                x += np.random.normal(size=(1, 4))
        return x, y

    assert "np.random.normal" in refused(Regression(inside))


def test_a_value_drawn_in_a_test_step_is_refused():
    class Scored(Regression):
        def test_step(self, batch):
            x, y = noise(self, *batch)
            return super().test_step((x, y))

    with pytest.raises(lw.StepError, match=r"^Scored.test_step uses a value that Python computed"):
        lw.Trainer(Scored(), plan="graph").evaluate(X, Y)


def test_two_replicas_refuse_a_value_that_differs_between_two_traces():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    trainer = lw.Trainer(lambda: Regression(noise), strategy=strategy, plan="graph")
    with pytest.raises(lw.StepError, match=r"np\.random\.normal"):
        trainer.fit(X, Y, batch_size=8, verbose=0)


def test_an_eager_step_may_draw_with_numpy_but_not_in_a_run_directory(tmp_path: Path):
    def noise(task, x, y):
        if tf.reduce_sum(x) > 1e9:  # AutoGraph converts it while it is traced
            x *= 0.0
        return x + np.random.normal(size=(1, 4)), y

    fit(Regression(noise), plan="eager")

    text = refused(Regression(noise), plan="eager", run_dir=tmp_path / "run")
    assert "uses a value that Python computes again in each step" in text
    assert "or train without run_dir" in text


def test_values_that_stay_the_same_are_traced_as_often_as_before():
    weights = np.linspace(0.5, 2.0, 4)

    def right(task, x, y):
        x = x * weights + keras.random.normal((4,), seed=task.seed)
        if tf.reduce_sum(x) > 100:
            x *= 0.5
        return x, y

    task = Regression(right)
    fit(task)
    assert task.traced == 2  # one to build, one to run
    task = Regression(right)
    fit(task, plan="fused")
    assert task.traced == 2


# --- draws whose effect two traces need not show ------------------------------------------------


def rarely(task, x, y):
    return (x * 2 if np.random.rand() < 1e-9 else x), y  # the rare draw


def rarely_by_random(task, x, y):
    return (x * 2 if uniform(0, 1) < 1e-9 else x), y  # the rare uniform


def rarely_by_the_clock(task, x, y):
    return (x * 2 if time.time() < 5 else x), y  # the rare clock


class Holding(Regression):
    """Draws in a method, from a generator that it holds."""

    def __init__(self):
        super().__init__()
        self.rng = np.random.default_rng(0)

    def train_step(self, batch):
        return super().train_step(self.doubled(*batch))

    def doubled(self, x, y):
        rng = self.rng
        return (x * 2 if rng.random() < 1e-9 else x), y  # the rare held


def drawing_loss() -> lw.Task:
    def loss(y, p):
        return tf.reduce_mean(tf.square(y - p)) * (2.0 if np.random.rand() < 1e-9 else 1.0)  # loss

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    return lw.Supervised(model, loss, "sgd")


@pytest.mark.parametrize(
    ("task", "drawn", "marker"),
    [
        (lambda: Regression(rarely), "np.random.rand", "the rare draw"),
        (lambda: Regression(rarely_by_random), "uniform", "the rare uniform"),
        (Holding, "rng.random", "the rare held"),
        (lambda: Regression(rarely_by_the_clock), "time.time", "the rare clock"),
        (drawing_loss, "np.random.rand", "loss"),
    ],
    ids=["np.random", "random", "held", "clock", "loss"],
)
def test_a_draw_is_refused_whatever_it_gives(task: Any, drawn: str, marker: str):
    text = refused(task())
    assert f"({line_of(marker)})" in text.splitlines()[0]
    assert f"  received: drawn by {drawn} ({line_of(marker)})\n" in text


def test_a_draw_in_a_layer_of_a_keras_model_is_refused():
    class Jitter(keras.layers.Layer):
        def call(self, x):
            return x * 2 if np.random.rand() < 1e-9 else x

    class Extended(keras.Sequential):
        def train_step(self, data):
            return super().train_step(data)

    for kind in (keras.Sequential, Extended):
        model = kind([keras.Input((4,)), Jitter(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        with pytest.raises(lw.StepError, match=r"drawn by np\.random\.rand \("):
            lw.Trainer(model, plan="graph").fit(X, Y, verbose=0)


def test_draws_that_the_trace_does_not_make_are_no_mistake():
    def rows(count):  # the step has a method of this name, and calls that
        return np.random.randint(16, size=count)

    class Careful(Regression):
        augments = False

        def rows(self, x):
            return x

        def train_step(self, batch):
            x, y = batch
            if self.augments:
                x = x + np.random.normal(size=(1, 4)) + time.time()
            if tf.executing_eagerly():
                print(time.perf_counter())
            noise = tf.numpy_function(np.random.rand, [], tf.float64)
            x = self.rows(x) + 0.0 * tf.cast(tf.reshape(noise, []), tf.float32)
            return super().train_step((x, y))

    assert len(rows(3)) == 3
    fit(Careful())


# --- arrays that do not change ------------------------------------------------------------------


def warned(task: lw.Task, **options: Any) -> str:
    with pytest.warns(lw.StepWarning) as caught:
        fit(task, None, **options)
    assert int(task.step) == 4
    told = [each.message for each in caught if isinstance(each.message, lw.LoopwrightWarning)]
    (text,) = set(map(str, told))
    return text


def test_a_fixed_batch_that_was_captured_is_warned_of():
    x, y = tf.constant(np.tile(X, (20, 1))), tf.constant(np.tile(Y, (20, 1)))
    assert "float32 (320, 4)" in warned(Alone(lambda *_: (x, y)))


def test_fixed_points_that_are_meant_can_be_silenced():
    fit(Alone(), None, silence=["baked-in-array"])  # a warning would be an error here


def test_rows_chosen_in_each_step_are_no_fixed_array():
    x, y = tf.constant(np.tile(X, (20, 1))), tf.constant(np.tile(Y, (20, 1)))

    def rows(task, *_):
        chosen = keras.random.randint((8,), 0, 320, seed=task.seed)
        return tf.gather(x, chosen), tf.gather(y, chosen)

    def in_a_loop(task, *_):
        chosen_x, chosen_y = rows(task)
        for _ in tf.range(2):
            more_x, more_y = rows(task)
            chosen_x, chosen_y = chosen_x + more_x, chosen_y + more_y
        return chosen_x, chosen_y

    fit(Alone(rows), None)
    fit(Alone(in_a_loop), None)
