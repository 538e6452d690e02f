"""Errors of TensorFlow while a step runs, explained in one message about the step.

A kernel of TensorFlow writes one line, the same in eager steps, graphs and XLA. Around it stand
stack traces that differ: they are replaced by the user's line that created the operation.
"""

import contextlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import tensorflow as tf

from loopwright.compat import out_of_memory, tensorflow_internals
from loopwright.compat.error_messages import place_in, place_of, plain_text
from loopwright.compat.tracebacks import hides_frames
from loopwright.errors import ConfigurationError, LoopwrightError, StepError, message

Kind = Literal[
    "label", "index", "assertion", "numerics", "shapes", "memory", "python", "xla", "other"
]

_EAGER = 'with plan="eager" print and breakpoint() work in that line'


@dataclass(frozen=True)
class Failure:
    """What went wrong in a step, apart from where."""

    kind: Kind
    text: str = ""
    """The value, the message of an assertion, or TensorFlow's own line."""
    value: int = 0
    bound: int = 0
    """How many classes or rows there are, or examples in a batch that does not fit in memory."""


def error_for(failure: Failure, title: str, place: str, where: str) -> LoopwrightError:
    """Return the error for a failure; `place` is a line of code, `where` a step and its batch.

    >>> print(error_for(Failure("label", value=7, bound=5), "Net.train_step", "", "step 3"))
    Net.train_step has a label outside the classes of its loss.
      expected: labels from 0 to 4, since the predictions have 5 classes
      received: label 7, in step 3
      do: check the labels; for label 7 the last layer needs at least 8 units
    """
    what, expected, received, do = _ROWS[failure.kind]
    value, bound = failure.value, failure.bound
    size = f"batches of {bound:,} examples" if bound else "the batches"
    received = failure.text or received.format(value=value)
    text = message(
        f"{what.format(title=title)}{place}.",
        expected=expected.format(last=bound - 1, bound=bound, size=size),
        received=f"{received}, in {where}" if where and failure.kind != "xla" else received,
        do=do if isinstance(do, str) else do(value, bound),
    )
    return ConfigurationError(text) if failure.kind == "xla" else StepError(text)


def failure_in(reason: str, text: str) -> Failure:
    """Return the failure that a line of TensorFlow describes, given the whole text around it."""
    allocation = out_of_memory.allocation_in(reason)
    if allocation is not None:
        return Failure("memory", allocation)
    for kind, pattern in _PATTERNS:
        found = re.search(pattern, reason)
        if not found:
            continue
        match kind:
            case "label" | "index":
                return Failure(kind, value=int(found[1]), bound=int(found[2]))
            case "xla":
                name = found[1] or found[2]
                return Failure(kind, f"the operation {name}" if name else reason)
            case "numerics":
                return Failure(kind, found[1] or "")
            case "shapes":
                shapes = [_shape(found["a"]), _shape(found["b"])]
                if reason.startswith("Incompatible"):
                    shapes.sort()  # TensorFlow's optimizer swaps the operands of sums
                return Failure(kind, " and ".join(shapes))
            case _:
                return Failure(kind, reason)
    nested = re.search(_NESTED_INDEX, reason)
    if nested:
        places = zip(_numbers(nested[1]), _numbers(nested[2]), strict=False)
        value, bound = next(((v, n) for v, n in places if not 0 <= v < n), (0, 0))
        return Failure("index", value=value, bound=bound)
    if _ASSERTION.search(text):
        return Failure("assertion", _asserted(text))
    if "Traceback (most recent call last)" in text and re.match(r"[\w.]+(: |$)", reason):
        return Failure("python", reason)
    return Failure("other", reason)


def asserted(first: str) -> str:
    """Return the first thing that an assertion was told to show, if the user wrote it."""
    first = first.strip().rstrip(".")
    return "" if first.startswith("Condition x ") or re.fullmatch(r"[-+\d.e ]*", first) else first


_A, _B = (rf"(?P<{name}>[\[(][\d, ]*[\])])" for name in "ab")
_PATTERNS: tuple[tuple[Kind, str], ...] = (
    ("label", r"label value of (-?\d+) which is outside the valid range of \[0, (\d+)\)"),
    ("index", r"indices(?:\[[\d,]*\])? = (-?\d+) is not in \[0, (\d+)\)"),
    ("numerics", r"(?:(.*?) ?: )?Tensor had .*(?:NaN|Inf)"),
    ("xla", r"unsupported operations .*? on XLA_\w+: (\w+)|with op (\w+) must be a compile-time"),
    ("xla", r"not compilable()()"),
    ("shapes", rf"Incompatible shapes: {_A} vs\.? {_B}"),
    ("shapes", rf"Matrix size-incompatible: In\[0\]: {_A}, In\[1\]: {_B}"),
    ("shapes", rf"logits shape {_A} and labels shape {_B}"),
    # Said in Python where shapes are known: in an eager step.
    ("shapes", rf"labels\.shape={_B} and logits\.shape={_A}"),
)
_NESTED_INDEX = r"indices.*? = \[([-\d, ]+)\] does not index into param shape \[([\d,]+)\]"
_ASSERTION = re.compile(
    r"assertion failed:|^Condition x .* did not hold|to be true\. Summarized", re.M
)


def _asserted(text: str) -> str:
    shown = re.search(r"assertion failed: \[(.*?)\](?= \[|\s*$)", text, re.M | re.S)
    if shown:
        return asserted(shown[1])
    shown = re.search(r"Summarized data: (?:b'(.*?)'|(.*))$", text, re.M)
    if shown:
        return asserted(shown[1] or shown[2] or "")
    return asserted(text.partition("\nCondition x ")[0])


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _shape(text: str) -> str:
    """Return `[8,5]` as Python writes a shape."""
    sizes = [size.strip() for size in text.strip("[]()").split(",") if size.strip()]
    return f"({sizes[0]},)" if len(sizes) == 1 else f"({', '.join(sizes)})"


# -- words -----------------------------------------------------------------------------------------


def _label_advice(value: int, classes: int) -> str:
    if value < 0:
        return (
            "give every example a class from 0 on; to leave examples out, use "
            f"SparseCategoricalCrossentropy(ignore_class={value}), or sample weights of 0"
        )
    if value == classes:
        return (
            "number the classes from 0 (subtract 1 if they begin at 1), or give the last layer "
            f"{classes + 1} units"
        )
    return f"check the labels; for label {value} the last layer needs at least {value + 1} units"


def _memory_advice(_: int, examples: int) -> str:
    if examples < 2:
        return "use smaller batches, a smaller model or shorter sequences"
    return (
        f"lower batch_size: {examples // 2:,} instead of {examples:,}; to keep the size of "
        "updates, accumulate: gradient_accumulation_steps=2 of the optimizer"
    )


_Advice = Callable[[int, int], str]
_ROWS: dict[Kind, tuple[str, str, str, str | _Advice]] = {
    "label": (
        "{title} has a label outside the classes of its loss",
        "labels from 0 to {last}, since the predictions have {bound} classes",
        "label {value}",
        _label_advice,
    ),
    "index": (
        "{title} looks up an index that is out of range",
        "indices from 0 to {last}, since the table has {bound} rows",
        "index {value}",
        "check the indices; an Embedding needs an input_dim above the largest index, and "
        "unknown or padded entries need an index of their own",
    ),
    "numerics": (
        "A check in {title} found NaN or infinity",
        "finite numbers",
        "NaN or infinity",
        f"look at the batch, lower the learning rate or clip gradients; {_EAGER}",
    ),
    "memory": (
        "{title} ran out of memory",
        "memory for everything that a step makes of {size}",
        "",
        _memory_advice,
    ),
    "assertion": (
        "An assertion in {title} failed",
        "a condition that holds for every batch",
        "a condition that did not hold",
        f"look at the batch; {_EAGER}",
    ),
    "shapes": (
        "{title} combines shapes that do not match",
        "shapes that fit the operation",
        "",
        f"print tf.shape(...) of both with tf.print; {_EAGER}",
    ),
    "python": (
        "A Python function called by {title} raised an exception",
        "a function that returns",
        "",
        "look at the batch and at the function: it runs as plain Python, where print works",
    ),
    "xla": (
        "XLA cannot compile {title}",
        "operations that XLA has, with sizes that do not depend on values",
        "",
        'use plan="graph"',
    ),
    "other": (
        "{title} failed while it ran",
        "operations that work for every batch",
        "",
        f"look at the batch; {_EAGER}",
    ),
}
"""What happened, expected, received if the failure has no text of its own, do."""

_MOST_SHOWN = 300
"""Characters of TensorFlow's own line: it may list every label of a batch."""


@contextlib.contextmanager
def explained(
    title: str,
    graphs: Callable[[], Iterable[Any]],
    where: Callable[[], str] = lambda: "",
    examples: Callable[[], int | None] = lambda: None,
) -> Iterator[None]:
    """Turn an error of TensorFlow inside a step into a `StepError`; errors of the data pass.

    `graphs` are those that the step was traced into, `where` names the step and its batch,
    `examples` counts those of a batch.
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
        if failure.kind == "memory":
            failure = replace(failure, bound=examples() or _batch_in(text, graphs()))
        raise error_for(failure, title, place, where()) from cause(error)


def _batch_in(text: str, graphs: Iterable[Any]) -> int:
    """Return the size of a batch by a tensor that did not fit; 0 if its trace has a fixed size."""
    shape = re.search(r"tensor with shape ?\[(\d+)", text)

    def has_open_size(op: Any) -> str:
        return "open" if any(out.shape.rank and out.shape[0] is None for out in op.outputs) else ""

    found = shape is not None and place_of_node(node_in(text), graphs, has_open_size)
    return int(shape[1]) if shape is not None and found else 0


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
