"""One name for equal programs: however many trainers run one, XLA compiles it once.

TensorFlow finds a compiled XLA program by the name of its function, and keeps it until the process
ends. It numbers functions, and what they capture, by what else the process has made; Keras numbers
its layers. So each fit of a cross-validation would compile its step again, and leave more than ten
megabytes behind. See decision 0027.
"""

import contextlib
import hashlib
import itertools
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from loopwright.compat import internals
from loopwright.compat.internals import Function, replaced, uses

_counting = internals.module("tensorflow.python.pywrap_tfe")
_scopes = internals.module("keras.src.backend.tensorflow.core")
_lock = threading.Lock()
_digests: dict[str, list[str | None]] = {}
"""By program, the digest of what was traced under each number; None: not to be shared."""


def trace_by_name(program: str, trace: Callable[[], Any], *, is_shared: bool) -> Any:
    """Trace a function under the name of an equal one of this process, or of its own.

    `program` describes it; whether it equals an earlier one is decided by all of its content.
    `trace` is called again where it does not.
    """
    known = _digests.setdefault(program, [])
    shared = max((number for number, digest in enumerate(known) if digest), default=None)
    if is_shared and shared is not None:
        try:
            with named(program, shared):
                concrete = trace()
            if _digest(concrete) == known[shared]:
                return concrete
        except (tf.errors.InvalidArgumentError, KeyError) as error:
            if not re.search("duplicate function|Registering two gradient", str(error)):
                raise  # not because the name of the function, or of its gradient, is in use
    with _lock:
        number = len(known)
        known.append(None)
    with named(program, number):
        concrete = trace()
    if is_shared:
        known[number] = _digest(concrete)
    return concrete


@uses(
    "tensorflow.python.pywrap_tfe.TFE_Py_UID",
    "keras.src.backend.tensorflow.core.name_scope",
    if_moved="XLA may compile again in every process and for every model",
)
@contextlib.contextmanager
def named(program: str, number: int) -> Iterator[None]:
    """Give the functions traced in this scope names that follow from a program and a number.

    >>> def name():
    ...     traced = tf.function(lambda value: value + 1)
    ...     return traced.get_concrete_function(tf.TensorSpec(())).name
    >>> with named("a program", 0):
    ...     first = name()
    >>> with named("a program", 0):
    ...     second = name()
    >>> first == second
    True
    """
    if not hasattr(_counting, "TFE_Py_UID"):
        yield
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
    gradients = internals.find("tensorflow.python.framework.ops.gradient_registry._registry") or {}
    for name in list(gradients):
        number = re.search(r"-(\d{6,})$", name)
        if number is not None and int(number[1]) in numbers:
            del gradients[name]


def _digest(concrete: Any) -> str:
    """Return a digest of a traced function with all that it calls, constants and names included."""
    graph = concrete.graph.as_graph_def().SerializeToString(deterministic=True)
    return hashlib.sha256(graph).hexdigest()
