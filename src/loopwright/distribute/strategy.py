"""Joining: the strategy that a process trains under, by a word or by what its environment says."""

import contextlib
import ctypes
import functools
import ipaddress
import os
import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from loopwright.compat import messages, tensorflow_internals
from loopwright.distribute import cluster
from loopwright.errors import ConfigurationError, message

_ATTACH_FILTER = 26  # SO_ATTACH_FILTER, which the socket module does not name
_NETWORK_HEADER = 0xFFF00000  # SKF_NET_OFF: a packet's header of IP stands before this
_ACCEPT, _DROP = 0xFFFFFFFF, 0
_LOAD_BYTE, _LOAD_WORD, _IF_EQUAL, _SHIFT_RIGHT, _RETURN = 0x30, 0x20, 0x15, 0x74, 0x06

# Operation, how many to pass over if it is so and if not, value.
_FILTER: Sequence[tuple[int, int, int, int]] = (
    (_LOAD_BYTE, 0, 0, _NETWORK_HEADER),
    (_SHIFT_RIGHT, 0, 0, 4),
    (_IF_EQUAL, 0, 2, 4),  # IP version 4: the source begins with 127
    (_LOAD_BYTE, 0, 0, _NETWORK_HEADER + 12),
    (_IF_EQUAL, 8, 9, 127),
    (_LOAD_WORD, 0, 0, _NETWORK_HEADER + 8),  # version 6: the source is ::1
    (_IF_EQUAL, 0, 7, 0),
    (_LOAD_WORD, 0, 0, _NETWORK_HEADER + 12),
    (_IF_EQUAL, 0, 5, 0),
    (_LOAD_WORD, 0, 0, _NETWORK_HEADER + 16),
    (_IF_EQUAL, 0, 3, 0),
    (_LOAD_WORD, 0, 0, _NETWORK_HEADER + 20),
    (_IF_EQUAL, 0, 1, 1),
    (_RETURN, 0, 0, _ACCEPT),
    (_RETURN, 0, 0, _DROP),
)


def are_of_this_machine(addresses: Sequence[str]) -> bool:
    """Whether nobody else can be meant by these addresses.

    >>> are_of_this_machine(["127.0.0.1:20000", "localhost:20001"])
    True
    >>> are_of_this_machine(["127.0.0.1:20000", "node9:20000"])
    False
    """
    return all(map(_is_loopback, addresses))


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def listen_to_this_machine(port: int) -> bool:
    """Drops what other machines send to a port that this process listens on; whether it could."""
    if not sys.platform.startswith("linux"):
        return False
    code = b"".join(struct.pack("HBBI", *line) for line in _FILTER)
    held = ctypes.create_string_buffer(code)
    program = struct.pack("HP", len(_FILTER), ctypes.addressof(held))
    listening = list(_listening(port))
    for each in listening:
        with each:
            each.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)
    return bool(listening)


def _listening(port: int) -> Iterator[socket.socket]:
    """Copies of this process' listening sockets of a port."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            found = socket.socket(fileno=os.dup(int(name)))
            is_listening = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if is_listening and found.getsockname()[1] == port:
                yield found
            else:
                found.close()


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
        if not messages.is_too_late_to_connect(error):
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
    if are_of_this_machine([address for _, each in jobs for address in each]):
        listen_to_this_machine(int(dict(jobs)[job][task].rpartition(":")[2]))
    return strategy


def _gpus() -> int:
    return len(tf.config.list_physical_devices("GPU"))
