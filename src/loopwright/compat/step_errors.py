"""Errors of TensorFlow and Keras in a step, traced or running, as a message about the step.

One table has the causes that programs have; an error without a row is shown by its own line. Stack
traces, which differ between eager steps, graphs and XLA, are replaced by the user's line.
"""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, final

import tensorflow as tf

from loopwright.compat.lines import (
    code_among,
    describe,
    frames_of,
    hides_frames,
    is_of_libraries,
    node_in,
    place_among,
    place_in,
    place_of_node,
)
from loopwright.compat.messages import MOST_SHOWN, plain_text, reason_in
from loopwright.errors import ConfigurationError, LoopwrightError, StepError


@final
@dataclass(frozen=True)
class Failure:
    """What went wrong in a step, apart from where."""

    kind: str
    """A row of the table."""
    found: tuple[Any, ...] = ("",)
    """What the row names: a value and its bound, or a line of TensorFlow or Keras."""


def error_for(
    failure: Failure, step: str, place: str, where: str = "", *, code: str = "", batch: str = ""
) -> LoopwrightError:
    """Return the error for a failure; `place` is a line of code, `where` a step and its batch.

    >>> print(error_for(Failure("label", (7, 5)), "Net.train_step", "", "step 3"))
    Net.train_step has a label outside the classes of its loss.
      expected: labels from 0 to 4, since the predictions have 5 classes
      received: label 7, in step 3
      do: check the labels; for label 7 the last layer needs at least 8 units
    """
    known = {"step": step, "place": place, "code": code, "batch": batch}
    what, expected, received, do = (
        part(*failure.found) if callable(part) else part.format(*failure.found, **known)
        for part in _TABLE[failure.kind]
    )
    if failure.kind == "xla":
        return ConfigurationError(what, expected=expected, received=received, do=do)
    received = f"{received}, in {where}" if where else received
    return StepError(what, expected=expected, received=received, do=do)


# -- while a step is traced ------------------------------------------------------------------------


@contextlib.contextmanager
def trace_explained(step: str, batch_spec: Any) -> Iterator[None]:
    """Explain errors of TensorFlow and Keras while a step is traced; the user's own pass."""
    try:
        yield
    except (LoopwrightError, tf.errors.OpError):  # an operation has run
        raise
    except Exception as wrapped:
        error, original = wrapped, wrapped.__context__
        if "in user code:" in str(wrapped) and isinstance(original, Exception):
            error = original  # what AutoGraph has wrapped
            error.add_note(f"raised in the step{place_in(error)}")
        if isinstance(error, LoopwrightError):
            raise error from error.__cause__
        frames, text = frames_of(error), plain_text(error)
        code = code_among(frames)
        failure = _failure_in(text, code)
        if failure is None and is_of_libraries(error):
            failure = Failure("traced", (reason_in(text),))
        elif failure and failure.kind == "misfit" and _is_batched_twice(text, batch_spec):
            failure = Failure("batched twice")
        if failure is not None:
            place, batch = place_among(frames), describe(batch_spec)
            # The stack of TensorFlow's internals would come first and bury the sentence.
            raise error_for(failure, step, place, code=code, batch=batch) from None
        if error is wrapped:
            raise
        raise error from error.__cause__


# -- while a step runs -----------------------------------------------------------------------------


@contextlib.contextmanager
def run_explained(
    step: str,
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
        failure = _failure_in(text) or Failure("other", (reason_in(text),))
        is_of_kernel = isinstance(error, tf.errors.OpError)
        if is_of_data(error) or not (is_of_kernel or failure.kind == "shapes"):
            raise
        if failure.kind == "memory":
            failure = Failure("memory", (*failure.found, examples() or 0))
        place = place_in(error) or place_of_node(node_in(text), graphs())
        raise error_for(failure, step, place, where()) from cause(error)


_NOT_OF_STEPS = (tf.errors.DataLossError, tf.errors.OutOfRangeError, tf.errors.CancelledError)


def is_of_data(error: Exception) -> bool:
    """Return whether an error came from reading the next batch."""
    return "IteratorGetNext" in str(error)


def cause(error: Any) -> Exception:
    """Return the error as it is shown above ours: its own line, without stacks."""
    if not isinstance(error, tf.errors.OpError) or not hides_frames():
        return error
    text = reason_in(plain_text(error))
    short = text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."
    kind: Any = type(error)
    code = [error.error_code] if kind is tf.errors.OpError else []  # other classes know theirs
    shown = kind(error.node_def, error.op, short, *code)
    shown.__traceback__ = error.__traceback__
    return shown


# -- which row of the table ------------------------------------------------------------------------


def _failure_in(text: str, code: str = "") -> Failure | None:
    """Return the row for the text of an error, and what it names; None if there is none.

    `code` is the user's line that the error came through.
    """
    reason = reason_in(text)
    for kind, pattern in _PATTERNS:
        found = re.search(pattern, f"{reason}\n{code}")
        if found is not None:
            named = {"index": _index, "shapes": _shapes}.get(kind, re.Match.groups)(found)
            return Failure(kind, named or (reason,))
    if _ASSERTION.search(text):
        shown = re.search(_SHOWN, text, re.M)
        first = next(filter(None, shown.groups()), "") if shown else text
        return Failure("assertion", (asserted(first.partition("\nCondition x ")[0]),))
    if "Traceback (most recent call last)" in text and re.match(r"[\w.]+(: |$)", reason):
        return Failure("python", (reason,))
    return None


_A, _B = (rf"(?P<{name}>[\[(][\d?, ]*[\])])" for name in "ab")
_PATTERNS: tuple[tuple[str, str], ...] = (
    ("memory", r"(OOM when allocating tensor with shape ?\[[\d,]*\] and type \w+)"),
    ("memory", r"\b(?:OOM|[Oo]ut of memory)\b"),
    ("label", r"label value of (-?\d+) which is outside the valid range of \[0, (\d+)\)"),
    ("index", r"indices(?:\[[\d,]*\])? = (-?\d+) is not in \[0, (\d+)\)"),
    ("index", r"indices.*? = \[([-\d, ]+)\] does not index into param shape \[([\d,]+)\]"),
    ("numerics", r"(?:(.*?) ?: )?Tensor had .*(?:NaN|Inf)"),
    ("xla", r"unsupported operations .* on XLA_\w+|must be a compile-time|not compilable"),
    ("shapes", rf"Incompatible shapes: {_A} vs\.? {_B}"),
    ("shapes", rf"Matrix size-incompatible: In\[0\]: {_A}, In\[1\]: {_B}"),
    ("shapes", rf"Dimensions must be equal, .* with input shapes: {_A}, {_B}"),
    ("shapes", rf"logits shape {_A} and labels shape {_B}"),
    # Said in Python where shapes are known: in an eager step.
    ("shapes", rf"labels\.shape={_B} and logits\.shape={_A}"),
    ("whole loop", r"the step calls model\.(\w+)"),
    ("tape", r"A non-persistent GradientTape can only be used to compute one set"),
    ("new variable", r"only supports singleton tf\.Variables|could not be lifted out of a `tf\.f"),
    ("swapped pairs", r"SymbolicTensor' object has no attribute '_unique_id'.*\n.*apply"),
    ("numpy", r"symbolic tf\.Tensor .*NumPy|has no attribute 'numpy'"),
    ("python value", r"not '?SymbolicTensor|SymbolicTensor\.__format__"),
    ("python value", r"(?:Iterating over|Using) a symbolic `tf\.Tensor`"),
    ("open size", r"'NoneType' object cannot be interpreted as an integer.*\n.*\.shape"),
    ("dtypes", r"has type (\w+) that does not match type (\w+) of argument"),
    ("dtypes", r"must have the same dtype, got tf\.(\w+) != tf\.(\w+)"),
    ("misfit", r"incompatible with the layer|incompatible shape|Missing data for input"),
    ("misfit", r"expects \d+ (?:named )?input\(s\)"),
    ("strings", r"DataType string not in list|of string is not in the list|Invalid dtype: str"),
)
_ASSERTION = re.compile(
    r"assertion failed:|^Condition x .* did not hold|to be true\. Summarized", re.M
)
_SHOWN = r"assertion failed: \[([\s\S]*?)\](?= \[|\s*$)|Summarized data: (?:b'(.*?)'|(.*))$"


def _index(found: re.Match[str]) -> tuple[Any, ...]:
    """Return the first index that is outside its bound, and the bound."""
    indices, bounds = ([int(n) for n in found[group].split(",")] for group in (1, 2))
    pairs = zip(indices, bounds, strict=False)
    return next((pair for pair in pairs if not 0 <= pair[0] < pair[1]), (0, 0))


def _shapes(found: re.Match[str]) -> tuple[str]:
    """Return both shapes as Python writes them."""
    sizes = [re.findall(r"[\d?]+", found[group]) for group in ("a", "b")]
    shapes = [f"({', '.join(each)}{',' * (len(each) == 1)})" for each in sizes]
    if found[0].startswith("Incompatible"):
        shapes.sort()  # TensorFlow's optimizer swaps the operands of sums
    return (" and ".join(shapes),)


def _is_batched_twice(text: str, batch_spec: Any) -> bool:
    """Return whether all of a batch has two axes of examples, where a model takes one.

    >>> text = "expected shape=(None, 4), found shape=(None, None, 4)"
    >>> _is_batched_twice(text, tf.TensorSpec((None, None, 4)))
    True
    """
    ranks = [int(rank) for rank in re.findall(r"ndim=(\d+)", text)]
    shapes = re.findall(r"shape=?\s?\((.*?)\)", text.partition("xpected")[2])
    ranks = ranks or [len(shape.strip(",").split(",")) for shape in shapes]
    is_one_more = len(ranks) > 1 and ranks[1] == ranks[0] + 1
    firsts = {tuple(leaf.shape[:2]) for leaf in tf.nest.flatten(batch_spec)}
    # An axis of the data has a known length; the number of examples may be open.
    alike = [len(first) == 2 and len({size is None for size in first}) == 1 for first in firsts]
    return is_one_more and alike == [True]


def asserted(first: str) -> str:
    """Return the first thing that an assertion was told to show, if the user wrote it."""
    first = first.strip().rstrip(".")
    return "" if first.startswith("Condition x ") or re.fullmatch(r"[-+\d.e ]*", first) else first


# -- the table -------------------------------------------------------------------------------------


def _label_advice(value: Any, classes: Any) -> str:
    label, count = int(value), int(classes)
    if label < 0:
        return (
            "give every example a class from 0 on; to leave examples out, use "
            f"SparseCategoricalCrossentropy(ignore_class={label}), or sample weights of 0"
        )
    if label == count:
        return (
            "number the classes from 0 (subtract 1 if they begin at 1), or give the last layer "
            f"{count + 1} units"
        )
    return f"check the labels; for label {label} the last layer needs at least {label + 1} units"


def _memory_advice(_: str, examples: int = 0) -> str:
    if examples < 2:
        return "use smaller batches, a smaller model or shorter sequences"
    return (
        f"lower batch_size: {examples // 2:,} instead of {examples:,}; to keep the size of "
        "updates, accumulate: gradient_accumulation_steps=2 of the optimizer"
    )


_EAGER = 'with plan="eager" print and breakpoint() work in that line'
_TRACED = "operations of TensorFlow or Keras inside a step, which is compiled before it runs"
_LOOK = 'to look at values while debugging, Trainer(..., plan="eager")'

_Part = str | Callable[..., str]
_TABLE: dict[str, tuple[_Part, _Part, _Part, _Part]] = {
    "label": (
        "{step} has a label outside the classes of its loss{place}.",
        lambda _, n: f"labels from 0 to {int(n) - 1}, since the predictions have {n} classes",
        "label {0}",
        _label_advice,
    ),
    "index": (
        "{step} looks up an index that is out of range{place}.",
        lambda _, n: f"indices from 0 to {int(n) - 1}, since the table has {n} rows",
        "index {0}",
        "check the indices; an Embedding needs an input_dim above the largest index, and "
        "unknown or padded entries need an index of their own",
    ),
    "numerics": (
        "A check in {step} found NaN or infinity{place}.",
        "finite numbers",
        lambda text: text or "NaN or infinity",
        f"look at the batch, lower the learning rate or clip gradients; {_EAGER}",
    ),
    "memory": (
        "{step} ran out of memory{place}.",
        lambda _, n=0: (
            "memory for everything that a step makes of "
            + (f"batches of {n:,} examples" if n else "the batches")
        ),
        "{0}",
        _memory_advice,
    ),
    "assertion": (
        "An assertion in {step} failed{place}.",
        "a condition that holds for every batch",
        lambda text: text or "a condition that did not hold",
        f"look at the batch; {_EAGER}",
    ),
    "shapes": (
        "{step} combines shapes that do not match{place}.",
        "shapes that fit the operation",
        "{0}",
        f"print tf.shape(...) of both with tf.print; {_EAGER}",
    ),
    "python": (
        "A Python function called by {step} raised an exception{place}.",
        "a function that returns",
        "{0}",
        "look at the batch and at the function: it runs as plain Python, where print works",
    ),
    "xla": (
        "XLA cannot compile {step}{place}.",
        "operations that XLA has, with sizes that do not depend on values",
        "{0}",
        'use plan="graph"',
    ),
    "other": (
        "{step} failed while it ran{place}.",
        "operations that work for every batch",
        "{0}",
        f"look at the batch; {_EAGER}",
    ),
    "traced": (
        "{step} failed while it was traced{place}.",
        "operations that take each other's results, and {batch}",
        "{0}",
        f"check what the error names; {_LOOK}",
    ),
    "whole loop": (
        "{step} calls model.{0}{place}.",
        "the model as a function inside a step: self.model(x, training=True)",
        "{code}",
        "call the model instead; {0} runs loops of its own, outside the step",
    ),
    "tape": (
        "{step} asks one GradientTape for gradients twice{place}.",
        "one minimize or tape.gradient for each tape",
        "{code}",
        "open the tape with tf.GradientTape(persistent=True), or one tape for each loss",
    ),
    "new variable": (
        "{step} creates a variable, a layer or an optimizer{place}.",
        "variables, layers and optimizers that are made once and kept",
        "{code}",
        "create it in __init__ as an attribute of self, and use it in the step",
    ),
    "swapped pairs": (
        "{step} passes variables for gradients to the optimizer{place}.",
        "pairs of a gradient and its variable, in this order",
        "{code}",
        "write optimizer.apply_gradients(zip(gradients, variables)), or self.minimize(loss, "
        "model, optimizer, tape)",
    ),
    "numpy": (
        "{step} calls NumPy on a symbolic tensor{place}.",
        _TRACED,
        "{code}",
        "use the function of that name in keras.ops, or keras.random with a SeedGenerator; leave "
        f".numpy() out; {_LOOK}",
    ),
    "python value": (
        "{step} uses a symbolic tensor as a Python value{place}.",
        _TRACED,
        "{code}",
        "keep it a tensor: tf.cast instead of float() and int(), tf.print instead of a format, "
        f"tf.reduce_* or tf.map_fn instead of a Python loop; {_LOOK}",
    ),
    "open size": (
        "{step} takes a size from .shape that is open while the step is traced{place}.",
        "tf.shape(x)[0], which is the size of each batch as it comes",
        "{code}, with {batch}",
        "replace x.shape[0] by tf.shape(x)[0], and np.random by keras.random",
    ),
    "misfit": (
        "The batch does not fit the model{place}.",
        "{0}",
        "{batch}",
        "compare the shapes and dtypes above with the model's first layer (is the data batched?)",
    ),
    "batched twice": (
        "The batch has one axis more than the model takes: it looks batched twice{place}.",
        "one axis of examples, and then those of an example",
        "{batch}",
        "leave out one of the two batch() calls; if this axis is meant, add it to the model's "
        "input",
    ),
    "dtypes": (
        "{step} combines tensors of dtypes {1} and {0}{place}.",
        "the same dtype on both sides",
        "{batch}",
        "cast one of them, for instance tf.cast(labels, tf.{0}); start a sum with 0.0, not 0",
    ),
    "strings": (
        "{step} takes strings for numbers{place}.",
        "numbers",
        "{batch}",
        "turn text into numbers first: keras.layers.StringLookup or TextVectorization; "
        "for digits x.astype('float32') before fit, or tf.strings.to_number",
    ),
}
"""What happened, expected, received, do; `{0}` is the first of what a failure has found."""
