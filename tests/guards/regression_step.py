"""A regression by hand whose loss, model or step a test makes wrong."""

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from tests.tasks import ByHand

import loopwright as lw

RNG = np.random.default_rng(5)
X = RNG.normal(size=(16, 4)).astype("float32")
Y = X @ np.array([[1.0], [-2.0], [0.5], [0.0]], "float32")
WORDS = np.array([["a", "b", "c", "d"]] * 16)


def mlp(*sizes: int, inputs: int = 4, regularizer: Any = None) -> keras.Model:
    dense = [layers.Dense(size, kernel_regularizer=regularizer) for size in sizes]
    return keras.Sequential([keras.Input((inputs,)), *dense])


def dense(*more: keras.Layer) -> keras.Model:
    return keras.Sequential([keras.Input((4,)), *more, layers.Dense(1)])


class Regression(ByHand):
    """A step by hand whose only secret is its loss."""

    def __init__(self, loss: Callable[..., Any] | None = None, model: keras.Model | None = None):
        super().__init__(mlp(3, 1) if model is None else model)
        self.loss = loss or squared_error

    def loss_of(self, x, y):
        return self.loss(self.model, x, y)


def squared_error(model, x, y):
    return tf.reduce_mean(tf.square(y - model(x, training=True)))  # line: squared error


def fit(task: Any, *data: Any, plan: Any = "graph", **options: Any) -> lw.History:
    """Trains on X and Y, unless a test passes other data, or None: four steps without any."""
    data = data or (X, Y)
    how = {name: options.pop(name) for name in ("run_dir", "silence", "on_nan") if name in options}
    options |= {"until": "4 steps"} if data[0] is None else {}
    batch_size = 8 if isinstance(data[0], np.ndarray | dict | tuple) else None
    return lw.Trainer(task, plan=plan, **how).fit(
        *data, batch_size=batch_size, verbose=0, **options
    )


def message_of(caught: pytest.ExceptionInfo[BaseException]) -> str:
    """What the user reads: one stack, that of the error itself, and no other above it."""
    shown = "".join(traceback.format_exception(caught.value))
    assert shown.count("Traceback (most recent call last)") == 1
    assert "\x1b" not in str(caught.value)
    return str(caught.value)


def refused(task: lw.Task, *data: Any, **options: Any) -> str:
    """The message with which `fit` refuses to take the first step."""
    with pytest.raises(lw.StepError) as caught:
        fit(task, *data, **options)
    assert int(task.step) == 0
    assert "\n  do: " in str(caught.value)
    return message_of(caught)


def warned(task: Any, *data: Any) -> str:
    """The one warning of a `fit` that trains all the same."""
    with pytest.warns(lw.StepWarning) as caught:
        history = fit(task, *data)
    assert len(history.history["loss"]) == 1
    # Python 3.13 and NumPy 2.5 deprecate what other libraries do.
    told = [each.message for each in caught if isinstance(each.message, lw.LoopwrightWarning)]
    texts = set(map(str, told))
    assert len(texts) == 1
    return without_id(texts.pop())


def without_id(text: str) -> str:
    """A warning without its last line, which tells how to silence it."""
    text, silence = text.rsplit("\n", 1)
    assert silence.startswith('  silence: Trainer(..., silence=["')
    return text


def place_in(file: str, marker: str) -> str:
    """File, number and text of the line of `file` that ends with `# line: marker`."""
    lines = Path(file).read_text().splitlines()
    number, code = next((i, c) for i, c in enumerate(lines, 1) if c.endswith(f"# line: {marker}"))
    return f'(file "{Path(file).name}", line {number}: {code.strip()})'


both_plans = pytest.mark.parametrize("plan", ["graph", "eager"])


def in_batches(drop_remainder: bool) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(8, drop_remainder=drop_remainder)
