"""The same regression; a test changes its batch, or what it holds."""

from collections.abc import Callable
from typing import Any

import keras
from tests.guards import regression_step
from tests.guards.regression_step import X, Y, dense


class Regression(regression_step.Regression):
    """A step by hand; `change` is what a test does in it."""

    def __init__(self, change: Callable[..., Any] = lambda task, x, y: (x, y)):
        keras.utils.set_random_seed(1)
        super().__init__(model=dense())
        self.seed = keras.random.SeedGenerator(0)
        self.change = change
        self.traces: list[str] = []

    @property
    def traced(self) -> int:
        return len(self.traces)

    def train_step(self, batch):
        self.traces.append("train_step")
        return super().train_step(self.change(self, *batch))

    def test_step(self, batch):
        return {"loss": self.loss(self.model, *batch)}


class Alone(Regression):
    """The same without a batch argument."""

    def train_step(self):  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().train_step((X, Y))
