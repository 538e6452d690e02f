"""Names in traced functions: the same in every process, and for every equal model.

TensorFlow numbers functions, and what they capture, by what else a process has made. Keras numbers
its layers: `dense`, `dense_1`. Both are in a graph, and the name of its function is in the key of
a compiled XLA program: without numbers of their own, no two models have a program in common.
"""

import contextlib
import hashlib
import itertools
import re
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from loopwright.compat import internals
from loopwright.compat.internals import uses
from loopwright.compat.patches import Function, replaced

_counting = internals.module("tensorflow.python.pywrap_tfe")
_scopes = internals.module("keras.src.backend.tensorflow.core")
_ops = internals.module("tensorflow.python.framework.ops")


@uses(
    "tensorflow.python.pywrap_tfe.TFE_Py_UID",
    "keras.src.backend.tensorflow.core.name_scope",
    if_moved="XLA may compile again in every process and for every model",
)
@contextlib.contextmanager
def named(program: str, number: int = 1) -> Iterator[None]:
    """Give the functions traced in this scope names that follow from a program and a number.

    >>> def name():
    ...     traced = tf.function(lambda value: value + 1)
    ...     return traced.get_concrete_function(tf.TensorSpec(())).name
    >>> with named("a program"):
    ...     first = name()
    >>> with named("a program"):
    ...     second = name()
    >>> first == second
    True
    """
    if not hasattr(_counting, "TFE_Py_UID"):
        yield  # the cache does not find the program unless processes do exactly the same
        return
    key = hashlib.sha256(f"{program} {number}".encode()).hexdigest()
    first = int(key[:15], 16)
    numbers, scope = itertools.count(first), getattr(_scopes, "name_scope", None)
    with contextlib.ExitStack() as stack:
        stack.enter_context(
            replaced(_counting, "TFE_Py_UID", lambda original: lambda: next(numbers))
        )
        if scope is not None:
            stack.enter_context(replaced(scope, "__init__", _without_number))
        try:
            yield
        finally:
            _forget_gradients(range(first, next(numbers)))


def _without_number(original: Function) -> Function:
    def init(self: Any, name: str, **kwargs: Any) -> None:
        original(self, name, **kwargs)
        # Only in the graph, which numbers repeated names itself: paths of variables stay.
        self._tf_name_scope = tf.name_scope(re.sub(r"_\d+$", "", name))

    return init


@uses("tensorflow.python.framework.ops.gradient_registry._registry", if_moved="slower")
def _forget_gradients(numbers: range) -> None:
    """Make the names of custom gradients free again: no one differentiates a traced loop."""
    gradients = getattr(getattr(_ops, "gradient_registry", None), "_registry", {})
    for name in list(gradients):
        number = re.search(r"-(\d{6,})$", name)
        if number is not None and int(number[1]) in numbers:
            del gradients[name]


def content(concrete: Any) -> str:
    """Return a digest of a traced function with all that it calls, constants and names included."""
    graph = concrete.graph.as_graph_def().SerializeToString(deterministic=True)
    return hashlib.sha256(graph).hexdigest()


def is_taken(error: Exception) -> bool:
    """Return whether a trace failed because the name of a function or gradient is in use."""
    is_name = isinstance(error, tf.errors.InvalidArgumentError | KeyError)
    return is_name and bool(re.search("duplicate function|Registering two gradient", str(error)))
