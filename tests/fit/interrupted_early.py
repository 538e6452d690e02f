"""A program that presses Ctrl-C at chosen calls of Python inside `fit`, and calls `fit` again.

`python -m tests.fit.interrupted_early MOMENTS`: prints a line of JSON for each moment.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import loopwright as lw

X = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")


class Lazy(lw.Task):
    """Everything in it is built by its first step: layers, optimizer, metric."""

    def __init__(self) -> None:
        super().__init__()
        keras.utils.set_random_seed(0)
        self.model = keras.Sequential([keras.layers.Dense(2), keras.layers.Dense(1)])
        self.optimizer = keras.optimizers.Adam()
        self.error = keras.metrics.MeanAbsoluteError(name="error")

    def train_step(self, batch: Any) -> Any:
        x, y = batch
        with tf.GradientTape() as tape:
            predictions = self.model(x, training=True)
            loss = tf.reduce_mean(tf.square(y - predictions))
        self.minimize(loss, self.model, self.optimizer, tape)
        self.error.update_state(y, predictions)
        return {"loss": loss}


def fit(trainer: lw.Trainer) -> list[float]:
    return trainer.fit(X, X[:, :1], batch_size=8, epochs=2, verbose=0).history["loss"]


def profiled(trainer: lw.Trainer, on_call: Callable[[Any], None]) -> list[float]:
    """Call `fit`, and `on_call` with the frame of every call of Python in it."""
    sys.setprofile(lambda frame, event, _: on_call(frame) if event == "call" else None)
    try:
        return fit(trainer)
    finally:
        sys.setprofile(None)


def outcome(at: Callable[[int, Any], bool], presses: int = 1) -> dict[str, Any]:
    """Press Ctrl-C at the first call that `at` accepts; return what `fit` and the next one do."""
    trainer, calls, first = lw.Trainer(Lazy(), plan="graph"), [0, 0], list[float]()

    def press(frame: Any) -> None:
        calls[0] += 1
        if calls[1] < presses and at(calls[0], frame):
            calls[1] += 1
            os.kill(os.getpid(), signal.SIGINT)

    raised = "nothing"
    try:
        first = profiled(trainer, press)
    except BaseException as error:
        raised = type(error).__name__
    try:
        after, numbers = "fits", fit(trainer)
    except BaseException as error:
        after, numbers = f"{type(error).__name__}: {error}"[:300], []
    return {
        "calls": calls[0],
        "pressed": calls[1],
        "raised": raised,
        "after": after,
        "losses": first or numbers,
        "variables": len(trainer.task.model.variables),
        "handler": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    }


def within(file: str, function: str) -> Callable[[int, Any], bool]:
    """Accept the first call that a function of a file makes."""

    def accept(_: int, frame: Any) -> bool:
        caller = frame.f_back.f_code if frame.f_back else frame.f_code
        return caller.co_name == function and caller.co_filename.endswith(file)

    return accept


PLACES = {
    "optimizer": within("optimizers/adam.py", "build"),
    "slots": within("optimizers/base_optimizer.py", "add_optimizer_variables"),
    "layer": within("layers/core/dense.py", "build"),
    "trace": within("task/gradients.py", "minimize"),
}


def main(moments: int) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    outcome(lambda *_: False)  # imports what is imported lazily
    whole = outcome(lambda *_: False)
    print(json.dumps({"place": "none", **whole}), flush=True)
    for name, place in PLACES.items():
        print(json.dumps({"place": name, **outcome(place)}), flush=True)
    print(json.dumps({"place": "twice", **outcome(PLACES["slots"], presses=2)}), flush=True)
    for moment in range(1, moments + 1):
        at = whole["calls"] * moment // (moments + 1)
        found = outcome(lambda count, _, at=at: count >= at)
        print(json.dumps({"place": f"call {at}", **found}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
