"""Who trains a workload: Keras `fit` two ways, the loop people write by hand, Loopwright."""

import io
import time
from collections.abc import Callable

import keras
import tensorflow as tf
from rich.console import Console

import loopwright as lw
from benchmarks.workloads import Workload
from loopwright.telemetry.console import console

Contender = Callable[[Workload], Callable[[], object]]
"""Prepares a workload; the function it returns trains `workload.steps` steps."""


def keras_fit(steps_per_execution: int) -> Contender:
    def prepare(work: Workload) -> Callable[[], object]:
        model = work.make_model()
        model.compile("adam", work.loss, steps_per_execution=steps_per_execution)
        return lambda: model.fit(
            work.x, work.y, batch_size=work.batch_size, epochs=work.epochs, verbose=0
        )

    return prepare


def hand_loop(work: Workload) -> Callable[[], object]:
    """`for batch in dataset: train_step(*batch)`, with the step a tf.function."""
    model, optimizer = work.make_model(), keras.optimizers.Adam()
    loss_function = keras.losses.get(work.loss)
    dataset = tf.data.Dataset.from_tensor_slices((work.x, work.y))
    dataset = dataset.shuffle(len(work.x)).batch(work.batch_size).prefetch(tf.data.AUTOTUNE)

    @tf.function(reduce_retracing=True)
    def train_step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(loss_function(y, model(x, training=True)))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    def train() -> None:
        for _ in range(work.epochs):
            total = 0.0
            for x, y in dataset:
                total += float(train_step(x, y))

    return train


def loopwright(work: Workload) -> Callable[[], object]:
    return _loopwright(work, [])


def loopwright_fused(work: Workload) -> Callable[[], object]:
    """The loop inside XLA; not for convolutions, which XLA runs slowly there on a CPU."""
    return _loopwright(work, [], plan="fused")


def progress_share(work: Workload) -> float:
    """The part of the time of a run that goes into its progress bar.

    Measured inside one run: the difference of two runs would drown in the noise of the machine.
    """
    bar = console(1, output=Console(file=io.StringIO(), force_terminal=True, width=100))
    drawing = 0.0

    def timed(event: lw.Event) -> None:
        nonlocal drawing
        began = time.perf_counter()
        bar(event)
        drawing += time.perf_counter() - began

    train = _loopwright(work, [timed])
    train()
    began, drawing = time.perf_counter(), 0.0
    train()
    return drawing / (time.perf_counter() - began)


def _loopwright(work: Workload, sinks: list[lw.Sink], plan: str = "graph") -> Callable[[], object]:
    task = lw.Supervised(work.make_model(), work.loss, "adam")
    trainer = lw.Trainer(task, plan=plan, sinks=sinks)
    return lambda: trainer.fit(
        work.x, work.y, batch_size=work.batch_size, epochs=work.epochs, verbose=0
    )


CONTENDERS: dict[str, Contender] = {
    "Keras fit": keras_fit(1),
    "Keras fit, steps_per_execution=32": keras_fit(32),
    "hand loop": hand_loop,
    "Loopwright": loopwright,
    'Loopwright, plan="fused"': loopwright_fused,
}
