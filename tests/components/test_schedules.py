"""Rates over the steps of a training: cycles, one cycle, warmup before anything else."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import loopwright as lw
from loopwright import components

SCHEDULES = keras.optimizers.schedules


def rates(schedule: Any, steps: Any) -> list[float]:
    return [float(schedule(step)) for step in steps]


def test_three_kinds_of_cycles():
    tops = [10, 30, 50]
    made = {kind: components.Cyclic(1.0, 3.0, 10, kind, decay=0.9) for kind in KINDS}
    assert rates(made["triangular"], tops) == [3.0, 3.0, 3.0]
    assert rates(made["halved"], tops) == [3.0, 2.0, 1.5]
    expected = [1.0 + 2.0 * 0.9**step for step in tops]
    assert rates(made["decayed"], tops) == pytest.approx(expected, rel=1e-5)
    for schedule in made.values():
        assert rates(schedule, [0, 20, 40]) == [1.0, 1.0, 1.0]


KINDS: Any = ("triangular", "halved", "decayed")


def test_a_cycle_is_exact_after_more_steps_than_a_float32_can_count():
    schedule = components.Cyclic(0.0, 1.0, 4)
    step = 2**24 * 8 + 3
    assert rates(schedule, [step, tf.constant(step, tf.int64)]) == [0.75, 0.75]


def test_one_cycle_rises_to_the_top_and_falls_to_almost_nothing():
    schedule = components.OneCycle(2.0, 100, rise=0.25, start_divisor=10.0, end_divisor=100.0)
    assert rates(schedule, [0, 25, 100]) == pytest.approx([0.2, 2.0, 0.002], rel=1e-3)
    up, down = rates(schedule, range(26)), rates(schedule, range(25, 101))
    assert np.all(np.diff(up) > 0)
    assert np.all(np.diff(down) < 0)
    assert rates(schedule, [500]) == pytest.approx([0.002], rel=1e-3)


@pytest.mark.parametrize(
    "inner",
    [
        lambda: SCHEDULES.ExponentialDecay(0.5, 10, 0.9),
        lambda: SCHEDULES.PiecewiseConstantDecay([5, 9], [0.5, 0.2, 0.1]),
        lambda: components.Cyclic(0.5, 1.0, 3),
    ],
)
def test_warmup_leads_to_any_schedule_and_then_is_that_schedule(inner: Any):
    schedule = components.Warmup(inner(), steps=8, start=0.1)
    straight = [0.1 + (0.5 - 0.1) * step / 8 for step in range(9)]
    assert rates(schedule, range(9)) == pytest.approx(straight)
    assert rates(schedule, range(8, 30)) == rates(inner(), range(22))


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: components.Cyclic(0.1, 1.0, 0), "half_cycle_steps"),
        (lambda: components.Cyclic(0.1, 1.0, 5, "sawtooth"), "kind"),  # pyright: ignore
        (lambda: components.OneCycle(0.1, 1), "total_steps"),
        (lambda: components.OneCycle(0.1, 100, rise=1.0), "rise"),
        (lambda: components.Warmup(SCHEDULES.CosineDecay(1.0, 9), 0), "steps"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(make: Any, name: str):
    with pytest.raises(lw.ConfigurationError, match=f"Invalid {name} of a"):
        make()


@pytest.mark.parametrize("plan", ["graph", "fused"])
def test_an_optimizer_follows_a_schedule_through_every_step_of_the_compiled_loop(plan: str):
    class Falling(lw.Task):
        """A weight whose gradient is 1: it falls by the rate."""

        def __init__(self):
            super().__init__()
            self.weight = keras.Variable(0.0)
            rate = components.Warmup(components.Cyclic(0.5, 1.0, 2, "halved"), steps=4)
            self.optimizer = keras.optimizers.SGD(rate)

        def train_step(self):  # pyright: ignore[reportIncompatibleMethodOverride]
            self.apply([tf.ones(())], [self.weight], self.optimizer)
            return {"weight": tf.convert_to_tensor(self.weight)}

    task = Falling()
    lw.Trainer(task, plan=plan).fit(None, until="13 steps", verbose=0)
    warm = [0.5 * step / 4 for step in range(4)]
    cycles = [0.5, 0.75, 1.0, 0.75, 0.5, 0.625, 0.75, 0.625, 0.5]
    assert float(task.weight.numpy()) == pytest.approx(-sum(warm + cycles), rel=1e-6)
