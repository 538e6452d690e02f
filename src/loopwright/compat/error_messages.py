"""Errors of TensorFlow and Keras while a step is traced, explained in terms of the step."""

import contextlib
import itertools
import linecache
import operator
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import keras
import tensorflow as tf

from loopwright.errors import LoopwrightError, StepError, message


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


def _as_raised(error: Exception) -> Exception:
    """Return the error that AutoGraph has wrapped, or the error itself."""
    original = error.__context__
    if "in user code:" not in str(error) or not isinstance(original, Exception):
        return error
    original.add_note(f"raised in the step{place_among(_frames(original))}")
    return original


def _explain(error: Exception, step: str, batch_spec: Any) -> str | None:
    text, frames = plain_text(error), _frames(error)
    known = {
        "step": step,
        "place": place_among(frames),
        "code": _code(frames),
        "batch": describe(batch_spec),
    }
    for pattern, *rule in _RULES:
        found = re.search(pattern, text)
        if found:
            make: Any = rule[0]
            parts: Any = make(found, known) if callable(make) else rule
            return None if parts is None else _filled(parts, found, known)
    return None


def plain_text(error: BaseException) -> str:
    """Return the text of an error without the colours that Keras puts into it."""
    return re.sub(r"\x1b\[\d*m", "", str(error))


# -- rules -----------------------------------------------------------------------------------------

_Parts = tuple[str, str, str, str]
"""What happened, expected, received, do; `{1}` is the first group of a pattern."""


def _filled(parts: Iterable[str], found: re.Match[str], known: Mapping[str, str]) -> str:
    what, expected, received, do = (
        part.format(found[0].strip(), *found.groups(), **known) for part in parts
    )
    return message(what, expected=expected, received=received, do=do)


def strings_for_numbers(step: str, place: str, received: str) -> str:
    """Return the message about text where numbers are needed."""
    what, expected, _, do = _STRINGS
    what = what.format(step=step, place=place)
    return message(what, expected=expected, received=received, do=do)


def _numpy_call(_: re.Match[str], known: Mapping[str, str]) -> _Parts:
    function = re.search(r"\b(?:np|numpy)\.([\w.]+)\(", known["code"])
    if function:
        called, use = f"np.{function[1]}", f"use {_tensorflow_name(function[1])}"
    elif ".numpy()" in known["code"]:
        called, use = ".numpy()", "leave it out: TensorFlow functions take the tensor as it is"
    else:
        called, use = "NumPy", "use the TensorFlow function of that name"
    what = f"{{step}} calls {called} on a symbolic tensor{{place}}."
    return what, _TRACED, "{code}", f"{use}; {_LOOK}"


def _open_size(_: re.Match[str], known: Mapping[str, str]) -> _Parts | None:
    if ".shape" not in known["code"]:
        return None
    drawn = re.search(r"\b(?:np|numpy)\.(random\.\w+)\(", known["code"])
    return (
        "{step} takes a size from .shape that is open while the step is traced{place}.",
        "tf.shape(x)[0], which is the size of each batch as it comes",
        "{code}, with {batch}",
        "replace x.shape[0] by tf.shape(x)[0]"
        + (f", and np.{drawn[1]} by {_tensorflow_name(drawn[1])}" if drawn else ""),
    )


def _dtypes(found: re.Match[str], known: Mapping[str, str]) -> _Parts:
    total = re.match(r"(\w+) *[-+*/]=", known["code"])
    return (
        "{step} combines tensors of dtypes {2} and {1}{place}.",
        "the same dtype on both sides",
        "{batch}",
        f"start {total[1]} with a {{1}} number, for instance {total[1]} = 0.0, not 0"
        if total and found[1].startswith("float")
        else "cast one of them, for instance tf.cast(labels, tf.{1})",
    )


def _misfit(found: re.Match[str], known: Mapping[str, str]) -> _Parts:
    expected = _batched_twice(found[0], known["batch"])
    if expected is not None:
        return (
            "The batch has one axis more than the model takes: it looks batched twice{place}.",
            expected,
            "{batch}",
            "leave out one of the two batch() calls; if this axis is meant, add it to the model's "
            "input",
        )
    return (
        "The batch does not fit the model{place}.",
        "{0}",  # the one line that matters; Keras puts its own stack of layers around it
        "{batch}",
        "compare the shapes and dtypes above with the model's first layer"
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


def _swapped_pairs(_: re.Match[str], known: Mapping[str, str]) -> _Parts | None:
    if "apply" not in known["code"]:
        return None
    return (
        "{step} passes variables for gradients to the optimizer{place}.",
        "pairs of a gradient and its variable, in this order",
        "{code}",
        "write optimizer.apply_gradients(zip(gradients, variables)), or self.minimize(loss, "
        "model, optimizer, tape)",
    )


_TRACED = "TensorFlow functions inside a step, which is compiled before it runs"
_LOOK = 'to look at values while debugging, Trainer(..., plan="eager")'
_STRINGS: _Parts = (
    "{step} takes strings for numbers{place}.",
    "numbers",
    "{batch}",
    "turn text into numbers first: keras.layers.StringLookup or TextVectorization; "
    "for digits x.astype('float32') before fit, or tf.strings.to_number",
)

_Make = Callable[[re.Match[str], Mapping[str, str]], _Parts | None]
_RULES: tuple[tuple[str, _Make] | tuple[str, str, str, str, str], ...] = (
    (
        r"the step calls model\.(\w+)",
        "{step} calls model.{1}{place}.",
        "the model as a function inside a step: self.model(x, training=True)",
        "{code}",
        "call the model instead; {1} runs loops of its own, outside the step",
    ),
    (
        r"A non-persistent GradientTape can only be used to compute one set",
        "{step} asks one GradientTape for gradients twice{place}.",
        "one minimize or tape.gradient for each tape",
        "{code}",
        "open the tape with tf.GradientTape(persistent=True), or one tape for each loss",
    ),
    (
        r"only supports singleton tf\.Variables|could not be lifted out of a `tf\.function`",
        "{step} creates a variable, a layer or an optimizer{place}.",
        "variables, layers and optimizers that are made once and kept",
        "{code}",
        "create it in __init__ as an attribute of self, and use it in the step",
    ),
    (r"SymbolicTensor' object has no attribute '_unique_id'", _swapped_pairs),
    (r"symbolic tf\.Tensor .*NumPy|has no attribute 'numpy'", _numpy_call),
    (
        r"not '?SymbolicTensor|SymbolicTensor\.__format__"
        r"|(?:Iterating over|Using) a symbolic `tf\.Tensor`",
        "{step} uses a symbolic tensor as a Python value{place}.",
        _TRACED,
        "{code}",
        "keep it a tensor: tf.cast instead of float() and int(), tf.print instead of a format, "
        f"tf.reduce_* or tf.map_fn instead of a Python loop; {_LOOK}",
    ),
    (r"'NoneType' object cannot be interpreted as an integer", _open_size),
    (r"has type (\w+) that does not match type (\w+) of argument", _dtypes),
    (r"must have the same dtype, got tf\.(\w+) != tf\.(\w+)", _dtypes),
    (
        r"Dimensions must be equal, but are (\d+) and (\d+).*?( with input shapes: .*)",
        "{step} combines shapes that do not fit{place}.",
        "equal sizes, not {1} and {2}{3}",
        "{batch}",
        "compare the batch with the weights or tensors in that line",
    ),
    (
        r".*(?:incompatible with the layer|incompatible shape|Missing data for input"
        r"|expects \d+ (?:named )?input\(s\)).*",
        _misfit,
    ),
    (r"DataType string not in list|of string is not in the list|Invalid dtype: str", *_STRINGS),
    (
        r"Unknown variable: .*?path=([^,]+)",
        "{step} gives an optimizer a variable that it was not built for{place}.",
        "the same variables for an optimizer in every update",
        "{1}",
        "make an optimizer of its own for each set of variables, or pass all of them in one "
        "minimize; after layers were unfrozen, make a new optimizer",
    ),
)
"""Patterns of error texts, each with its message, or with a function that makes it."""


def _tensorflow_name(numpy_name: str) -> str:
    if numpy_name.startswith("random."):
        drawn = numpy_name.removeprefix("random.")
        drawn = {"rand": "uniform", "random": "uniform", "randn": "normal"}.get(drawn, drawn)
        function = f"keras.random.{drawn}" if hasattr(keras.random, drawn) else "keras.random"
        return f"{function} with a keras.random.SeedGenerator"
    numpy_name = _OTHER_NAMES.get(numpy_name, numpy_name)
    for prefix, module in (("tf", tf), ("tf.math", tf.math)):
        with contextlib.suppress(AttributeError):
            function = operator.attrgetter(numpy_name)(module)
            name = f"{prefix}.{numpy_name}"
            return f"tf.cast(..., {name})" if isinstance(function, tf.DType) else name
    return "a TensorFlow function"


_OTHER_NAMES = {
    **{name: f"reduce_{name}" for name in ("mean", "sum", "max", "min", "prod", "any", "all")},
    **{"std": "math.reduce_std", "var": "math.reduce_variance", "dot": "linalg.matmul"},
    **{"array": "convert_to_tensor", "asarray": "convert_to_tensor", "concatenate": "concat"},
    **{"clip": "clip_by_value", "power": "pow"},
    **{"isnan": "math.is_nan", "isfinite": "math.is_finite"},
}


# -- batches and places in words -------------------------------------------------------------------


def describe(spec: Any, name: str = "batch") -> str:
    """Return a batch as text.

    >>> print(describe((tf.TensorSpec((None, 20)), tf.TensorSpec((None,), tf.int64))))
    batch[0]: float32 (None, 20), batch[1]: int64 (None,)
    """
    return ", ".join(_leaves(spec, name)) or "no batch"


def _leaves(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, Mapping | list | tuple):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, inner in items:
            yield from _leaves(inner, f"{path}[{key!r}]")
    elif value is not None:
        yield f"{path}: {value.dtype.name} {shape_text(value.shape)}"


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


def place_in(error: Exception) -> str:
    """Return the user's line that an error came through, as the end of a sentence."""
    return place_among(_frames(error))


def place_among(frames: "_Frames") -> str:
    """Return the innermost of these lines that is the user's, as the end of a sentence."""
    own = _innermost_own(frames)
    return f' (file "{Path(own[0]).name}", line {own[1]}: {_code(frames)})' if own else ""


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


_Frames = list[tuple[str, int]]


def _frames(error: Exception) -> _Frames:
    metadata = getattr(error, "ag_error_metadata", None)
    if metadata is not None:
        # Innermost first, with lines of the generated code mapped back to the user's file.
        return [(frame.filename, frame.lineno) for frame in reversed(metadata.translated_stack)]
    stack = traceback.extract_tb(error.__traceback__)
    return [(frame.filename, frame.lineno or 0) for frame in stack]


def _frames_inside(op: Any) -> _Frames:
    frames = [(frame.filename, frame.lineno or 0) for frame in op.traceback]
    return list(itertools.dropwhile(lambda frame: not frame[0].startswith(_HERE), frames))


def _innermost_own(frames: _Frames) -> tuple[str, int] | None:
    """Return the last line of the user's code: neither installed nor ours."""
    return next((frame for frame in reversed(frames) if is_own(*frame)), None)


def _code(frames: _Frames) -> str:
    own = _innermost_own(frames)
    return linecache.getline(*own).strip() if own else ""


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
