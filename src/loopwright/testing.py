"""For your own tests: does this training survive whatever happens to it?

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
    """Fails unless a training that breaks down and is started again ends with the same bits.

    `make_trainer(run_dir)` makes task and trainer anew, as a new process would. `data` and
    `fit_options` are those of `fit`. The training breaks down once after each step in `break_at`;
    by default after three steps spread over the whole. Weights, optimizers, seeds and metrics are
    compared bit by bit, and what `fit` returned. Training with `exact="best_effort"` that cannot be
    resumed exactly fails with the reasons.
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
            broken = _Attempt(make_trainer, Path(directory) / f"broken-{step}", data, options)
            broken.train(break_at=step, like=whole)
            resumed = _Attempt(make_trainer, broken.run_dir, data, options)
            resumed.train(like=whole)
            _compare(whole, resumed, step)


@final
class _BreaksDown(keras.callbacks.Callback):
    """Ends a training as a failing machine would: without a word."""

    needs_every_step = True

    def __init__(self, at_step: int | None) -> None:
        super().__init__()
        self._at_step, self._done = at_step, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._done += 1
        if self._done == self._at_step:
            raise _BrokenDownError

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """A machine remembers nothing."""


class _BrokenDownError(Exception):
    pass


@final
class _Attempt:
    """One training, up to its end or to where it breaks down."""

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
            # What is measured differs from time to time; here it is the same plans every time.
            self.trainer.follow(like.trainer.plan_history)
        callbacks = [*self._options.get("callbacks", ()), _BreaksDown(break_at)]
        options = {"verbose": 0, **self._options, "callbacks": callbacks}
        try:
            self.history = self.trainer.fit(*self._data, **options).history
        except _BrokenDownError:
            return
        if break_at is not None:
            raise ConfigurationError(
                message(
                    "The training ended before it could break down.",
                    expected=f"more than {break_at} steps",
                    received=f"{self.steps} steps",
                    do="lower break_at, or train for longer",
                )
            )

    def state(self) -> dict[str, Any]:
        return tensors.snapshot(variables.named(self.trainer.task))


def _spread(steps: int) -> list[int]:
    """Three steps: early, in the middle, before the end.

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
            f"The training that broke down after step {step} and went on ended with other bits "
            f"in {len(differing)} of {len(one)} variables: {listed}"
        )
    for name, values in whole.history.items():
        again = resumed.history.get(name)
        if again is None or not _are_close(values, again):
            raise AssertionError(
                f"The training that broke down after step {step} and went on returned another "
                f"history of {name!r}: {again}, where {values} was expected"
            )


def _are_close(values: Any, others: Any) -> bool:
    one, other = tf.constant(values, tf.float64), tf.constant(others, tf.float64)
    # Means are summed up call by call, and a stop more or less changes the last bits of a sum.
    return one.shape == other.shape and bool(
        tf.reduce_all(tf.abs(one - other) <= 1e-6 * (1 + tf.abs(one)))
    )
