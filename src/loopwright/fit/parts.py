"""The parts that a trainer makes once, and that each call of `fit` uses."""

from dataclasses import dataclass

import tensorflow as tf

from loopwright.distribute.team import Team
from loopwright.engine.engine import Engine
from loopwright.fit.restore import HeldState
from loopwright.task.task import Task


@dataclass(frozen=True)
class Parts:
    """What all calls of `fit` of a trainer have in common."""

    engine: Engine
    state: HeldState
    seed: int

    @property
    def task(self) -> Task:
        """The task that is trained."""
        return self.engine.task

    @property
    def team(self) -> Team:
        """The workers that train it."""
        return self.engine.team

    @property
    def strategy(self) -> tf.distribute.Strategy:
        """What the replicas of a step run under."""
        return self.engine.strategy
