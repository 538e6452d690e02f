"""Joining: the strategy that a process trains under, by a word or by what its environment says."""

import functools
import os
from typing import Any

import tensorflow as tf

from loopwright.compat import tensorflow_internals
from loopwright.distribute import cluster, loopback
from loopwright.errors import ConfigurationError, message

WORDS = ("auto", "none", "mirrored", "multi_worker")


def strategy_for(asked: "tf.distribute.Strategy | str | None") -> tf.distribute.Strategy:
    """The strategy itself, or the one that a word stands for.

    `"auto"` is `"multi_worker"` where `TF_CONFIG` or SLURM tell of other workers, `"mirrored"`
    where this machine has several GPUs, and else `"none"`.
    """
    if not isinstance(asked, str):
        return asked or tf.distribute.get_strategy()
    if asked not in WORDS:
        raise ConfigurationError(
            message(
                "There is no strategy of this name.",
                expected=f"{' or '.join(map(repr, WORDS))}, or a tf.distribute.Strategy",
                received=repr(asked),
                do="leave it out to train on one device",
            )
        )
    together = cluster.found(os.environ) if asked in ("auto", "multi_worker") else None
    if together is not None:
        return _multi_worker(_key(together))
    if asked == "multi_worker":
        raise ConfigurationError(
            message(
                "Nobody is there to train together with.",
                expected="TF_CONFIG or the variables of SLURM, with two workers or more",
                received="neither",
                do='start it with loopwright launch --workers 2, or use strategy="auto"',
            )
        )
    if asked == "mirrored" or (asked == "auto" and _gpus() > 1):
        return tensorflow_internals.mirrored_strategy()
    return tf.distribute.get_strategy()


def _key(together: cluster.Cluster) -> tuple[Any, ...]:
    return tuple(together.jobs.items()), together.job, together.task


@functools.cache
def _multi_worker(key: tuple[Any, ...]) -> tf.distribute.Strategy:
    """One for the process: TensorFlow connects the workers once."""
    jobs, job, task = key
    gpus = _gpus()
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({name: list(addresses) for name, addresses in jobs}),
        task_type=job,
        task_id=task,
        num_accelerators={"GPU": gpus} if gpus else {},
        rpc_layer="grpc",
    )
    try:
        strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver)
    except RuntimeError as error:
        if "program startup" not in str(error):
            raise
        raise ConfigurationError(
            message(
                "It is too late to connect with other workers.",
                expected="a strategy made before TensorFlow makes its first tensor or variable",
                received="TensorFlow in use already",
                do="make the trainer first, with a function that makes the task: "
                'Trainer(make_task, strategy="auto"); load data after it',
            )
        ) from None
    if loopback.are_of_this_machine([address for _, each in jobs for address in each]):
        loopback.listen_to_this_machine(int(dict(jobs)[job][task].rpartition(":")[2]))
    return strategy


def _gpus() -> int:
    return len(tf.config.list_physical_devices("GPU"))
