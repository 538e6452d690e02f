"""Steps that are skipped by running those before them again: from a copy of the state for 64."""

import functools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.engine.test_on_nan import BATCH, Normalised, arrays, fit, stream, trained
from tests.resume.program import digest

import loopwright as lw
from loopwright.engine.nan import MOST_STEPS

pytestmark = pytest.mark.kernels

STEPS = 100
PLANS = ["graph", "fused"]
FIRST, LAST = 0, MOST_STEPS - 1
"""Of the first attempt."""
SEVERAL = (0, 3, 4, 20, 84, 85, 99)
"""The first step; one and the one after it; the last of an attempt and the first of the next; the
last step of all."""


def with_bad(bad: Sequence[int]) -> tuple[Any, Any]:
    x, y = arrays(bad=None, rows=STEPS * BATCH)
    for step in bad:
        x[step * BATCH + 5, 1] = np.nan
    return x, y


def steps_of(skipped: list[lw.BatchSkipped]) -> list[int]:
    return [event.step - 1 for event in skipped]


@functools.cache
def without(plan: Any, bad: tuple[int, ...]) -> tuple[str, Any]:
    """The bits and the history of a run on data that has no bad batches."""
    x, y = arrays(bad=None, rows=STEPS * BATCH)
    rows = [step * BATCH + row for step in bad for row in range(BATCH)]
    trainer = lw.Trainer(Normalised(), plan=plan, on_nan="skip")
    history = fit(trainer, (np.delete(x, rows, 0), np.delete(y, rows, 0)), epochs=1)
    trainer.task.step_counter.assign_add(len(bad))
    return digest(trainer.task), history.history


@pytest.mark.parametrize("plan", [*PLANS, "xla"])
@pytest.mark.parametrize("bad", [SEVERAL, (FIRST,), (LAST,), (LAST, LAST + 1)], ids=str)
def test_skipped_steps_leave_no_trace_wherever_they_are_in_an_attempt(
    bad: tuple[int, ...], plan: Any
):
    trainer, skipped, history = trained(Normalised(), with_bad(bad), plan=plan)
    assert steps_of(skipped) == list(bad)
    bits, expected = without(plan, bad)
    assert digest(trainer.task) == bits
    assert history.history["loss"] == expected["loss"]
    assert history.history["error"] == expected["error"]


@pytest.mark.parametrize("plan", PLANS)
def test_a_run_split_into_other_calls_has_the_same_bits(plan: Any, tmp_path: Any):
    data, every = with_bad(SEVERAL), "7 steps"
    trainer, skipped, _ = trained(Normalised(), data, run_dir=tmp_path, plan=plan, save_every=every)
    assert steps_of(skipped) == list(SEVERAL)
    assert digest(trainer.task) == without(plan, SEVERAL)[0]


@pytest.mark.parametrize("plan", PLANS)
def test_a_state_that_the_next_step_would_mend_is_found_though_each_loss_is_finite(plan: Any):
    class Mended(Normalised):
        """What is not finite is only in a variable, which each step sets anew."""

        def __init__(self):
            super().__init__()
            self.largest = tf.Variable(0.0, trainable=False)

        def train_step(self, batch):
            x, y = batch
            self.largest.assign(tf.reduce_sum(x))
            return super().train_step((tf.where(tf.math.is_finite(x), x, 0.0), y))

    trainer, skipped, _ = trained(Mended(), with_bad(SEVERAL), plan=plan)
    assert steps_of(skipped) == list(SEVERAL)
    assert int(trainer.task.optimizer.iterations) == STEPS - len(SEVERAL)


def test_huge_numbers_are_finite():
    class Huge(Normalised):
        def __init__(self):
            super().__init__()
            self.sentinel = tf.Variable(tf.fill([4], tf.float32.max), trainable=False)

        def train_step(self, batch):
            self.sentinel.assign(self.sentinel)
            return super().train_step(batch)

    _, skipped, _ = trained(Huge(), with_bad([LAST]))
    assert steps_of(skipped) == [LAST]


def test_a_step_that_calls_python_runs_once_for_each_batch():
    calls: list[int] = []

    class Calling(Normalised):
        def train_step(self, batch):
            tf.numpy_function(lambda: calls.append(1) or np.float32(0), [], tf.float32)
            return super().train_step(batch)

    _, skipped, _ = trained(Calling(), with_bad([20]))
    assert steps_of(skipped) == [20]
    assert len(calls) == STEPS


@pytest.mark.parametrize("plan", [lw.Plan("graph", "python"), "graph"])
def test_a_compiled_model_reports_its_last_good_step_though_the_last_one_was_skipped(plan: Any):
    class Reporting(keras.Sequential):
        def train_step(self, *data):
            return {"twice": 2 * super().train_step(*data)["loss"]}

    def run(bad: Sequence[int], rows: Sequence[int]) -> tuple[list[Any], Any, list[int]]:
        keras.utils.set_random_seed(1)
        model = Reporting([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("adam", "mse", metrics=["mae"])
        data = tuple(np.delete(part, rows, 0) for part in with_bad(bad))
        _, skipped, history = trained(model, data, plan=plan)
        return model.get_weights(), history.history, steps_of(skipped)

    weights, history, skipped = run(SEVERAL, [])
    rows = [step * BATCH + row for step in SEVERAL for row in range(BATCH)]
    expected, expected_history, _ = run([], rows)
    assert skipped == list(SEVERAL)
    for got, wanted in zip(weights, expected, strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert history == expected_history


def test_a_step_that_is_skipped_inside_a_chunk_loses_none_of_its_batches():
    trainer, skipped, _ = trained(Normalised(), stream(with_bad(SEVERAL)), plan="fused")
    assert steps_of(skipped) == list(SEVERAL)
    assert digest(trainer.task) == without("fused", SEVERAL)[0]
