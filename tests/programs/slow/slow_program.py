"""What a slow program is: something to train, its data, and the sentence that a person reads."""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

import loopwright as lw


@dataclass(frozen=True)
class Slow:
    """A program that is slow for one reason, or with `slow=False` the same program without it.

    `says` is the whole verdict: `SHARE` in it stands for a percentage, `{line}` for the number of
    the line that ends with the comment `# here`.
    """

    trainer: Callable[[Path], lw.Trainer]
    says: str
    x: Any = None
    y: Any = None
    options: dict[str, Any] = field(default_factory=dict)
    warms: bool = False
    """Whether a first run compiles what its counterpart has not compiled."""

    def is_said_by(self, text: str, build: Callable[..., "Slow"]) -> bool:
        """Return whether a verdict is the one of this program."""
        lines, first = inspect.getsourcelines(build)
        marked = [n for n, line in enumerate(lines, first) if line.rstrip().endswith("# here")]
        says = self.says.replace("{line}", str(marked[0])) if marked else self.says
        return re.fullmatch(re.escape(says).replace("SHARE", r"\d+%"), text) is not None


def regression(directory: Path) -> lw.Trainer:
    """Make the trainer of a small model of 16 inputs, on a plan that compiles quickly."""
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(1)])
    return lw.Trainer(lw.Supervised(model, "mse", keras.optimizers.SGD(1e-3)), plan="graph")


def rows(count: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Make inputs and targets of that model."""
    x = tf.random.stateless_normal((count, 16), seed=(1, 2))
    return x, tf.reduce_sum(x, axis=1, keepdims=True)


def batches(count: int = 32) -> tf.data.Dataset:
    """Make a pipeline of so many batches of 8 rows."""
    return tf.data.Dataset.from_tensor_slices(rows(8 * count)).batch(8)


def work(milliseconds: int) -> None:
    """Keep a core busy in Python, longer than anything else in these programs takes."""
    for _ in range(milliseconds):
        sum(range(40_000))
