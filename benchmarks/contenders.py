"""The contenders in TensorFlow: Keras `fit`, a hand-written loop, Loopwright."""

import functools
import io
import os
import time
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from rich.console import Console

import loopwright as lw
from benchmarks.data import HEAVY, matmul
from benchmarks.measuring import Contender, Ready
from benchmarks.outcomes import HAND, KERAS, KERAS_BEST, LOOPWRIGHT, LOOPWRIGHT_BEST, MATMUL
from benchmarks.workloads import WORKLOADS, Workload
from loopwright.sinks.terminal import console


def versions() -> dict[str, str]:
    """Return the versions of what is measured here."""
    return {"TensorFlow": tf.__version__, "Keras": keras.__version__}


def contenders(key: str, settle_seconds: float) -> list[Contender]:
    """Return every contender for this workload."""
    if key == "matmul":
        return [Contender(MATMUL, _matmul, "TensorFlow")]
    work = WORKLOADS[key]()
    return [
        keras_default(work),
        *keras_settings(work),
        Contender(HAND, functools.partial(_hand, work, xla=False), "graph"),
        Contender(HAND, functools.partial(_hand, work, xla=True), "xla"),
        loopwright_default(work, settle_seconds),
        *loopwright_plans(work),
    ]


def keras_default(work: Workload) -> Contender:
    """Return Keras `fit` with default settings."""
    return Contender(KERAS, functools.partial(_keras, work))


def keras_settings(work: Workload) -> list[Contender]:
    """Return Keras `fit` with the two settings that can make it faster."""
    # Heavy steps gain nothing by 32 of them at a time; light ones lose nothing.
    steps = 1 if work.key in HEAVY else 32
    return [
        Contender(
            KERAS_BEST,
            functools.partial(_keras, work, steps_per_execution=steps, jit_compile=xla),
            f"{steps} {'xla' if xla else 'graph'}",
        )
        for xla in ((True,) if work.key in HEAVY else (False, True))
    ]


def loopwright_default(work: Workload, settle_seconds: float) -> Contender:
    """Return Loopwright with default settings, after it had time to choose its plan."""
    return Contender(LOOPWRIGHT, functools.partial(_settled_loopwright, work, settle_seconds))


def loopwright_plans(work: Workload) -> list[Contender]:
    """Return Loopwright with each fixed plan that works."""
    return [
        Contender(LOOPWRIGHT_BEST, functools.partial(_loopwright, work, plan), plan)
        for plan in work.plans
    ]


def trainer_of(
    work: Workload, plan: str | None = None, sinks: Sequence[lw.Sink] = ()
) -> lw.Trainer:
    """Return a trainer with this plan, or with the default."""
    if plan is None:
        return lw.Trainer(work.task(), sinks=sinks)
    return lw.Trainer(work.task(), plan=plan, sinks=sinks)


def short_word(plan: lw.Plan) -> str:
    """Return a short name: `fused`, or `xla stream` if the feed is not the default one."""
    word = plan.loop if plan.loop == "fused" else plan.step
    return word if plan.feed in (None, "resident") else f"{word} {plan.feed}"


def progress_share(work: Workload, plan: str, epochs: int) -> float:
    """Return the share of a run's time that the progress bar takes.

    Measured inside one run: the difference of two runs would drown in the noise of the machine.
    """
    bar = console(1, output=Console(file=io.StringIO(), force_terminal=True, width=100))
    drawing_seconds = 0.0

    def timed(event: lw.Event) -> None:
        nonlocal drawing_seconds
        began = time.perf_counter()
        bar(event)
        drawing_seconds += time.perf_counter() - began

    train = _loopwright(work, plan, [timed]).train
    train(1)
    began, drawing_seconds = time.perf_counter(), 0.0
    train(epochs)
    return drawing_seconds / (time.perf_counter() - began)


def _keras(work: Workload, **options: Any) -> Ready:
    model, given = work.keras_model(**options), work.given()
    return Ready(lambda epochs: model.fit(**given, epochs=epochs, verbose=0))


def _hand(work: Workload, *, xla: bool) -> Ready:
    """`for x, y in dataset: loss = train_step(x, y)`, with the step a tf.function."""
    dataset = work.pipeline()
    train_step = tf.function(work.hand_step(), reduce_retracing=True, jit_compile=xla)

    def train(epochs: int) -> None:
        for _ in range(epochs):
            total = 0.0
            for batch in dataset:
                total += float(train_step(*batch))

    return Ready(train)


def _loopwright(work: Workload, plan: str, sinks: Sequence[lw.Sink] = ()) -> Ready:
    trainer, given = trainer_of(work, plan, sinks), work.given()
    return Ready(lambda epochs: trainer.fit(**given, epochs=epochs, verbose=0))


def _settled_loopwright(work: Workload, settle_seconds: float) -> Ready:
    trainer, given = trainer_of(work), work.given()
    trainer.fit(**given, until=f"{settle_seconds:.3f} seconds", verbose=0)
    return Ready(
        lambda epochs: trainer.fit(**given, epochs=epochs, verbose=0),
        lambda: {"setting": _choice(trainer.plan), "notes": trainer.plan_history.notes},
    )


def _choice(plan: lw.Plan) -> str:
    """Return the plan, and the process settings that whoever started this process chose."""
    chosen = {"TF_ENABLE_ONEDNN_OPTS": "oneDNN", "TF_NUM_INTRAOP_THREADS": "1 thread"}
    words = [word for variable, word in chosen.items() if os.environ.get(variable) == "1"]
    return ", ".join([short_word(plan), *words])


def _matmul() -> Ready:
    matrix = tf.constant(matmul().x[0])

    def train(epochs: int) -> None:
        for _ in range(epochs):
            tf.matmul(matrix, matrix).numpy()

    return Ready(train)
