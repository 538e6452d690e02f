"""Experiment: the task, data and settings of one training.

    def experiment(*, quick: bool = False) -> lw.Experiment:
        x, y = load()
        return lw.Experiment(make_task, fit={"x": x, "y": y, "epochs": 3 if quick else 15})

In `mine.py`, this is trained by `loopwright train mine.py fit.epochs=5`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from loopwright.task.task import Task
from loopwright.trainer import Trainer


@dataclass(frozen=True)
class Experiment:
    """The task, data and settings of one training, and its conclusion."""

    task: Callable[..., Task | keras.Model]
    """Returns the task. A config sets its arguments as `model`; `seed`, if it is a parameter, and
    the `optimizer`, `loss` and `metrics` of a config are passed as well."""
    fit: Mapping[str, Any]
    """Arguments of `Trainer.fit`: data and settings. A config can override the settings."""
    test: Sequence[Any] | None = None
    """Arguments of `Trainer.evaluate`: inputs and labels that were not used for training."""
    conclude: Callable[[Trainer, str | None], Mapping[str, float]] | None = None
    """Called after training with the run directory: prints, draws, returns the scores."""


def concluded(experiment: Experiment, trainer: Trainer, run_dir: str | None) -> dict[str, float]:
    """Return the scores after the training: those of `conclude`, or else of the test data."""
    if experiment.conclude is not None:
        return dict(experiment.conclude(trainer, run_dir))
    return {} if experiment.test is None else trainer.evaluate(*experiment.test)
