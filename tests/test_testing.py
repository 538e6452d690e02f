"""The assertion for other people's tests: passes for what resumes, fails for what does not."""

from typing import Any

import pytest
import tensorflow as tf
from tests.resume.program import Noisy, arrays, stream

import loopwright as lw

OPTIONS: Any = {"epochs": 2, "batch_size": 8}


def test_a_task_that_resumes_exactly_passes():
    lw.testing.assert_resumes_exactly(
        lambda run_dir: lw.Trainer(Noisy(), run_dir=run_dir), *arrays(), **OPTIONS
    )


def test_a_stream_that_is_used_by_every_attempt_passes():
    lw.testing.assert_resumes_exactly(
        lambda run_dir: lw.Trainer(Noisy(), run_dir=run_dir, plan="graph"),
        stream(),
        epochs=3,
        break_at=[13, 20],
    )


def test_a_task_with_a_state_outside_fails_and_says_where():
    calls = iter(range(1000))

    class Counting(Noisy):
        def __init__(self):
            super().__init__()
            self.factor = tf.constant(1.0 + next(calls))  # another one in each process

        def train_step(self, batch):
            x, y = batch
            return super().train_step((x, y * self.factor))

    with pytest.raises(
        AssertionError, match=r"crashed after step \d+ and resumed ended with different bits"
    ):
        lw.testing.assert_resumes_exactly(
            lambda run_dir: lw.Trainer(Counting(), run_dir=run_dir, plan="graph"),
            *arrays(),
            break_at=[7],
            **OPTIONS,
        )


def test_breaking_down_after_the_end_is_refused():
    with pytest.raises(lw.ConfigurationError, match="ended before the step in break_at"):
        lw.testing.assert_resumes_exactly(
            lambda run_dir: lw.Trainer(Noisy(), run_dir=run_dir, plan="graph"),
            *arrays(),
            break_at=[100],
            **OPTIONS,
        )
