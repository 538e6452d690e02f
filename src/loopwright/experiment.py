"""An experiment: what is trained and on what, as recipes and a person's own function give it.

    def experiment(*, quick: bool = False) -> lw.Experiment:
        x, y = load()
        return lw.Experiment(make_task, fit={"x": x, "y": y, "epochs": 3 if quick else 15})

In `mine.py` this is `loopwright train mine:experiment fit.epochs=5`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from loopwright.task.task import Task
from loopwright.trainer import Trainer


@dataclass(frozen=True)
class Experiment:
    """What is trained, on what, for how long, and what is told of it in the end."""

    task: Callable[..., Task | keras.Model]
    """Makes the task. Its arguments are what a config may set as `model`; `seed`, where
    it takes one, and the `optimizer`, `loss` and `metrics` of a config are passed too."""
    fit: Mapping[str, Any]
    """Arguments of `Trainer.fit`: data and numbers. A config may set other numbers."""
    test: Sequence[Any] | None = None
    """What `Trainer.evaluate` takes, inputs and labels: data that was not trained on."""
    conclude: Callable[[Trainer, str | None], Mapping[str, float]] | None = None
    """Told after the training, with the run directory: prints, draws, returns the scores."""


def run(
    experiment: Experiment, run_dir: str | None, *, plan: str = "auto", **fit: Any
) -> dict[str, float]:
    """Trains an experiment as it is and returns its scores; `fit` wins over its own numbers."""
    trainer = Trainer(experiment.task, run_dir=run_dir, plan=plan)
    trainer.fit(**{**experiment.fit, **fit})
    return concluded(experiment, trainer, run_dir)


def concluded(experiment: Experiment, trainer: Trainer, run_dir: str | None) -> dict[str, float]:
    """The scores of a training that is over: what it concludes, or else those of its test data."""
    if experiment.conclude is not None:
        return dict(experiment.conclude(trainer, run_dir))
    return {} if experiment.test is None else trainer.evaluate(*experiment.test)
