"""Errors of TensorFlow and Keras while a step is traced, explained in terms of the step."""

import contextlib
import itertools
import linecache
import operator
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import keras
import tensorflow as tf

from loopwright.errors import LoopwrightError, StepError, message


def _whole_training(found: re.Match[str], step: str, place: str, code: str, _: str) -> str:
    return message(
        f"{step} calls model.{found[1]}{place}.",
        expected="the model as a function inside a step: self.model(x, training=True)",
        received=code or f"model.{found[1]}(...)",
        do=f"call the model instead; {found[1]} runs loops of its own, outside the step",
    )


def _tape_used_twice(_: re.Match[str], step: str, place: str, code: str, __: str) -> str:
    return message(
        f"{step} asks one GradientTape for gradients twice{place}.",
        expected="one minimize or tape.gradient for each tape",
        received=code or "a second tape.gradient",
        do="open the tape with tf.GradientTape(persistent=True), or one tape for each loss",
    )


def _new_variable(_: re.Match[str], step: str, place: str, code: str, __: str) -> str:
    return message(
        f"{step} creates a variable, a layer or an optimizer{place}.",
        expected="variables, layers and optimizers that are made once and kept",
        received=code or "a new variable in the step",
        do="create it in __init__ as an attribute of self, and use it in the step",
    )


def _swapped_pairs(_: re.Match[str], step: str, place: str, code: str, __: str) -> str | None:
    if "apply" not in code:
        return None
    return message(
        f"{step} passes variables for gradients to the optimizer{place}.",
        expected="pairs of a gradient and its variable, in this order",
        received=code,
        do="write optimizer.apply_gradients(zip(gradients, variables)), or self.minimize(loss, "
        "model, optimizer, tape)",
    )


SENTENCES = (
    (r"the step calls model\.(\w+)", _whole_training),
    (r"A non-persistent GradientTape can only be used to compute one set", _tape_used_twice),
    (r"tf\.function only supports singleton tf\.Variables", _new_variable),
    (r"could not be lifted out of a `tf\.function`", _new_variable),
    (r"SymbolicTensor' object has no attribute '_unique_id'", _swapped_pairs),
)
"""Patterns of error texts, each with the function that makes its sentence."""


@contextlib.contextmanager
def explained(step: str, batch_spec: Any) -> Iterator[None]:
    """Explain the most frequent errors while a step is traced."""
    try:
        yield
    except LoopwrightError:
        raise
    except Exception as wrapped:
        error = _as_raised(wrapped)
        sentence = None if isinstance(error, LoopwrightError) else _explain(error, step, batch_spec)
        if sentence is not None:
            # The stack of TensorFlow's internals would come first and bury the sentence.
            raise StepError(sentence) from None
        if error is wrapped:
            raise
        raise error from error.__cause__


def describe(spec: Any, name: str = "batch") -> str:
    """Return a batch as text.

    >>> print(describe((tf.TensorSpec((None, 20)), tf.TensorSpec((None,), tf.int64))))
    batch[0]: float32 (None, 20), batch[1]: int64 (None,)
    """
    found: list[str] = []

    def visit(value: Any, path: str) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                visit(inner, f"{path}[{key!r}]")
        elif isinstance(value, list | tuple):
            for index, inner in enumerate(value):
                visit(inner, f"{path}[{index}]")
        elif value is not None:
            found.append(f"{path}: {value.dtype.name} {shape_text(value.shape)}")

    visit(spec, name)
    return ", ".join(found) or "no batch"


def shape_text(shape: Any) -> str:
    """Return a shape as text.

    >>> shape_text(tf.TensorShape([None, 3]))
    '(None, 3)'
    """
    if shape is None or shape.rank is None:
        return "of unknown rank"
    return str(tuple(shape.as_list()))


def variable_name(variable: Any) -> str:
    """Return the path of a Keras variable, or the name of any other."""
    return getattr(variable, "path", None) or variable.name.partition(":")[0]


def place_of(op: Any) -> str:
    """Return the line of the step that created an operation, as the end of a sentence."""
    return place_among(_frames_inside(op))


def is_written(op: Any) -> bool:
    """Return whether a line of the user's code asks for this operation itself.

    `a - b` does; `tf.reduce_mean(ragged, axis=1)` divides sums by lengths inside TensorFlow.
    """
    below = list[str]()
    for name, line in reversed(_frames_inside(op)):
        if is_own(name, line) or _GENERATED in name:
            break
        below.append(name)
    inner = [name.partition(_TENSORFLOW)[2] for name in below if _TENSORFLOW in name]
    return all(_WRAPPERS.search(name) for name in inner)


def _frames_inside(op: Any) -> "_Frames":
    frames = [(frame.filename, frame.lineno or 0) for frame in op.traceback]
    return list(itertools.dropwhile(lambda frame: not frame[0].startswith(_HERE), frames))


def place_in(error: Exception) -> str:
    """Return the user's line that an error came through, as the end of a sentence."""
    return place_among(_frames(error))


def strings_for_numbers(step: str, place: str, received: str) -> str:
    """Return the message about text where numbers are needed."""
    return message(
        f"{step} takes strings for numbers{place}.",
        expected="numbers",
        received=received,
        do="turn text into numbers first: keras.layers.StringLookup or TextVectorization; "
        "for digits x.astype('float32') before fit, or tf.strings.to_number",
    )


def _as_raised(error: Exception) -> Exception:
    """Return the error that AutoGraph has wrapped, or the error itself."""
    original = error.__context__
    if "in user code:" not in str(error) or not isinstance(original, Exception):
        return error
    original.add_note(f"raised in the step{place_among(_frames(original))}")
    return original


# -- sentences -------------------------------------------------------------------------------------


def _explain(error: Exception, step: str, batch_spec: Any) -> str | None:
    text, frames = re.sub(r"\x1b\[\d*m", "", str(error)), _frames(error)
    place, code = place_among(frames), _code(frames)
    for pattern, sentence in _SENTENCES:
        found = re.search(pattern, text)
        if found:
            return sentence(found, step, place, code, describe(batch_spec))
    return None


def _numpy_call(_: re.Match[str], step: str, place: str, code: str, __: str) -> str:
    function = re.search(r"\b(?:np|numpy)\.([\w.]+)\(", code)
    if function:
        called, use = f"np.{function[1]}", f"use {_tensorflow_name(function[1])}"
    elif ".numpy()" in code:
        called, use = ".numpy()", "leave it out: TensorFlow functions take the tensor as it is"
    else:
        called, use = "NumPy", "use the TensorFlow function of that name"
    return message(
        f"{step} calls {called} on a symbolic tensor{place}.",
        expected="TensorFlow functions inside a step, which is compiled before it runs",
        received=code or "a NumPy function or .numpy()",
        do=f"{use}; {_LOOK}",
    )


def _python_value(_: re.Match[str], step: str, place: str, code: str, __: str) -> str:
    return message(
        f"{step} uses a symbolic tensor as a Python value{place}.",
        expected="TensorFlow functions inside a step, which is compiled before it runs",
        received=code or "float(), int(), a format or a Python loop over a tensor",
        do="keep it a tensor: tf.cast instead of float() and int(), tf.print instead of a format, "
        f"tf.reduce_* or tf.map_fn instead of a Python loop; {_LOOK}",
    )


def _open_size(_: re.Match[str], step: str, place: str, code: str, batch: str) -> str | None:
    if ".shape" not in code:
        return None
    drawn = re.search(r"\b(?:np|numpy)\.(random\.\w+)\(", code)
    return message(
        f"{step} takes a size from .shape that is open while the step is traced{place}.",
        expected="tf.shape(x)[0], which is the size of each batch as it comes",
        received=f"{code}, with {batch}",
        do="replace x.shape[0] by tf.shape(x)[0]"
        + (f", and np.{drawn[1]} by {_tensorflow_name(drawn[1])}" if drawn else ""),
    )


def _dtypes(found: re.Match[str], step: str, place: str, code: str, batch: str) -> str:
    total = re.match(r"(\w+) *[-+*/]=", code)
    return message(
        f"{step} combines tensors of dtypes {found[2]} and {found[1]}{place}.",
        expected="the same dtype on both sides",
        received=batch,
        do=f"start {total[1]} with a {found[1]} number, for instance {total[1]} = 0.0, not 0"
        if total and found[1].startswith("float")
        else f"cast one of them, for instance tf.cast(labels, tf.{found[1]})",
    )


def _shapes(found: re.Match[str], step: str, place: str, _: str, batch: str) -> str:
    return message(
        f"{step} combines shapes that do not fit{place}.",
        expected=f"equal sizes, not {found[1]} and {found[2]}{found[3]}",
        received=batch,
        do="compare the batch with the weights or tensors in that line",
    )


def _misfit(found: re.Match[str], _: str, place: str, __: str, batch: str) -> str:
    expected = _batched_twice(found[0], batch)
    if expected is not None:
        return message(
            f"The batch has one axis more than the model takes: it looks batched twice{place}.",
            expected=expected,
            received=batch,
            do="leave out one of the two batch() calls; if this axis is meant, add it to the "
            "model's input",
        )
    return message(
        f"The batch does not fit the model{place}.",
        # Keras puts its own stack of layers around the one line that matters.
        expected=found[0].strip(),
        received=batch,
        do="compare the shapes and dtypes above with the model's first layer"
        + (" (is the data batched?)" if "ndim" in found[0] else ""),
    )


def _batched_twice(text: str, batch: str) -> str | None:
    """Return what a model expects of batches that have two axes of examples; None of others.

    >>> _batched_twice("expected shape=(None, 4), found shape=(None, None, 4)",
    ...                "batch[0]: float32 (None, None, 4), batch[1]: int64 (None, None)")
    'shape (None, 4)'
    """
    shapes = re.search(r"xpected shape=?\s?(\(.*?\)).* shape=?\s?(\(.*?\))", text)
    ranks = re.search(r"expected (?:min_)?ndim=(\d+), found ndim=(\d+)", text)
    if shapes is not None:
        one_more = shapes[1].count(",") + 1 == shapes[2].count(",")
        expected = f"shape {shapes[1]}"
    else:
        one_more = ranks is not None and int(ranks[1]) + 1 == int(ranks[2])
        expected = "" if ranks is None else f"{ranks[1]} axes"
    firsts = {leaf.group(1, 2) for leaf in re.finditer(r"\((\w+), (\w+)[,)]", batch)}
    is_everywhere = len(firsts) == 1 and batch.count(": ") == len(re.findall(r"\(\w+, ", batch))
    # An axis of the data has a known length; the number of examples may be open.
    alike = is_everywhere and len({size == "None" for size in next(iter(firsts))}) == 1
    return expected if one_more and alike else None


def _strings(_: re.Match[str], step: str, place: str, __: str, batch: str) -> str:
    return strings_for_numbers(step, place, batch)


def _strange_variable(found: re.Match[str], step: str, place: str, _: str, __: str) -> str:
    return message(
        f"{step} gives an optimizer a variable that it was not built for{place}.",
        expected="the same variables for an optimizer in every update",
        received=found[1],
        do="make an optimizer of its own for each set of variables, or pass all of them in one "
        "minimize; after layers were unfrozen, make a new optimizer",
    )


_LOOK = 'to look at values while debugging, Trainer(..., plan="eager")'

_Sentence = Callable[[re.Match[str], str, str, str, str], str | None]

_SENTENCES: tuple[tuple[str, _Sentence], ...] = (
    *SENTENCES,
    (r"symbolic tf\.Tensor .*NumPy|has no attribute 'numpy'", _numpy_call),
    (r"not '?SymbolicTensor|SymbolicTensor\.__format__", _python_value),
    (r"(?:Iterating over|Using) a symbolic `tf\.Tensor`", _python_value),
    (r"'NoneType' object cannot be interpreted as an integer", _open_size),
    (r"has type (\w+) that does not match type (\w+) of argument", _dtypes),
    (r"must have the same dtype, got tf\.(\w+) != tf\.(\w+)", _dtypes),
    (r"Dimensions must be equal, but are (\d+) and (\d+).*?( with input shapes: .*)", _shapes),
    (r".*incompatible with the layer.*", _misfit),
    (r".*incompatible shape.*", _misfit),
    (r".*[Ii]nvalid input shape.*", _misfit),
    (r".*Missing data for input.*", _misfit),
    (r".*expects \d+ (?:named )?input\(s\).*", _misfit),
    (r".*doesn't match the expected structure.*", _misfit),
    (r"DataType string not in list|of string is not in the list|Invalid dtype: str", _strings),
    (r"Unknown variable: .*?path=([^,]+)", _strange_variable),
)


def _tensorflow_name(numpy_name: str) -> str:
    if numpy_name.startswith("random."):
        drawn = numpy_name.removeprefix("random.")
        drawn = {"rand": "uniform", "random": "uniform", "randn": "normal"}.get(drawn, drawn)
        function = f"keras.random.{drawn}" if hasattr(keras.random, drawn) else "keras.random"
        return f"{function} with a keras.random.SeedGenerator"
    if numpy_name in _OTHER_NAMES:
        return _OTHER_NAMES[numpy_name]
    for prefix, module in (("tf", tf), ("tf.math", tf.math)):
        with contextlib.suppress(AttributeError):
            function = operator.attrgetter(numpy_name)(module)
            name = f"{prefix}.{numpy_name}"
            return f"tf.cast(..., {name})" if isinstance(function, tf.DType) else name
    return "a TensorFlow function"


_OTHER_NAMES = {
    "mean": "tf.reduce_mean",
    "sum": "tf.reduce_sum",
    "max": "tf.reduce_max",
    "min": "tf.reduce_min",
    "prod": "tf.reduce_prod",
    "any": "tf.reduce_any",
    "all": "tf.reduce_all",
    "std": "tf.math.reduce_std",
    "var": "tf.math.reduce_variance",
    "dot": "tf.linalg.matmul",
    "power": "tf.pow",
    "concatenate": "tf.concat",
    "array": "tf.convert_to_tensor",
    "asarray": "tf.convert_to_tensor",
    "clip": "tf.clip_by_value",
    "isnan": "tf.math.is_nan",
    "isfinite": "tf.math.is_finite",
}


# -- places ----------------------------------------------------------------------------------------

_Frames = list[tuple[str, int]]


def _frames(error: Exception) -> _Frames:
    metadata = getattr(error, "ag_error_metadata", None)
    if metadata is not None:
        # Innermost first, with lines of the generated code mapped back to the user's file.
        return [(frame.filename, frame.lineno) for frame in reversed(metadata.translated_stack)]
    stack = traceback.extract_tb(error.__traceback__)
    return [(frame.filename, frame.lineno or 0) for frame in stack]


_HERE = str(Path(__file__).parent.parent)  # the whole package
_TENSORFLOW = str(Path("/tensorflow/python")) + "/"
_WRAPPERS = re.compile(
    r"^(framework|util|autograph|eager|distribute)/"
    r"|^ops/(gen_\w+|math_ops|weak_tensor_ops|\w*override\w*|tensor_math\w*|variables|resource_\w+)\.py"
)
"""Files of TensorFlow between a public function and the operation of that name."""
_GENERATED = "__autograph_generated"
_AUTOGRAPH = _TENSORFLOW + "autograph/"
_INSTALLED = tuple(sysconfig.get_paths()[kind] for kind in ("stdlib", "purelib", "platlib"))


def _innermost_own(frames: _Frames) -> tuple[str, int] | None:
    """Return the last line of the user's code: neither installed nor ours."""
    return next((frame for frame in reversed(frames) if is_own(*frame)), None)


def is_own(filename: str, line: int) -> bool:
    """Return whether a line is the user's: of no installed package, and not generated."""
    is_users = not filename.startswith((_HERE, *_INSTALLED)) and _GENERATED not in filename
    return is_users and bool(linecache.getline(filename, line))  # compiled extensions have no lines


def is_users_frame(frame: FrameType | None) -> bool:
    """Return whether a frame runs the user's code, as it was written or as AutoGraph has it."""
    while frame is not None and _AUTOGRAPH in frame.f_code.co_filename:
        frame = frame.f_back  # AutoGraph calls for the code that it generates
    name = "" if frame is None else frame.f_code.co_filename
    return frame is not None and (_GENERATED in name or is_own(name, frame.f_lineno))


def _code(frames: _Frames) -> str:
    own = _innermost_own(frames)
    return linecache.getline(*own).strip() if own else ""


def place_among(frames: _Frames) -> str:
    """Return the innermost of these lines that is the user's, as the end of a sentence."""
    own = _innermost_own(frames)
    return f' (file "{Path(own[0]).name}", line {own[1]}: {_code(frames)})' if own else ""
