"""Lines of the user's code behind an operation or an error; batches and shapes in words.

Tracebacks are shown without the frames of Loopwright, Keras and TensorFlow. The user's own frames,
and those of other libraries, stay. `LOOPWRIGHT_FULL_TRACEBACK=1`, or
`keras.config.disable_traceback_filtering()`, shows every frame.
"""

import contextlib
import functools
import itertools
import linecache
import os
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, ParamSpec, TypeVar

import keras
import tensorflow as tf

from loopwright.compat import tensorflow_internals
from loopwright.errors import LoopwrightError
from loopwright.step_warnings import is_installed

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
_Error = TypeVar("_Error", bound=BaseException)
Frames = Sequence[tuple[str, int]]
"""Files and lines, the innermost last."""


def place_of(op: Any) -> str:
    """Return the line of the step that created an operation, as the end of a sentence."""
    return place_among(_frames_inside(op))


def place_in(error: BaseException) -> str:
    """Return the user's line that an error came through, as the end of a sentence."""
    return place_among(frames_of(error))


def place_among(frames: Frames) -> str:
    """Return the innermost of these lines that is the user's, as the end of a sentence."""
    own = _innermost_own(frames)
    return f' (file "{Path(own[0]).name}", line {own[1]}: {code_among(frames)})' if own else ""


def code_among(frames: Frames) -> str:
    """Return the text of the innermost of these lines that is the user's; empty if none is."""
    own = _innermost_own(frames)
    return linecache.getline(*own).strip() if own else ""


def frames_of(error: BaseException) -> Frames:
    """Return the files and lines that an error came through."""
    metadata = getattr(error, "ag_error_metadata", None)
    if metadata is not None:
        # Innermost first, with lines of the generated code mapped back to the user's file.
        return [(frame.filename, frame.lineno) for frame in reversed(metadata.translated_stack)]
    stack = traceback.extract_tb(error.__traceback__)
    return [(frame.filename, frame.lineno or 0) for frame in stack]


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
    is_library = filename.startswith(_HERE) or is_installed(filename) or _GENERATED in filename
    return not is_library and bool(
        linecache.getline(filename, line)
    )  # compiled extensions have no lines


def is_users_frame(frame: FrameType | None) -> bool:
    """Return whether a frame runs the user's code, as it was written or as AutoGraph has it."""
    while frame is not None and _AUTOGRAPH in frame.f_code.co_filename:
        frame = frame.f_back  # AutoGraph calls for the code that it generates
    name = "" if frame is None else frame.f_code.co_filename
    return frame is not None and (_GENERATED in name or is_own(name, frame.f_lineno))


def _frames_inside(op: Any) -> Frames:
    frames = [(frame.filename, frame.lineno or 0) for frame in op.traceback]
    return list(itertools.dropwhile(lambda frame: not frame[0].startswith(_HERE), frames))


def _innermost_own(frames: Frames) -> tuple[str, int] | None:
    return next((frame for frame in reversed(frames) if is_own(*frame)), None)


_HERE = str(Path(__file__).parent.parent) + os.sep  # the whole package
_LIBRARIES = tuple(str(Path(module.__file__ or "").parent) + os.sep for module in (keras, tf))
_HIDDEN = (_HERE, *_LIBRARIES, contextlib.__file__)
_TENSORFLOW = str(Path("/tensorflow/python")) + "/"
_WRAPPERS = re.compile(
    r"^(framework|util|autograph|eager|distribute)/"
    r"|^ops/(gen_\w+|math_ops|weak_tensor_ops|\w*override\w*|tensor_math\w*|variables|resource_\w+)\.py"
)
"""Files of TensorFlow between a public function and the operation of that name."""
_GENERATED = "__autograph_generated"
_AUTOGRAPH = _TENSORFLOW + "autograph/"


# -- tracebacks ------------------------------------------------------------------------------------


def hides_frames() -> bool:
    """Return whether tracebacks are shortened."""
    shows_all = os.environ.get("LOOPWRIGHT_FULL_TRACEBACK", "") not in ("", "0")
    return not shows_all and keras.config.is_traceback_filtering_enabled()


def shortened(error: _Error) -> _Error:
    """Return the error with only the frames that the user can act on, its causes included."""
    if not hides_frames():
        return error
    seen = set[int]()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        # A bug of Loopwright needs every frame.
        if isinstance(link, LoopwrightError) or not _innermost_file(link).startswith(_HERE):
            link.__traceback__ = _without_hidden(link.__traceback__)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return error


def shortens_tracebacks(method: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Shorten the traceback of whatever a method raises."""

    @functools.wraps(method)
    def call(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        try:
            return method(*args, **kwargs)
        except Exception as error:
            shortened(error)
            raise  # without this frame, which is not added again

    return call


def is_of_libraries(error: BaseException) -> bool:
    """Return whether Keras or TensorFlow has raised an error."""
    return _innermost_file(error).startswith(_LIBRARIES)


def _innermost_file(error: BaseException) -> str:
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return frames[-1].f_code.co_filename if frames else ""


def _without_hidden(trace: TracebackType | None) -> TracebackType | None:
    kept = list[TracebackType]()
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not name.startswith(_HIDDEN) and _GENERATED not in name:
            kept.append(trace)
        trace = trace.tb_next
    last: TracebackType | None = None
    for frame in reversed(kept):
        last = TracebackType(last, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return last


# -- operations by name ----------------------------------------------------------------------------


def node_in(text: str) -> str:
    """Return the name of the operation that failed, inside the function that it belongs to."""
    named = re.search(r"\{\{node ([^}]+)\}\}|Detected at node (\S+) defined", text)
    return (named[1] or named[2]) if named else ""


def place_of_node(node: str, graphs: Iterable[Any], place: Callable[[Any], str] = place_of) -> str:
    """Return the line that made an operation, by its name in one of these graphs."""
    operations = {op.name: op for graph in graphs for op in _operations(graph, set())}
    places = (place(operations[name]) for name in _names(node) if name in operations)
    return next(filter(None, places), "")


def _names(node: str) -> Iterator[str]:
    """Names that an operation may have in its own graph, a gradient's by the one it is of."""
    if "gradient_tape/" in node:
        parts = node.replace("gradient_tape/", "").split("/")
        yield from ("/".join(parts[:end]) for end in range(len(parts), 0, -1))
    parts = node.split("/")
    yield from ("/".join(parts[begin:]) for begin in range(len(parts)))


def _operations(graph: Any, seen: set[int]) -> Iterator[Any]:
    if id(graph) in seen:
        return
    seen.add(id(graph))
    operations = graph.get_operations()
    yield from operations
    inner = itertools.chain.from_iterable(map(tensorflow_internals.inner_graphs, operations))
    for body in inner:
        yield from _operations(body, seen)


# -- words -----------------------------------------------------------------------------------------


def describe(spec: Any, name: str = "batch") -> str:
    """Return a batch as text.

    >>> import tensorflow as tf
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

    >>> import tensorflow as tf
    >>> shape_text(tf.TensorShape([None, 3]))
    '(None, 3)'
    """
    if shape is None or shape.rank is None:
        return "of unknown rank"
    return str(tuple(shape.as_list()))


def variable_name(variable: Any) -> str:
    """Return the path of a Keras variable, or the name of any other."""
    return getattr(variable, "path", None) or variable.name.partition(":")[0]
