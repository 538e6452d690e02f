"""Failures: errors of TensorFlow while a step runs, turned into one message about the step.

A kernel of TensorFlow writes one line, the same in eager steps, graphs and XLA. Around it stand
stack traces that differ: they are replaced by the person's line that made the operation.
"""

import contextlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf

from loopwright.compat import tensorflow_internals
from loopwright.compat.error_messages import place_in, place_of
from loopwright.compat.failure_texts import error_for, failure_in
from loopwright.compat.tracebacks import hides_frames
from loopwright.errors import LoopwrightError

_MOST_SHOWN = 300
"""Characters of TensorFlow's own line: it may list every label of a batch."""


@contextlib.contextmanager
def explained(
    title: str,
    graphs: Callable[[], Iterable[Any]],
    where: Callable[[], str] = lambda: "",
) -> Iterator[None]:
    """Turn an error of TensorFlow inside a step into a `StepError`; errors of the data pass.

    `graphs` are those that the step was traced into, `where` names the step and its batch.
    """
    try:
        yield
    except (LoopwrightError, *_NOT_OF_STEPS):
        raise
    except (tf.errors.OpError, ValueError) as error:
        text = plain_text(error)
        failure = failure_in(reason_in(text), text)
        is_of_kernel = isinstance(error, tf.errors.OpError)
        if is_of_data(error) or not (is_of_kernel or failure.kind == "shapes"):
            raise
        place = place_in(error) or place_of_node(node_in(text), graphs())
        raise error_for(failure, title, place, where()) from cause(error)


_NOT_OF_STEPS = (tf.errors.DataLossError, tf.errors.OutOfRangeError, tf.errors.CancelledError)


def is_of_data(error: Exception) -> bool:
    """Return whether an error came from reading the next batch."""
    return "IteratorGetNext" in str(error)


def cause(error: Exception) -> Exception:
    """Return the error as it is shown above ours: its own line, without stacks."""
    if not isinstance(error, tf.errors.OpError) or not hides_frames():
        return error
    text = reason_in(plain_text(error))
    short = text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
    shown = _of_kind(type(error), short, error)
    shown.__traceback__ = error.__traceback__
    return shown


def _of_kind(kind: Any, text: str, error: Any) -> tf.errors.OpError:
    try:
        return kind(error.node_def, error.op, text)
    except TypeError:  # a class that takes its code as well
        return kind(error.node_def, error.op, text, error.error_code)


def plain_text(error: BaseException) -> str:
    """Return the text of an error without the colours that Keras puts into it."""
    return re.sub(r"\x1b\[\d*m", "", str(error))


_AROUND = re.compile(
    r"Graph execution error:|Detected at node|File \"|<stack traces unavailable>|\[\["
    r"|Stack trace for op|tf2xla conversion failed|Exception encountered when calling"
    r"|Arguments received by|• |\d+ root error"
)
_BEFORE = re.compile(
    r"^(?:\(\d+\) [A-Z_]+: +)?(?:\{\{function_node [^}]*\}\} *)*"
    r"(?:Error in user-defined function passed to .*?: [\w:\[\]]+: )?"
)
_AFTER = re.compile(r"\s*\[Op:\w+\].*$")


def reason_in(text: str) -> str:
    r"""Return the line that a kernel wrote.

    >>> reason_in("Graph execution error:\n\n 7 is too much\n\t [[{{node x}}]] [Op:f]")
    '7 is too much'
    """
    lines = (line.strip() for line in text.splitlines())
    own = (_AFTER.sub("", _BEFORE.sub("", line)) for line in lines if not _AROUND.match(line))
    return next(filter(None, own), "an error without a text")


def node_in(text: str) -> str:
    """Return the name of the operation that failed, inside the function that it belongs to."""
    named = re.search(r"\{\{node ([^}]+)\}\}|Detected at node (\S+) defined", text)
    return (named[1] or named[2]) if named else ""


def place_of_node(node: str, graphs: Iterable[Any], place: Callable[[Any], str] = place_of) -> str:
    """Return the line that made an operation, by its name in one of these graphs."""
    operations = {op.name: op for graph in graphs for op in _operations(graph, set())}
    for name in _names(node):
        found = place(operations[name]) if name in operations else ""
        if found:
            return found
    return ""


def _names(node: str) -> Iterator[str]:
    """Names that an operation may have in its own graph, a gradient's by the one it is of."""
    if "gradient_tape/" in node:
        parts = node.replace("gradient_tape/", "").split("/")
        yield from ("/".join(parts[:end]) for end in range(len(parts), 0, -1))
    yield node
    parts = node.split("/")
    yield from ("/".join(parts[begin:]) for begin in range(1, len(parts)))


def _operations(graph: Any, seen: set[int]) -> Iterator[Any]:
    if id(graph) in seen:
        return
    seen.add(id(graph))
    operations = graph.get_operations()
    yield from operations
    inner = itertools.chain.from_iterable(map(tensorflow_internals.inner_graphs, operations))
    for body in inner:
        yield from _operations(body, seen)
