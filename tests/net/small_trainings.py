"""Trainings of a few weights, one for each way to train: what they report is compared with dumps.

Each takes a directory that does not exist yet and yields what it reports: events, or lines.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tests.cli.small_project import MINE, invoke

import loopwright as lw

Reports = Iterator[Any]


class Fails(keras.callbacks.Callback):
    """Ends a run after a step of this start, as a failing machine would."""

    needs_every_step = True

    def __init__(self, step: int) -> None:
        super().__init__()
        self.left = step

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Count the steps of each start anew."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.left -= 1
        if self.left == 0:
            raise RuntimeError("the machine failed")


def arrays(rows: int = 36) -> tuple[Any, Any]:
    x = np.random.default_rng(0).normal(size=(rows, 3)).astype("float32")
    return x, x[:, :1] * 2


def supervised(optimizer: Any = "sgd") -> lw.Supervised:
    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = keras.Sequential([keras.Input((3,)), layers.Dropout(0.1, seed=2), layers.Dense(1)])
    return lw.Supervised(model, "mse", optimizer, metrics=["mae"])


class Gan(lw.Task):
    """Two networks with an optimizer each."""

    def __init__(self) -> None:
        super().__init__()
        keras.utils.set_random_seed(2)
        self.generator = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
        self.critic = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        self.generator_optimizer = keras.optimizers.Adam(0.01)
        self.critic_optimizer = keras.optimizers.SGD(0.01)
        self.seed = keras.random.SeedGenerator(3)

    def train_step(self, batch: Any) -> Any:
        noise = keras.random.normal((tf.shape(batch)[0], 2), seed=self.seed)
        with tf.GradientTape(persistent=True) as tape:
            made = self.generator(noise, training=True)
            judged = tf.reduce_mean(self.critic(made, training=True))
            c_loss = judged - tf.reduce_mean(self.critic(batch, training=True))
            g_loss = -judged
        self.minimize(c_loss, self.critic, self.critic_optimizer, tape)
        self.minimize(g_loss, self.generator, self.generator_optimizer, tape)
        return {"c_loss": c_loss, "g_loss": g_loss}


def _events(task: Any, plan: Any, run: Path | None, *data: Any, **options: Any) -> Reports:
    trainer, given = _trainer(task, plan, run, options)
    batch = {"batch_size": 8} if isinstance(data[0], np.ndarray) else {}
    yield from trainer.events(*data, **batch, **given)


def _trainer(
    task: Any, plan: Any, run: Path | None, options: dict[str, Any]
) -> tuple[lw.Trainer, dict[str, Any]]:
    on_nan = options.pop("on_nan", "raise")
    return lw.Trainer(task, plan=plan, run_dir=run, on_nan=on_nan), {"verbose": 0, **options}


def arrays_graph(run: Path) -> Reports:
    saved = {"validation_data": arrays(12), "validate_every": "3 steps", "save_every": "4 steps"}
    return _events(supervised(), "graph", run, *arrays(), epochs=2, **saved)


def arrays_fused(run: Path) -> Reports:
    return _events(supervised("adam"), "fused", run, *arrays(), epochs=2, validation_split=0.25)


def arrays_xla(_: Path) -> Reports:
    return _events(supervised(), "xla", None, *arrays(), until="7 steps")


def stream_of_unknown_length(run: Path) -> Reports:
    rows = tf.data.Dataset.from_tensor_slices(arrays()).shuffle(40, seed=7).batch(8)
    data = rows.filter(lambda *_: True)
    return _events(supervised(), "graph", run, data, epochs=2, validation_data=rows)


def callbacks(run: Path) -> Reports:
    used = [
        keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (epoch + 1)),
        keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=10.0),
        keras.callbacks.SwapEMAWeights(),
        keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: None),
    ]
    optimizer = keras.optimizers.SGD(0.1, use_ema=True)
    return _events(supervised(optimizer), "graph", run, *arrays(), epochs=3, callbacks=used)


def early_stopping(_: Path) -> Reports:
    stops = keras.callbacks.EarlyStopping("val_loss", patience=1, min_delta=10.0)
    return _events(
        supervised(), "graph", None, *arrays(), epochs=9, callbacks=[stops], validation_split=0.25
    )


def gan_with_two_calls_of_fit(run: Path) -> Reports:
    for epochs in (1, 2):
        trainer = lw.Trainer(task := Gan(), plan="graph", run_dir=run)
        yield from trainer.events(arrays()[0], batch_size=8, epochs=1, verbose=0)
        if epochs == 2:
            task.generator_optimizer.learning_rate = 0.001
            yield from trainer.events(arrays()[0], batch_size=8, epochs=epochs, verbose=0)


def accumulation(_: Path) -> Reports:
    optimizer = keras.optimizers.Adam(0.01, gradient_accumulation_steps=2)
    return _events(supervised(optimizer), "graph", None, *arrays(), epochs=2)


def _spoiled() -> tuple[Any, Any]:
    x, y = arrays()
    x[20] = np.nan
    return x, y


def nan_skipped(_: Path) -> Reports:
    return _events(supervised(), "graph", None, *_spoiled(), shuffle=False, on_nan="skip")


def nan_rolled_back(run: Path) -> Reports:
    how = {"shuffle": False, "on_nan": "rollback", "save_every": "1 steps"}
    return _events(supervised(), "graph", run, *_spoiled(), **how)


def resumed_after_a_failure(run: Path) -> Reports:
    for step in (7, -1):
        try:
            yield from _events(
                *(supervised("adam"), "graph", run, *arrays()),
                **{"epochs": 3, "save_every": "3 steps", "callbacks": [Fails(step)]},
            )
        except RuntimeError as error:
            yield {"raised": str(error)}


def left_by_break(run: Path) -> Reports:
    heard: list[Any] = []
    for start in ("left", "resumed"):
        trainer = lw.Trainer(supervised(), plan="graph", run_dir=run, sinks=[heard.append])
        for event in trainer.events(*arrays(), batch_size=8, epochs=2, verbose=0):
            if isinstance(event, lw.EpochEnded) and start == "left":
                break
    return iter(heard)


def evaluated_and_predicted(_: Path) -> Reports:
    trainer, x_y = lw.Trainer(supervised(), plan="graph"), arrays()
    yield {"history": trainer.fit(*x_y, batch_size=8, epochs=2, verbose=0).history}
    yield {"evaluate": trainer.evaluate(*x_y, batch_size=8)}
    sets = {"near": x_y, "far": arrays(12)}
    yield {"evaluate": {name: trainer.evaluate(*rows) for name, rows in sets.items()}}
    yield {"predict": trainer.predict(x_y[0][:3]).tolist()}


def trained_by_a_config(run: Path) -> Reports:
    """The command; its module has a name that no other test imports."""
    run.parent.joinpath("net_job.py").write_text(MINE)
    words = ["plan=graph", "fit.epochs=2", "model.rate=0.05", "fit.verbose=0"]
    code, _ = invoke("train", "net_job:experiment", "--run-dir", run.name, *words)
    yield {"exit code": code}


TRAININGS: dict[str, Callable[[Path], Reports]] = {
    made.__name__: made
    for made in (
        *(arrays_graph, arrays_fused, arrays_xla, stream_of_unknown_length, callbacks),
        *(early_stopping, gan_with_two_calls_of_fit, accumulation, nan_skipped, nan_rolled_back),
        *(resumed_after_a_failure, left_by_break, evaluated_and_predicted, trained_by_a_config),
    )
}
