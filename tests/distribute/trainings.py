"""What the workers of these tests train."""

import functools
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.distribute import collective_all_reduce_strategy
from tests.networks import hears, other_addresses
from tests.resume.faults import ALL
from tests.resume.program import train

import gan
import loopwright as lw
from loopwright import digits
from loopwright.distribute import cluster
from loopwright.task import variables

ROWS = 101  # batches of 20: the last one has a single example, and one worker or replica none
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


def shares():
    """The same rows, of which each worker reads its own: worker 0 takes the odd one."""

    def make_batches(workers, worker):
        rows = tf.data.Dataset.from_tensor_slices(data()).batch(20)
        cut = rows.map(lambda x, y: (x[worker::workers], y[worker::workers]))
        return cut.apply(tf.data.experimental.assert_cardinality(rows.cardinality()))

    return lw.Shares(make_batches)


class GivenNoise(lw.Task):
    """The GAN, with noise that is part of the batch: what replicas draw is their own."""

    def __init__(self):
        super().__init__()
        keras.utils.set_random_seed(2)
        self.generator = gan.make_generator()
        layers = [LAYERS.Dense(32, "leaky_relu"), LAYERS.Dense(1)]
        self.discriminator = keras.Sequential([keras.Input((64,)), *layers])
        self.optimizers = [keras.optimizers.Adam(2e-4, beta_1=0.5) for _ in range(2)]
        self.loss = keras.losses.BinaryCrossentropy(from_logits=True)

    def train_step(self, batch):
        images, noise = batch
        with tf.GradientTape() as tape:
            real = self.discriminator(images, training=True)
            made = self.discriminator(self.generator(noise, training=True), training=True)
            d_loss = self.loss(tf.ones_like(real), real) + self.loss(tf.zeros_like(made), made)
        self.minimize(d_loss, self.discriminator, self.optimizers[0], tape)
        with tf.GradientTape() as tape:
            made = self.discriminator(self.generator(noise, training=True), training=True)
            g_loss = self.loss(tf.ones_like(made), made)
        self.minimize(g_loss, self.generator, self.optimizers[1], tape)
        return {"d_loss": d_loss, "g_loss": g_loss}


def compiled():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((5,)), LAYERS.Dense(1)])
    model.compile(keras.optimizers.SGD(1e-2), "mse", metrics=["mae"])
    return model


def with_two_devices() -> None:
    """Gives each worker two replicas, as two GPUs would; TensorFlow takes one CPU by itself."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, two)

    def devices(self: Any, resolver: Any, worker: str) -> tuple[tuple[str, ...], str]:
        return tuple(f"{worker}/device:CPU:{index}" for index in range(2)), "CPU"

    extended: Any = collective_all_reduce_strategy.CollectiveAllReduceExtended
    extended._initialize_local_devices = devices


def tell_numbers(out: Path, devices: int = 1) -> None:
    """Trains what must come out the same for any number of workers, and writes it down."""
    found: dict[str, Any] = {}
    if devices == 2:
        with_two_devices()

    def fitted(title: str, make_task: Callable[[], Any], *given: Any, **options: Any) -> lw.Trainer:
        trainer = lw.Trainer(make_task, strategy="auto")
        told = trainer.fit(*given, verbose=0, **options).history
        found.update({f"{title} history {name}": values for name, values in told.items()})
        shared = {n: v for n, v in variables.named(trainer.task).items() if ".replicas[" not in n}
        found.update({f"{title} {name}": variable.numpy() for name, variable in shared.items()})
        return trainer

    x, y = data()
    sets = {"near": (x[:33], y[:33]), "far": (x[33:], y[33:])}
    scored = {"validation_data": sets, "validate_every": "4 epochs"}
    trainer = fitted("arrays", Regression, x, y, batch_size=20, epochs=34 if ALL else 8, **scored)
    found |= {f"score {k}": v for k, v in trainer.evaluate(x, y, batch_size=7).items()}
    found["predictions"] = trainer.predict(x, batch_size=30)

    stream = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(50, seed=3).filter(lambda *_: True)
    again = fitted("stream", Regression, stream.batch(20), epochs=3)
    fitted("shares", Regression, shares(), epochs=3, validation_data=shares())
    images, labels = digits.load()["train"]
    small = functools.partial(digits.make_task, dropout=0.0)
    fitted("digits", small, images[:300], labels[:300], batch_size=50, epochs=2)
    noise = np.random.default_rng(0).normal(size=(60, gan.NOISE_SIZE)).astype("float32")
    fitted("gan", GivenNoise, (gan.load()[:60], noise), batch_size=8, epochs=2)
    fitted("drawn", gan.make_task, gan.load()[:60], batch_size=8)
    whole = x[:96], y[:96]  # Keras weighs replicas alike, whatever their share
    fitted("compiled", compiled, *whole, batch_size=24, epochs=2, shuffle=False)
    team = cluster.found(os.environ)
    if team is not None:
        others = data()[0] + team.task
        writes = [keras.callbacks.CSVLogger(out / "log.csv")]
        longer = lw.Shares(lambda n, i: tf.data.Dataset.range(8 + i).map(lambda _: (x, y)))
        port = int(team.jobs["worker"][team.task].rpartition(":")[2])
        found["heard elsewhere"] = [hears(address, port) for address in other_addresses()]
        found["heard here"] = hears("127.0.0.1", port)
        found["refused data"] = refusal(lambda: again.fit(others, y, verbose=0))
        found["refused lengths"] = refusal(lambda: again.fit(longer, verbose=0))
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


def worker_index() -> int | None:
    """Which worker this is; None if there are no others."""
    found = cluster.found(os.environ)
    return None if found is None else found.task


def train_exactly(
    run_dir: str, kind: str, victim: int | None = None, number: int = 0, at: "int | str" = 0
) -> None:
    """Everything that has to survive, in a run directory; one worker sends itself a signal."""
    is_victim = worker_index() == victim
    if is_victim and at == COMMIT:
        kill_at_commit(run_dir, saves=3)
    sends = SendsItself(number, at if is_victim else None, run_dir)
    train(
        run_dir, kind, "graph", strategy="auto", save_every="3 steps", epochs=3, callbacks=[sends]
    )


def train_edited(run_dir: str, kind: str, on_change: Any) -> None:
    """As `train_exactly`, with another seed."""
    edited: Any = {"seed": 7, "on_change": on_change, "callbacks": [SendsItself(0, None, run_dir)]}
    train(run_dir, kind, "graph", strategy="auto", save_every="3 steps", epochs=3, **edited)


COMMIT = "between writing and commit"


def kill_at_commit(run_dir: str, saves: int) -> None:
    """Kills this process when everything is written and nothing has its name yet."""
    left = iter(range(saves, 0, -1))

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event != "os.rename" or ".tmp-" not in str(arguments[0]) or arguments[3] < 0:
            return
        directory = Path(os.readlink(f"/proc/self/fd/{arguments[3]}"))
        is_commit = directory == Path(run_dir).resolve() / "checkpoints"
        if is_commit and next(left) == 1:
            send_itself(signal.SIGKILL, run_dir)

    sys.addaudithook(hook)


def send_itself(number: int, run_dir: str) -> None:
    """Sends this process a signal, and leaves word of when."""
    Path(run_dir).with_name("gone").write_text(str(time.time()))
    os.kill(os.getpid(), number)


class SendsItself(keras.callbacks.Callback):
    """Sends its own process a signal: at a step of this start, at its beginning, in validation."""

    needs_every_step = True

    def __init__(self, number: int, at: "int | str | None", run_dir: str) -> None:
        super().__init__()
        self.number, self.at, self.run_dir, self.steps = number, at, run_dir, 0

    def get_state(self):
        return {}

    def set_state(self, state):
        """Every start counts anew."""

    def on_train_begin(self, logs=None):
        self._come_to("start")

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        self._come_to(self.steps)

    def on_test_begin(self, logs=None):
        self._come_to("validation")

    def _come_to(self, place: "int | str") -> None:
        if place == self.at:
            self.at = None
            send_itself(self.number, self.run_dir)


def train_over_a_bad_batch(run_dir: str, out: str) -> None:
    """One example is not a number: all workers go back, and leave its batch out."""
    trainer = lw.Trainer(Regression, strategy="auto", run_dir=run_dir, on_nan="rollback")
    x, y = data()
    x[57] = np.nan
    trainer.fit(x, y, batch_size=20, epochs=2, shuffle=False, save_every="2 steps", verbose=0)
    steps = np.append(trainer.task.model.get_weights()[0].ravel(), int(trainer.task.step))
    np.save(f"{out}-{worker_index()}.npy", steps)
