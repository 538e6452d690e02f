"""What the workers of these tests train."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tests.resume.program import train

import loopwright as lw
from loopwright import cluster, state
from loopwright.recipes import gan

ROWS = 101  # batches of 20: the last one has a single example, and one worker none
LAYERS = keras.layers


class Regression(lw.Task):
    """What goes wrong with several replicas: regularisation, clipping, `when`, metrics."""

    def __init__(self):
        super().__init__()
        keras.utils.set_random_seed(1)
        kernel = keras.regularizers.L2(0.05)
        self.model = keras.Sequential(
            [keras.Input((5,)), LAYERS.Dense(8, "tanh", kernel_regularizer=kernel), LAYERS.Dense(1)]
        )
        self.optimizer = keras.optimizers.Adam(
            1e-2, global_clipnorm=0.5, gradient_accumulation_steps=2
        )
        self.second = keras.optimizers.SGD(1e-3)
        self.loss = keras.losses.MeanSquaredError()
        self.mae = keras.metrics.MeanAbsoluteError(name="mae")

    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape(persistent=True) as tape:
            predictions = self.model(x, training=True)
            loss = self.loss(y, predictions) + sum(self.model.losses)
        self.mae.update_state(y, predictions)
        norm = self.minimize(loss, self.model, self.optimizer, tape)
        self.minimize(loss, self.model, self.second, tape, when=self.step % 3 == 0)
        return {"loss": loss, "norm": norm}

    def test_step(self, batch):
        x, y = batch
        predictions = self.model(x, training=False)
        self.mae.update_state(y, predictions)
        return {"loss": self.loss(y, predictions)}

    def predict_step(self, batch):
        return self.model(batch, training=False)


def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 5)).astype("float32")
    return x, (x[:, :1] * 2 + 1).astype("float32")


def tell_numbers(out: Path) -> None:
    """Trains what must come out the same for any number of workers, and writes it down."""
    trainer = lw.Trainer(Regression, strategy="auto")
    x, y = data()
    sets = {"near": (x[:33], y[:33]), "far": (x[33:], y[33:])}
    history = trainer.fit(x, y, batch_size=20, epochs=30, validation_data=sets, verbose=0)
    found: dict[str, Any] = {f"history {name}": values for name, values in history.history.items()}
    found |= {f"weight {v.path}": v.numpy() for v in trainer.task.model.weights}
    found |= {f"score {k}": v for k, v in trainer.evaluate(x, y, batch_size=7).items()}
    found["predictions"] = trainer.predict(x, batch_size=30)

    stream = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(50, seed=3).filter(lambda *_: True)
    again = lw.Trainer(Regression, strategy="auto")
    told = again.fit(stream.batch(20), epochs=3, verbose=0).history
    found |= {f"stream {name}": values for name, values in told.items()}

    third = lw.Trainer(make_gan, strategy="auto")
    third.fit(gan.load()[:60], batch_size=8, epochs=1, verbose=0)
    shared = {n: v for n, v in state.named(third.task).items() if ".replicas[" not in n}
    found |= {f"gan {name}": variable.numpy() for name, variable in shared.items()}
    if worker_index() is not None:
        others = data()[0] + worker_index()
        writes = [keras.callbacks.CSVLogger(out / "log.csv")]
        found["refused data"] = refusal(lambda: again.fit(others, y, verbose=0))
        found["refused callback"] = refusal(lambda: again.fit(x, y, callbacks=writes, verbose=0))
        found["refused plan"] = refusal(
            lambda: lw.Trainer(Regression, strategy="auto", plan="fused").fit(x, y, verbose=0)
        )
    with (out / f"{worker_index()}.pickle").open("wb") as file:
        pickle.dump({name: np.asarray(value) for name, value in found.items()}, file)


def refusal(call: Callable[[], Any]) -> str:
    try:
        call()
    except lw.ConfigurationError as error:
        return str(error).splitlines()[0]
    return "nothing was refused"


def make_gan() -> lw.Task:
    keras.utils.set_random_seed(2)
    return gan.GAN(gan.make_generator(), gan.make_discriminator())


def worker_index() -> int | None:
    """Which worker this is; None if there are no others."""
    found = cluster.found(os.environ)
    return None if found is None else found.task


def train_exactly(
    run_dir: str, kind: str, victim: int | None = None, number: int = 0, at: int = 0
) -> None:
    """Everything that has to survive, in a run directory; one worker sends itself a signal."""
    sends = SendsItself(number, at if worker_index() == victim else None)
    train(
        run_dir, kind, "graph", strategy="auto", save_every="3 steps", epochs=3, callbacks=[sends]
    )


class SendsItself(keras.callbacks.Callback):
    """Sends its own process a signal at a step of this start."""

    needs_every_step = True

    def __init__(self, number: int, at: int | None) -> None:
        super().__init__()
        self.number, self.left = number, at

    def get_state(self):
        return {}

    def set_state(self, state):
        """Every start counts anew."""

    def on_train_batch_end(self, batch, logs=None):
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), self.number)
