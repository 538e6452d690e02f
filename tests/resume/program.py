"""A small training in a process of its own, to be killed: `python program.py RUN KIND PLAN`."""

import functools
import hashlib
import os
import resource
import signal
import sys
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import loopwright as lw
from loopwright.task import variables

LAYERS = keras.layers
STEPS_PER_EPOCH, EPOCHS = 13, 5


class Noisy(lw.Task):
    """Everything that has to survive: dropout, batch norm, a generator, metrics, an average."""

    def __init__(self):
        super().__init__()
        keras.utils.set_random_seed(3)
        # One weight of each kind: every further one is traced, and compiled, in each of the runs.
        self.model = keras.Sequential(
            [
                keras.Input((4,)),
                LAYERS.Dense(8, "relu", use_bias=False),
                LAYERS.BatchNormalization(scale=False),
                LAYERS.Dropout(0.2, seed=5),
                LAYERS.Dense(1, use_bias=False),
            ]
        )
        self.optimizer = keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.9)
        self.generator = tf.random.Generator.from_seed(11)
        self.error = keras.metrics.MeanAbsoluteError(name="error")

    def train_step(self, batch):
        x, y = batch
        x += 0.01 * self.generator.normal(tf.shape(x))
        with tf.GradientTape() as tape:
            predictions = self.model(x, training=True)
            loss = tf.reduce_mean((predictions - y) ** 2)
        self.minimize(loss, self.model, self.optimizer, tape)
        self.error.update_state(y, predictions)
        return {"loss": loss}

    def test_step(self, batch):
        x, y = batch
        predictions = self.model(x, training=False)
        self.error.update_state(y, predictions)
        return {"loss": tf.reduce_mean((predictions - y) ** 2)}


def arrays(rows=STEPS_PER_EPOCH * 8 - 3):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 4)).astype("float32")
    return x, x[:, :1] * 3


class Sequence(keras.utils.PyDataset):
    def __len__(self):
        return STEPS_PER_EPOCH

    def __getitem__(self, index):
        x, y = arrays()
        return x[8 * index : 8 * index + 8], y[8 * index : 8 * index + 8]


def stream(*, unknown=False):
    dataset = tf.data.Dataset.from_tensor_slices(arrays()).shuffle(40, seed=7).batch(8)
    return dataset.filter(lambda *_: True) if unknown else dataset


def shares():
    def make_batches(workers, worker):
        rows = tf.data.Dataset.from_tensor_slices(arrays()).shard(workers, worker)
        return rows.shuffle(40, seed=7).batch(8 // workers)

    return lw.Shares(make_batches)


def _noise(example, seed):
    x, y = example
    return x + np.random.default_rng(seed).normal(size=x.shape).astype("float32") * 0.01, y


DATA = {
    "arrays": arrays,
    "mapped": lambda: (lw.Arrays(*arrays(), map=_noise).in_batches_of(8),),
    "stream": lambda: (stream(),),
    "unknown": lambda: (stream(unknown=True),),
    "shares": lambda: (shares(),),
    "pydataset": lambda: (Sequence(),),
}


def digest(task) -> str:
    """One number for every bit of a task's state."""
    parts = hashlib.sha256()
    for name, variable in sorted(variables.named(task).items()):
        value = variable.numpy()
        parts.update(f"{name} {value.dtype} {value.shape}".encode() + value.tobytes())
    return parts.hexdigest()


def train(
    run_dir,
    kind,
    plan,
    *,
    callbacks=(),
    save_every="5 steps",
    epochs=EPOCHS,
    validation_data=None,
    **options,
):
    """Trains as far as it gets; returns the trainer and what `fit` returned."""
    trainer = lw.Trainer(Noisy, run_dir=run_dir, plan=plan, **options)
    batch_size = 8 if kind == "arrays" else None
    history = trainer.fit(
        *DATA[kind](),
        batch_size=batch_size,
        epochs=epochs,
        validation_data=arrays(20) if validation_data is None else validation_data,
        validate_every="9 steps",
        save_every=save_every,
        callbacks=callbacks,
        verbose=0,
    )
    return trainer, history


def train_legs(run_dir, second, killed_at=None):
    """A script of two legs; the second freezes a layer, or trains one that was frozen before.

    Returns the trainer, the histories, and how each leg ended.
    """
    task, reasons = Noisy(), []
    task.model.layers[0].trainable = second == "freezes"

    def listen(event):
        if isinstance(event, lw.Finished):
            reasons.append(event.reason)

    trainer = lw.Trainer(task, run_dir=run_dir, plan="graph", sinks=[listen])
    fit = functools.partial(trainer.fit, *arrays(), batch_size=8, save_every="3 steps", verbose=0)
    first = fit(callbacks=[KillsAt()]).history
    task.model.layers[0].trainable = second != "freezes"
    task.optimizer = keras.optimizers.Adam(0.001)
    then = fit(callbacks=[KillsAt(killed_at)], epochs=2).history
    return trainer, [first, then], reasons


def train_and_be_killed(run_dir, step, where):
    """Trains, perhaps on two replicas, and is killed at a step."""
    strategy = None
    if where == "on two replicas":
        (cpu,) = tf.config.list_physical_devices("CPU")
        two = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, two)
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    train(run_dir, "arrays", "graph", epochs=2, strategy=strategy, callbacks=[KillsAt(step)])


class AtStep(keras.callbacks.Callback):
    """Calls a function once, after a step of this start; None: never."""

    needs_every_step = True

    def __init__(self, step, call):
        super().__init__()
        self.left, self.call = step, call

    def get_state(self):
        return {}

    def set_state(self, state):
        """Every start counts anew."""

    def on_train_batch_end(self, batch, logs=None):
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                self.call()


def fail():
    raise RuntimeError("the machine failed")


class FailsAt(AtStep):
    """Ends a run in the middle, as if the machine had failed."""

    def __init__(self, step=None):
        super().__init__(step, fail)


class KillsAt(AtStep):
    """Kills its own process."""

    def __init__(self, step=None):
        super().__init__(step, lambda: os.kill(os.getpid(), signal.SIGKILL))


class Slowly(keras.callbacks.Callback):
    """Makes every step a stop, and a run long enough to be killed in the middle."""

    needs_every_step = True

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.005)


class RunsOutOfMemory(Slowly):
    """From a step on, the process gets no more memory."""

    def __init__(self, at=None):
        super().__init__()
        self.at = at

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        if int(self.model.optimizer.iterations) == self.at:
            held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (held, held))
            self.held = bytearray(2**30)


def train_and_tell(run_dir, kind, plan, options):
    """Trains slowly, and prints how it ended."""
    callback = RunsOutOfMemory(options.get("memory_ends_at"))
    trained, told = train(run_dir, kind, plan, callbacks=[callback])
    print("end", digest(trained.task), told.history["loss"][-1], len(told.epoch), flush=True)


if __name__ == "__main__":
    where, given, how = sys.argv[1:]
    train_and_tell(where, given, how, {})
