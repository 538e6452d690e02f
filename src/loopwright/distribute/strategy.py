"""The strategy that a process trains under, by name or by its environment.

Workers on one machine accept connections of this machine only (decision 0017).
"""

import contextlib
import ctypes
import functools
import ipaddress
import os
import socket
import struct
import sys
from collections.abc import Iterator, Sequence

import tensorflow as tf

from loopwright.compat import messages, tensorflow_internals
from loopwright.distribute import cluster
from loopwright.errors import ConfigurationError

_ATTACH_FILTER = 26  # SO_ATTACH_FILTER, which the socket module does not name
_NETWORK_HEADER = 0xFFF00000  # SKF_NET_OFF: the offset of the IP header
_ACCEPT, _DROP = 0xFFFFFFFF, 0
_LOAD_BYTE, _LOAD_WORD, _IF_EQUAL, _SHIFT_RIGHT, _RETURN = 0x30, 0x20, 0x15, 0x74, 0x06

# Operation, instructions to skip if true, to skip if false, value.
_FILTER: Sequence[tuple[int, int, int, int]] = (
    (_LOAD_BYTE, 0, 0, _NETWORK_HEADER),
    (_SHIFT_RIGHT, 0, 0, 4),
    (_IF_EQUAL, 0, 2, 4),  # IPv4: the source address begins with 127
    (_LOAD_BYTE, 0, 0, _NETWORK_HEADER + 12),
    (_IF_EQUAL, 8, 9, 127),
    (_LOAD_WORD, 0, 0, _NETWORK_HEADER + 8),  # IPv6: the source address is ::1
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


def are_loopback(addresses: Sequence[str]) -> bool:
    """Return whether all addresses are of this machine.

    >>> are_loopback(["127.0.0.1:20000", "localhost:20001"])
    True
    >>> are_loopback(["127.0.0.1:20000", "node9:20000"])
    False
    """
    hosts = {address.rpartition(":")[0].strip("[]") for address in addresses} - {"localhost"}
    try:
        return all(ipaddress.ip_address(host).is_loopback for host in hosts)
    except ValueError:  # a name
        return False


def accept_only_loopback(port: int) -> bool:
    """Drop packets of other machines to a port of this process; return whether that worked."""
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
    """Yield copies of this process' sockets that listen on a port."""
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
    """Return the strategy itself, or the one of this name.

    `"auto"` is `"multi_worker"` if `TF_CONFIG` or SLURM name other workers, `"mirrored"` if this
    machine has several GPUs, and `"none"` if not.
    """
    if not isinstance(asked, str):
        return asked or tf.distribute.get_strategy()
    if asked not in WORDS:
        raise ConfigurationError(
            f"Unknown strategy {asked!r}.",
            expected=f"{' or '.join(map(repr, WORDS))}, or a tf.distribute.Strategy",
            received=repr(asked),
            do="leave it out to train on one device",
        )
    together = cluster.found(os.environ) if asked in ("auto", "multi_worker") else None
    if together is not None:
        return _multi_worker(tuple(together.jobs.items()), together.job, together.task)
    if asked == "multi_worker":
        raise ConfigurationError(
            "No other workers found.",
            expected="TF_CONFIG or SLURM variables that name at least two workers",
            received="neither",
            do='start it with loopwright launch --workers 2, or use strategy="auto"',
        )
    if asked == "mirrored" or (asked == "auto" and _gpus() > 1):
        return tensorflow_internals.mirrored_strategy()
    return tf.distribute.get_strategy()


@functools.cache
def _multi_worker(
    jobs: tuple[tuple[str, tuple[str, ...]], ...], job: str, task: int
) -> tf.distribute.Strategy:
    """Return the strategy of this process: TensorFlow connects the workers once."""
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
            "It is too late to connect to other workers.",
            expected="a strategy created before the first tensor or variable",
            received="TensorFlow is already in use",
            do="create the trainer first, with a function that creates the task: "
            'Trainer(make_task, strategy="auto"); load data after it',
        ) from None
    if are_loopback([address for _, each in jobs for address in each]):
        accept_only_loopback(int(dict(jobs)[job][task].rpartition(":")[2]))
    return strategy


def _gpus() -> int:
    return len(tf.config.list_physical_devices("GPU"))
