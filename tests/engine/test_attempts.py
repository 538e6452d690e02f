"""Steps that are skipped by running those before them again: from a copy of the state for 64."""

import functools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.engine.test_on_nan import BATCH, Normalised, arrays, fit
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


def skipped_in(told: list[Any]) -> list[int]:
    return [event.step - 1 for event in told if isinstance(event, lw.BatchSkipped)]


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
@pytest.mark.parametrize("bad", [(FIRST,), (LAST,), (LAST, LAST + 1), SEVERAL], ids=str)
def test_skipped_steps_leave_no_trace_wherever_they_are_in_an_attempt(
    bad: tuple[int, ...], plan: Any
):
    told: list[Any] = []
    trainer = lw.Trainer(Normalised(), plan=plan, on_nan="skip", sinks=[told.append])
    history = fit(trainer, with_bad(bad), epochs=1)
    assert skipped_in(told) == list(bad)
    bits, expected = without(plan, bad)
    assert digest(trainer.task) == bits
    assert history.history["loss"] == expected["loss"]
    assert history.history["error"] == expected["error"]


@pytest.mark.parametrize("plan", PLANS)
def test_a_run_split_into_other_calls_has_the_same_bits(plan: Any, tmp_path: Any):
    told: list[Any] = []
    trainer = lw.Trainer(
        Normalised(), plan=plan, on_nan="skip", run_dir=tmp_path, sinks=[told.append]
    )
    fit(trainer, with_bad(SEVERAL), epochs=1, save_every="7 steps")
    assert skipped_in(told) == list(SEVERAL)
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

    told: list[Any] = []
    trainer = lw.Trainer(Mended(), plan=plan, on_nan="skip", sinks=[told.append])
    fit(trainer, with_bad(SEVERAL), epochs=1)
    assert skipped_in(told) == list(SEVERAL)
    assert int(trainer.task.optimizer.iterations) == STEPS - len(SEVERAL)


def test_huge_numbers_are_finite():
    class Huge(Normalised):
        def __init__(self):
            super().__init__()
            self.sentinel = tf.Variable(tf.fill([4], tf.float32.max), trainable=False)

        def train_step(self, batch):
            self.sentinel.assign(self.sentinel)
            return super().train_step(batch)

    told: list[Any] = []
    trainer = lw.Trainer(Huge(), plan="graph", on_nan="skip", sinks=[told.append])
    fit(trainer, with_bad([LAST]), epochs=1)
    assert skipped_in(told) == [LAST]


def test_a_step_that_calls_python_runs_once_for_each_batch():
    calls: list[int] = []

    class Calling(Normalised):
        def train_step(self, batch):
            tf.numpy_function(lambda: calls.append(1) or np.float32(0), [], tf.float32)
            return super().train_step(batch)

    told: list[Any] = []
    trainer = lw.Trainer(Calling(), plan="graph", on_nan="skip", sinks=[told.append])
    fit(trainer, with_bad([20]), epochs=1)
    assert skipped_in(told) == [20]
    assert len(calls) == STEPS


@pytest.mark.parametrize("plan", [lw.Plan("graph", "python"), "graph"])
def test_a_compiled_model_reports_its_last_good_step_though_the_last_one_was_skipped(plan: Any):
    class Reporting(keras.Sequential):
        def train_step(self, *data):
            return {"twice": 2 * super().train_step(*data)["loss"]}

    def trained(bad: Sequence[int], rows: Sequence[int]) -> tuple[list[Any], Any, list[int]]:
        keras.utils.set_random_seed(1)
        model = Reporting([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("adam", "mse", metrics=["mae"])
        told: list[Any] = []
        trainer = lw.Trainer(model, plan=plan, on_nan="skip", sinks=[told.append])
        x, y = with_bad(bad)
        history = fit(trainer, (np.delete(x, rows, 0), np.delete(y, rows, 0)), epochs=1)
        return model.get_weights(), history.history, skipped_in(told)

    weights, history, skipped = trained(SEVERAL, [])
    rows = [step * BATCH + row for step in SEVERAL for row in range(BATCH)]
    expected, expected_history, _ = trained([], rows)
    assert skipped == list(SEVERAL)
    for got, wanted in zip(weights, expected, strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert history == expected_history


def test_a_step_that_is_skipped_inside_a_chunk_loses_none_of_its_batches():
    told: list[Any] = []
    trainer = lw.Trainer(Normalised(), plan="fused", on_nan="skip", sinks=[told.append])
    fit(trainer, tf.data.Dataset.from_tensor_slices(with_bad(SEVERAL)).batch(BATCH), epochs=1)
    assert skipped_in(told) == list(SEVERAL)
    assert digest(trainer.task) == without("fused", SEVERAL)[0]
