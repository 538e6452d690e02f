"""What can be seen to be wrong with a step before it has run, said in words."""

import contextlib
import re
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from loopwright.errors import LoopwrightError, StepError, StepWarning, message

_LIBRARIES = ("tensorflow", "keras", "loopwright", "numpy")


def trainable(model_or_variables: Any) -> list[Any]:
    """The variables that an update is to change: of a layer, of several, or given as they are."""
    if isinstance(model_or_variables, keras.Layer):
        variables = list(model_or_variables.trainable_variables)
        name = f"The model {model_or_variables.name!r}"
    else:
        given = list(model_or_variables)
        layers = all(isinstance(item, keras.Layer) for item in given)
        variables = [v for m in given for v in m.trainable_variables] if layers else given
        name = "The list of variables given to minimize"
    if not variables:
        raise StepError(
            message(
                f"{name} has nothing to train.",
                expected="at least one trainable variable",
                received="none: no weights, not built, or trainable=False everywhere",
                do="call the model inside the tape before minimize, or set .trainable = True",
            )
        )
    return variables


def present(gradients: Sequence[Any], variables: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The pairs that have a gradient; names the variables that have none."""
    missing = [v for g, v in zip(gradients, variables, strict=True) if g is None]
    names = ", ".join(variable_name(v) for v in missing)
    if len(missing) == len(gradients):
        raise StepError(
            message(
                "No variable has a gradient: the loss does not depend on any of them.",
                expected="a loss computed from these variables, inside the GradientTape",
                received=f"None for every one of: {names}",
                do="compute predictions and loss inside `with tf.GradientTape() as tape:`, with "
                "TensorFlow functions (no .numpy(), argmax or rounding in between)",
            )
        )
    if missing:
        _warn(
            message(
                f"{len(missing)} of {len(gradients)} variables have no gradient, and stay as they "
                f"are: {names}.",
                do="leave them out of minimize if that is meant; else check that the loss uses "
                "what they compute",
            )
        )
    pairs = [(g, v) for g, v in zip(gradients, variables, strict=True) if g is not None]
    return [g for g, _ in pairs], [v for _, v in pairs]


def check_reads_batch(step: str, placeholders: Sequence[Any]) -> None:
    """A step that uses no part of its batch trains on something baked in at trace time."""
    if placeholders and not any(tensor.consumers() for tensor in placeholders):
        raise StepError(
            message(
                f"{step} does not read its batch: every step would compute the same.",
                expected="a step that uses its `batch` argument",
                received="a step that uses none of its tensors (perhaps a variable from outside)",
                do="take inputs and labels from `batch`; for a step without data call "
                'fit(None, until="1000 steps")',
            )
        )


def check_model_losses(
    models: Sequence[Any], trained: Sequence[Any], was_asked: Callable[[Any], bool]
) -> None:
    """Warns of losses that layers added and the step never looked at."""
    trained_ids = {id(variable) for variable in trained}
    for model in models:
        is_trained = any(id(v) in trained_ids for v in model.trainable_variables)
        if not is_trained or was_asked(model):
            continue
        count = len(model.losses)
        if count:
            _warn(
                message(
                    f"The model {model.name!r} has {count} {_plural('loss', count)} of its own "
                    "(regularisation, add_loss) that the step did not use.",
                    do="add them inside the tape: loss += sum(model.losses)",
                )
            )


def check_broadcasting(graph: Any, step: str) -> None:
    """Warns where `(n,)` meets `(n, 1)` in a hand-written step and quietly becomes `(n, n)`."""
    warned: set[str] = set()
    for op in graph.get_operations():
        if op.type in _ELEMENTWISE and len(op.inputs) == 2:
            shapes = [tensor.shape for tensor in op.inputs]
            if _spreads(*shapes) or _spreads(*reversed(shapes)):
                where = _user_line(_frames_of(op))
                if where not in warned:
                    warned.add(where)
                    _warn(
                        message(
                            f"{step} combines shapes {shape_text(shapes[0])} and {shape_text(shapes[1])}, "
                            f"which broadcasts to (n, n){where}.",
                            do="give both the same shape, for instance labels[:, None] or "
                            "tf.squeeze(predictions, -1); if it is meant, use both axes: "
                            "a[:, None] and b[None, :]",
                        )
                    )


_ELEMENTWISE = frozenset(
    [
        "Add",
        "AddV2",
        "Sub",
        "Mul",
        "RealDiv",
        "DivNoNan",
        "SquaredDifference",
        "Maximum",
        "Minimum",
        "Pow",
        "Equal",
        "NotEqual",
        "Greater",
        "GreaterEqual",
        "Less",
        "LessEqual",
        "LogicalAnd",
        "LogicalOr",
    ]
)


def _spreads(flat: tf.TensorShape, column: tf.TensorShape) -> bool:
    """Whether a batch of numbers meets a batch of columns; traced with the batch size unknown."""
    if flat.rank != 1 or column.rank != 2:
        return False
    return flat[0] is None and column[0] is None and column[1] == 1


def check_labels(loss: Any, labels: Any, predictions: Any, output: str = "") -> None:
    """Refuses labels and predictions that a loss passed as `loss=` would only fit by broadcasting.

    Keras' own losses put a missing last axis of one right by themselves; anything further, and
    any missing axis before a plain function, would compute n x n differences without a word.
    """
    name = loss if isinstance(loss, str) else getattr(loss, "name", getattr(loss, "__name__", ""))
    if "sparse" in str(name) or "ctc" in str(name):
        return
    y, p = (getattr(t, "shape", None) for t in (labels, predictions))
    if y is None or p is None or y.rank is None or p.rank is None:
        return
    from_keras = isinstance(loss, str) or type(loss).__module__.startswith("keras.")
    from_keras = from_keras or getattr(loss, "__module__", "").startswith("keras.")
    longer, shorter = (p, y) if p.rank > y.rank else (y, p)
    missing_axis = longer.rank == shorter.rank + 1 and longer[-1] == 1
    if missing_axis and from_keras:
        return
    if missing_axis or (from_keras and _only_by_broadcasting(y, p)):
        result = "(n, n)" if missing_axis and shorter.rank == 1 else "a larger shape"
        raise StepError(
            message(
                f"Labels and predictions{output} only fit by broadcasting to {result}.",
                expected="labels and predictions of the same shape",
                received=f"labels {shape_text(y)}, predictions {shape_text(p)}",
                do="reshape the labels (for instance y[:, None]) or the model's last layer"
                + ("; for class numbers as labels use a sparse loss" if from_keras else ""),
            )
        )


def _only_by_broadcasting(y: tf.TensorShape, p: tf.TensorShape) -> bool:
    if y.rank != p.rank:
        return True
    return any(a is not None and b is not None and a != b for a, b in zip(y, p, strict=True))


@contextlib.contextmanager
def explained(step: str, batch_spec: Any) -> Iterator[None]:
    """Turns the errors that people meet most while a step is traced into sentences."""
    try:
        yield
    except LoopwrightError:
        raise
    except Exception as error:
        sentence = _explain(error, step, batch_spec)
        if sentence is None:
            raise
        # The stack of TensorFlow's internals would come first and bury the sentence.
        raise StepError(sentence) from None


def describe(spec: Any, name: str = "batch") -> str:
    """A batch as a person would write it down.

    >>> print(describe((tf.TensorSpec((None, 20)), tf.TensorSpec((None,), tf.int64))))
    batch[0]: float32 (None, 20), batch[1]: int64 (None,)
    """
    found: list[str] = []

    def visit(value: Any, path: str) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                visit(inner, f"{path}[{key!r}]")
        elif isinstance(value, list | tuple) and not isinstance(value, tf.TensorShape):
            for index, inner in enumerate(value):
                visit(inner, f"{path}[{index}]")
        elif value is not None:
            found.append(f"{path}: {value.dtype.name} {shape_text(value.shape)}")

    visit(spec, name)
    return ", ".join(found) or "no batch"


def variable_name(variable: Any) -> str:
    """The name of a variable that a person recognises."""
    return getattr(variable, "path", None) or variable.name.partition(":")[0]


def _explain(error: Exception, step: str, batch_spec: Any) -> str | None:
    text = str(error)
    frames = _frames_of_error(error)
    where, code = _user_line(frames), _user_code(frames)
    if "symbolic tf.Tensor" in text or "has no attribute 'numpy'" in text:
        found = re.search(r"\b(?:np|numpy)\.([\w.]+)\(", code)
        called = f"np.{found[1]}" if found else "NumPy"
        use = f"use {_tf_name(found[1])}" if found else "use the TensorFlow function of that name"
        return message(
            f"{step} calls {called} on a symbolic tensor{where}.",
            expected="TensorFlow functions inside a step, which is compiled before it runs",
            received=code or "a NumPy function or .numpy()",
            do=f'{use}; to look at values while debugging, Trainer(..., plan="eager")',
        )
    if any(re.search(pattern, text) for pattern in _MISFITS):
        # Keras puts its own stack of layers around the one line that matters.
        matter = next(line for line in text.splitlines() if _is_misfit(line))
        return message(
            f"The batch does not fit the model{where}.",
            expected=matter.strip(),
            received=describe(batch_spec),
            do="compare the shapes and dtypes above with the model's first layer"
            + (" (is the dataset batched?)" if "ndim" in text or "rank" in text else ""),
        )
    return None


_MISFITS = (
    r"incompatible with the layer",
    r"incompatible shape",
    r"[Ii]nvalid input shape",
    r"Missing data for input",
    r"expects \d+ input\(s\)",
    r"doesn't match the expected structure",
    r"Dimensions must be equal",
    r"[Cc]ast string to \w+ is not supported",
    r"has DataType string not in list",
    r"type string that does not match|dtype.*string|string.*dtype",
    r"Invalid dtype: str",
)


def _is_misfit(line: str) -> bool:
    return any(re.search(pattern, line) for pattern in _MISFITS)


_TF_NAMES = {
    "mean": "tf.reduce_mean",
    "sum": "tf.reduce_sum",
    "max": "tf.reduce_max",
    "min": "tf.reduce_min",
    "prod": "tf.reduce_prod",
    "any": "tf.reduce_any",
    "all": "tf.reduce_all",
    "std": "tf.math.reduce_std",
    "var": "tf.math.reduce_variance",
    "log": "tf.math.log",
    "log1p": "tf.math.log1p",
    "dot": "tf.linalg.matmul",
    "concatenate": "tf.concat",
    "array": "tf.convert_to_tensor",
    "asarray": "tf.convert_to_tensor",
    "clip": "tf.clip_by_value",
    "isnan": "tf.math.is_nan",
    "random.normal": "keras.random.normal with a keras.random.SeedGenerator",
    "random.rand": "keras.random.uniform with a keras.random.SeedGenerator",
    "random.randn": "keras.random.normal with a keras.random.SeedGenerator",
}


def _tf_name(numpy_name: str) -> str:
    if numpy_name in _TF_NAMES:
        return _TF_NAMES[numpy_name]
    if hasattr(tf, numpy_name):
        return f"tf.{numpy_name}"
    return f"tf.math.{numpy_name}" if hasattr(tf.math, numpy_name) else "a TensorFlow function"


def _frames_of(op: Any) -> list[tuple[str, int, str]]:
    return [(frame.filename, frame.lineno or 0, frame.line or "") for frame in op.traceback]


def _frames_of_error(error: Exception) -> list[tuple[str, int, str]]:
    metadata = getattr(error, "ag_error_metadata", None)
    if metadata is not None:
        # Innermost first, with lines of the generated code mapped back to the person's file.
        stack = reversed(metadata.translated_stack)
        return [(frame.filename, frame.lineno, (frame.code or "").strip()) for frame in stack]
    stack = traceback.extract_tb(error.__traceback__)
    return [(frame.filename, frame.lineno or 0, frame.line or "") for frame in stack]


def _innermost_user_frame(frames: list[tuple[str, int, str]]) -> tuple[str, int, str] | None:
    for filename, line, code in reversed(frames):
        folders = Path(filename).parts
        in_library = any(library in folders for library in _LIBRARIES)
        generated = "__autograph_generated" in filename
        if not in_library and not generated and "importlib" not in filename:
            return filename, line, code
    return None


def _user_line(frames: list[tuple[str, int, str]]) -> str:
    frame = _innermost_user_frame(frames)
    return f' (file "{Path(frame[0]).name}", line {frame[1]}: {frame[2]})' if frame else ""


def _user_code(frames: list[tuple[str, int, str]]) -> str:
    frame = _innermost_user_frame(frames)
    return frame[2] if frame else ""


def shape_text(shape: Any) -> str:
    if shape is None or shape.rank is None:
        return "of unknown rank"
    return str(tuple(shape.as_list()))


def _plural(noun: str, count: int) -> str:
    return noun if count == 1 else f"{noun}es"


def _warn(text: str) -> None:
    warnings.warn(text, StepWarning, stacklevel=2)
