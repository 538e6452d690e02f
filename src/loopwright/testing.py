"""Assertions for your own tests: a training that crashes must resume exactly.

def test_my_task_resumes_exactly():
    lw.testing.assert_resumes_exactly(
        lambda run_dir: lw.Trainer(MyTask(), run_dir=run_dir), x, y, epochs=3
    )
"""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

import keras
import tensorflow as tf

from loopwright.checkpoints import tensors
from loopwright.errors import ConfigurationError
from loopwright.exactness import Inexact, recorded_reasons
from loopwright.runs import RunRecord
from loopwright.task import variables
from loopwright.trainer import Trainer


def assert_resumes_exactly(
    make_trainer: Callable[[Path], Trainer],
    *data: Any,
    break_at: Sequence[int] | None = None,
    **fit_options: Any,
) -> None:
    """Fail unless a training that crashes and resumes ends with the same bits.

    `make_trainer(run_dir)` creates a new task and trainer, as a new process would. `data` and
    `fit_options` are passed to `fit`. One training per step in `break_at` crashes after that step;
    the default is three steps spread over the whole training. Weights, optimizers, seeds and
    metrics are compared bit by bit, and the history that `fit` returns. A training with
    `exact="best_effort"` that cannot be resumed exactly fails with the reasons.
    """
    with tempfile.TemporaryDirectory(prefix="loopwright-") as directory:

        def train(name: str, options: dict[str, Any], break_at: int | None = None) -> Trainer:
            trainer = make_trainer(Path(directory) / name)
            if plans is not None:
                trainer.follow(plans)  # measurements vary
            _train(trainer, data, options, break_at)
            return trainer

        plans = None
        whole = train("whole", fit_options)
        plans = whole.plan_history
        saved = RunRecord(Path(directory) / "whole").content
        if reasons := recorded_reasons(saved):
            raise AssertionError(str(Inexact(tuple(reasons))))
        steps = _steps(whole)
        options = {"save_every": f"{max(steps // 7, 1)} steps", **fit_options}
        for step in _spread(steps) if break_at is None else break_at:
            train(f"crashed-{step}", options, break_at=step)
            _compare(whole, train(f"crashed-{step}", options), step)


def _train(
    trainer: Trainer, data: Sequence[Any], options: dict[str, Any], break_at: int | None
) -> None:
    """Train to the end, or to a crash after the step `break_at`."""
    callbacks = [*options.get("callbacks", ()), _Crash(break_at)]
    try:
        trainer.fit(*data, **{"verbose": 0, **options, "callbacks": callbacks})
    except _CrashedError:
        return
    if break_at is not None:
        raise ConfigurationError(
            "The training ended before the step in break_at.",
            expected=f"more than {break_at} steps",
            received=f"{_steps(trainer)} steps",
            do="lower break_at, or train longer",
        )


def _steps(trainer: Trainer) -> int:
    return int(trainer.task.step_counter.numpy())


@final
class _Crash(keras.callbacks.Callback):
    """Ends a training after a step, as a crash would."""

    needs_every_step = True

    def __init__(self, at_step: int | None) -> None:
        super().__init__()
        self._at_step, self._done = at_step, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._done += 1
        if self._done == self._at_step:
            raise _CrashedError

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore nothing: a crash is not repeated."""


class _CrashedError(Exception):
    pass


def _spread(steps: int) -> list[int]:
    """Return three steps: early, in the middle, before the end.

    >>> _spread(30)
    [4, 15, 29]
    """
    return sorted({max(steps // 7, 1), max(steps // 2, 1), max(steps - 1, 1)})


def _compare(whole: Trainer, resumed: Trainer, step: int) -> None:
    one, other = (tensors.snapshot(variables.named(each.task)) for each in (whole, resumed))
    differing = [*tensors.differing(one, other), *(other.keys() - one.keys())]
    if differing:
        listed = ", ".join(differing[:8]) + (", ..." if len(differing) > 8 else "")
        raise AssertionError(
            f"The training that crashed after step {step} and resumed ended with different bits "
            f"in {len(differing)} of {len(one)} variables: {listed}"
        )
    for name, values in whole.history.history.items():
        again = resumed.history.history.get(name)
        if again is None or not _are_close(values, again):
            raise AssertionError(
                f"The training that crashed after step {step} and resumed returned a different "
                f"history of {name!r}: {again} instead of {values}"
            )


def _are_close(values: Any, others: Any) -> bool:
    one, other = tf.constant(values, tf.float64), tf.constant(others, tf.float64)
    # Means are summed call by call, and an additional stop changes the last bits of a sum.
    return one.shape == other.shape and bool(
        tf.reduce_all(tf.abs(one - other) <= 1e-6 * (1 + tf.abs(one)))
    )
