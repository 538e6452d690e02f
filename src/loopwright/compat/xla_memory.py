"""Give the memory of XLA programs back that no trainer uses any more.

TensorFlow keeps every program that XLA has compiled until the process ends, and finds it by the
name of its function, which no other function has. A process that builds and fits a model many
times, as cross-validation does, would grow with each fit.
"""

import functools
import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import Any, final

import tensorflow as tf

_PROGRAMS_BETWEEN_LOOKS = 12
_NAME = "xla_device_compiler"
_TYPE = b"N10tensorflow14DeviceCompilerIN3xla15LocalExecutableENS1_11LocalClientEEE"
"""The C++ type of TensorFlow's cache, as its compiler writes it."""
_WORD = (1 << 64) - 1


@final
class _Programs:
    """Counts the functions that XLA compiles, and those of them that still exist."""

    def __init__(self) -> None:
        self._live = weakref.WeakSet[Any]()
        self._since_look = 0

    def add(self, function: Any) -> None:
        """Note a function that XLA will compile."""
        self._since_look += 1
        self._live.add(function)

    def give_back(self) -> None:
        """Have TensorFlow drop its programs if there are many, and the function of none exists.

        For a moment at which nothing is traced or compiled.
        """
        if self._since_look < _PROGRAMS_BETWEEN_LOOKS:
            return
        self._since_look = 0
        gc.collect()  # models and trainers are cycles
        if not self._live and not _others_run_tensorflow():
            forget_programs()


PROGRAMS = _Programs()
"""The programs of this process."""


def forget_programs(*, must_exist: bool = False) -> None:
    """Have TensorFlow drop the XLA programs of its CPUs; a function compiles again if called.

    No other thread may run one of these programs meanwhile: the cache owns them.
    """
    for device in tf.config.list_logical_devices("CPU"):
        with tf.init_scope(), tf.device(device.name):
            _deleting(tf.constant(0).device, must_exist)()


@functools.cache
def _deleting(device: str, must_exist: bool) -> Any:
    """Return a function that deletes a resource by its name and type: Python has no handle.

    `device` is a full name, with the job and the task.
    """
    graph, kind = tf.compat.v1.GraphDef(), tf.resource.as_datatype_enum
    handle = graph.node.add(name="handle", op="Const")
    handle.attr["dtype"].type = kind
    value = handle.attr["value"].tensor
    value.dtype = kind
    value.tensor_shape.SetInParent()
    named = {"device": device, "container": "localhost", "name": _NAME}
    value.resource_handle_val.add(hash_code=_hash(_TYPE), **named)
    delete = graph.node.add(name="delete", op="DestroyResourceOp", input=["handle"])
    delete.attr["ignore_lookup_error"].b = not must_exist

    def imported() -> None:
        tf.graph_util.import_graph_def(graph, name="")

    wrapped = tf.compat.v1.wrap_function(imported, [])
    return wrapped.prune([], wrapped.graph.get_operation_by_name("delete"))


def _hash(name: bytes) -> int:
    """Return TensorFlow's hash of a C++ type's name, by which it finds resources (Hash64)."""
    factor, shift = 0xC6A4A7935BD1E995, 47
    found = 0xDECAFCAFFE ^ (len(name) * factor & _WORD)
    whole = len(name) // 8 * 8
    for at in range(0, whole, 8):
        part = int.from_bytes(name[at : at + 8], "little") * factor & _WORD
        part = (part ^ part >> shift) * factor & _WORD
        found = (found ^ part) * factor & _WORD
    if name[whole:]:
        found = (found ^ int.from_bytes(name[whole:], "little")) * factor & _WORD
    found = (found ^ found >> shift) * factor & _WORD
    return found ^ found >> shift


def _others_run_tensorflow() -> bool:
    """Return whether another thread of Python is inside of TensorFlow or Keras."""
    own = threading.get_ident()
    stacks = (frame for thread, frame in sys._current_frames().items() if thread != own)
    names = (each.f_globals.get("__name__", "") for top in stacks for each in _frames(top))
    return any(name.partition(".")[0] in ("tensorflow", "keras") for name in names)


def _frames(top: FrameType | None) -> Iterator[FrameType]:
    while top is not None:
        yield top
        top = top.f_back
