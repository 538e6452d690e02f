"""Why reading data is slow, as far as its parts show, and what to write instead."""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from loopwright.compat import tensorflow_internals
from loopwright.compat.tensorflow_internals import PipelinePart

PYTHON_CALLS = {"EagerPyFunc": "tf.py_function", "PyFunc": "tf.numpy_function"}
"""Operations that call Python, and the functions that users call."""

_AUTOTUNE = "num_parallel_calls=tf.data.AUTOTUNE"
_PARALLEL = f"a tf.data pipeline with .map(..., {_AUTOTUNE})"


def slow_pipeline(dataset: tf.data.Dataset, *, is_slower_than_step: bool) -> str:
    """Return what slows a pipeline down; empty if its parts do not show it.

    >>> numbers = tf.data.Dataset.range(10).map(abs).batch(2)
    >>> slow_pipeline(numbers, is_slower_than_step=True)[:34]
    'map(abs) has no num_parallel_calls'
    """
    parts = tensorflow_internals.pipeline_parts(dataset)
    turns = not any(part.kind == "Prefetch" for part in parts) and not _is_prefetched(dataset)
    prefetch = (
        "the pipeline does not prefetch, so reading and training alternate; end it with "
        ".prefetch(tf.data.AUTOTUNE)"
    )
    if turns and not is_slower_than_step:
        return prefetch  # it hides all of the waiting behind the step
    cached = [id(p.dataset) for part in parts if part.kind == "Cache" for p in parts_before(part)]
    each_epoch = [p for p in parts if id(p.dataset) not in cached and not _is_own(p)]
    found = next(filter(None, map(_python, each_epoch)), "") or next(
        filter(None, map(_sequential, each_epoch)), ""
    )
    if found or not (turns or cached):
        return found
    if turns:
        return prefetch
    return "the first epoch fills the cache; later epochs read from it"


def slow_batches(source: Any) -> str:
    """Return what slows down batches from a generator, an iterable or a `PyDataset`."""
    if not isinstance(source, keras.utils.PyDataset):
        name = getattr(source, "__qualname__", type(source).__name__).rpartition(".")[2]
        code = getattr(source, "gi_code", None)
        at = "" if code is None else f" at {_place(code)}"
        return (
            f"{name}{at} makes one batch at a time in Python; use a keras.utils.PyDataset "
            f"with workers=4, or {_PARALLEL}"
        )
    name, workers = type(source).__name__, source.workers
    if workers <= 1:
        return (
            f"{name}.__getitem__ makes one batch at a time; make several in parallel: "
            f"{name}(..., workers=4)"
        )
    return (
        f"{name}.__getitem__ is slower than the step with {workers} workers; do less in it, "
        f"prepare the data once, or use {_PARALLEL}"
    )


def slow_arrays(function: Callable[..., Any] | None) -> str:
    """Return what slows arrays down; `function` is their `map`."""
    if function is None:
        return (
            "copying rows out of the arrays is slower than the step; raise batch_size, or pass a "
            "smaller dtype (uint8 instead of float32) and scale in the step"
        )
    return (
        f"{_called('map', function)} runs Python for one example at a time; apply it to the "
        f"arrays before training, or use {_PARALLEL}"
    )


def _python(part: PipelinePart) -> str:
    if "GeneratorDataset" in part.operations:
        return (
            "Dataset.from_generator runs Python for one element at a time; use a "
            f"keras.utils.PyDataset with workers=4, or {_PARALLEL}"
        )
    called = [name for kind, name in PYTHON_CALLS.items() if kind in part.operations]
    if not called:
        return ""
    return (
        f"{_title(part)} runs Python ({called[0]}), one call at a time; write it with TensorFlow "
        "operations, or cache its results, .cache() after it"
    )


def _sequential(part: PipelinePart) -> str:
    if part.kind != "Map":
        return ""
    name = getattr(_function(part), "__name__", "...")
    name = "..." if name == "<lambda>" else name
    return (
        f"{_title(part)} has no num_parallel_calls; write .map({name}, {_AUTOTUNE}), and "
        ".cache() after it if the results fit in memory"
    )


def _is_prefetched(dataset: tf.data.Dataset) -> bool:
    """Return whether TensorFlow adds a missing prefetch."""
    options = dataset.options()
    chosen = options.experimental_optimization
    is_default = chosen.apply_default_optimizations is not False
    return chosen.inject_prefetch is not False and (is_default or bool(chosen.inject_prefetch))


def _is_own(part: PipelinePart) -> bool:
    """Return whether Loopwright has added this part."""
    return str(getattr(_function(part), "__module__", "")).startswith("loopwright.data.")


def parts_before(part: PipelinePart) -> list[PipelinePart]:
    """Return the parts that a part reads from, directly or not."""
    return tensorflow_internals.pipeline_parts(part.dataset)[1:]


def _title(part: PipelinePart) -> str:
    kind = part.kind.removeprefix("Parallel")
    method = "".join(f"_{c.lower()}" if c.isupper() else c for c in kind).strip("_")
    function = _function(part)
    return f"{method}()" if function is None else _called(method, function)


def _function(part: PipelinePart) -> Any:
    return next(iter(part.functions), None)


def _called(method: str, function: Any) -> str:
    """Describe a call of a method with a function, and its line: `map(f) at train.py:12`."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", type(function).__name__)
    code = getattr(inspect.unwrap(function), "__code__", None)
    at = "" if code is None else f" at {_place(code)}"
    return f"{method}({'' if name == '<lambda>' else name}){at}"


def _place(code: Any) -> str:
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}"
