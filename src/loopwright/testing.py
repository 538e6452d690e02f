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
from loopwright.checkpoints.store import Store
from loopwright.errors import ConfigurationError, message
from loopwright.exactness import Inexact, recorded_reasons
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
        whole = _Attempt(make_trainer, Path(directory) / "whole", data, fit_options)
        whole.train()
        found = Store(whole.run_dir / "checkpoints").newest()
        reasons = [] if found is None else recorded_reasons(found.content)
        if reasons:
            raise AssertionError(str(Inexact(tuple(reasons))))
        steps = whole.steps
        options = {"save_every": f"{max(steps // 7, 1)} steps", **fit_options}
        for step in _spread(steps) if break_at is None else break_at:
            crashed = _Attempt(make_trainer, Path(directory) / f"crashed-{step}", data, options)
            crashed.train(break_at=step, like=whole)
            resumed = _Attempt(make_trainer, crashed.run_dir, data, options)
            resumed.train(like=whole)
            _compare(whole, resumed, step)


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


@final
class _Attempt:
    """One training, until its end or its crash."""

    def __init__(
        self,
        make_trainer: Callable[[Path], Trainer],
        run_dir: Path,
        data: Sequence[Any],
        options: dict[str, Any],
    ) -> None:
        self.run_dir, self._data, self._options = run_dir, data, options
        self.trainer = make_trainer(run_dir)
        self.history: dict[str, list[Any]] = {}

    @property
    def steps(self) -> int:
        return int(self.trainer.task.step_counter.numpy())

    def train(self, break_at: int | None = None, like: "_Attempt | None" = None) -> None:
        if like is not None:
            # Measurements vary: follow the plans of the other training.
            self.trainer.follow(like.trainer.plan_history)
        callbacks = [*self._options.get("callbacks", ()), _Crash(break_at)]
        options = {"verbose": 0, **self._options, "callbacks": callbacks}
        try:
            self.history = self.trainer.fit(*self._data, **options).history
        except _CrashedError:
            return
        if break_at is not None:
            raise ConfigurationError(
                message(
                    "The training ended before the step in break_at.",
                    expected=f"more than {break_at} steps",
                    received=f"{self.steps} steps",
                    do="lower break_at, or train longer",
                )
            )

    def state(self) -> dict[str, Any]:
        return tensors.snapshot(variables.named(self.trainer.task))


def _spread(steps: int) -> list[int]:
    """Return three steps: early, in the middle, before the end.

    >>> _spread(30)
    [4, 15, 29]
    """
    return sorted({max(steps // 7, 1), max(steps // 2, 1), max(steps - 1, 1)})


def _compare(whole: _Attempt, resumed: _Attempt, step: int) -> None:
    one, other = whole.state(), resumed.state()
    differing = [
        name
        for name in one | other
        if name not in one
        or name not in other
        or tensors.digest({"": one[name]}) != tensors.digest({"": other[name]})
    ]
    if differing:
        listed = ", ".join(differing[:8]) + (", ..." if len(differing) > 8 else "")
        raise AssertionError(
            f"The training that crashed after step {step} and resumed ended with different bits "
            f"in {len(differing)} of {len(one)} variables: {listed}"
        )
    for name, values in whole.history.items():
        again = resumed.history.get(name)
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
