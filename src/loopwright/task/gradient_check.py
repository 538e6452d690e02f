"""Check gradients of the tape against central differences."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from loopwright.compat.lines import variable_name
from loopwright.errors import ConfigurationError, StepError
from loopwright.task.state import preserved

_SMALLEST_PART = 1e-4
"""Fraction of a variable's largest derivative: smaller ones are compared on this scale."""


@dataclass(frozen=True)
class CheckedVariable:
    """One variable's derivatives, as flat arrays; only some elements of a large one."""

    name: str
    tape: np.ndarray | None
    numeric: np.ndarray

    @property
    def relative_error(self) -> float:
        """Return the largest error of all elements; infinite if a derivative is NaN."""
        tape = np.zeros_like(self.numeric) if self.tape is None else self.tape
        size = np.maximum(np.abs(tape), np.abs(self.numeric))
        # An element near zero has no meaningful relative error.
        size = np.maximum(size, _SMALLEST_PART * np.max(size, initial=0.0))
        error = np.abs(tape - self.numeric) / np.where(size > 0, size, 1.0)
        return float(np.max(np.where(np.isfinite(error), error, np.inf), initial=0.0))


@dataclass(frozen=True)
class GradientReport:
    """The result of `check_gradients`."""

    variables: tuple[CheckedVariable, ...]
    dtype: str
    """The dtype of the differences: float64 is much more precise than float32."""

    @property
    def worst(self) -> CheckedVariable:
        """Return the variable with the largest relative error."""
        return max(self.variables, key=lambda checked: checked.relative_error)

    @property
    def without_gradient(self) -> tuple[str, ...]:
        """Return the names of the variables for which the tape returned None."""
        return tuple(checked.name for checked in self.variables if checked.tape is None)

    def __str__(self) -> str:
        none = f"; no gradient: {', '.join(self.without_gradient)}" if self.without_gradient else ""
        return (
            f"worst relative error {self.worst.relative_error:.1e} in {self.worst.name}, "
            f"in {self.dtype}{none}"
        )


def check_gradients(
    fn: Callable[..., Any], variables: Sequence[Any], *, most_elements: int = 100
) -> GradientReport:
    """Compare the gradients of `fn` from the tape with central differences.

    `fn` takes as many arguments as there are variables, or none and reads the variables itself.
    Variables are numbers, arrays, tensors or variables. Passed as arguments they are float64 if
    `fn` allows it; a variable that `fn` reads itself keeps its type, is changed and then restored.
    Of a large variable `most_elements` are checked, spread over it.

    >>> report = check_gradients(lambda a, b: 3 * a**2 + 2 * a * b, [5.0, 3.0])
    >>> [round(float(v.tape[0]), 3) for v in report.variables], report.worst.relative_error < 1e-8
    ([36.0, 10.0], True)
    """
    given = list(variables)
    if not given:
        raise ConfigurationError(
            "Nothing to check: no variables were given.",
            expected="at least one variable",
            received="an empty list",
            do="pass the variables, for instance model.trainable_variables",
        )
    by_name = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
    required = [p for p in inspect.signature(fn).parameters.values() if p.default is p.empty]
    names = [parameter.name for parameter in required if parameter.kind not in by_name]
    if not names:
        point = _Point(fn, tuple(map(_own_dtype, given)), tuple(given))
        return _checked(point, _labels(given), given, most_elements)
    labels = names if len(names) == len(given) else _labels(given)
    try:
        return _checked(_Point(fn, (tf.float64,) * len(given)), labels, given, most_elements)
    except (TypeError, ValueError, tf.errors.InvalidArgumentError, tf.errors.NotFoundError):
        # Something in `fn` is float32: a constant, a layer, one of its own variables.
        return _checked(_Point(fn, tuple(map(_own_dtype, given))), labels, given, most_elements)


@dataclass(frozen=True)
class _Point:
    """A function, and how it gets its variables: as arguments, or by reading them."""

    fn: Callable[..., Any]
    dtypes: tuple[tf.DType, ...]
    read: tuple[Any, ...] = ()
    """The variables that `fn` reads itself."""

    def output(self, values: Sequence[np.ndarray], tape: tf.GradientTape | None = None) -> Any:
        """Return the output of `fn` for these values, and what the tape has watched."""
        tensors = [tf.constant(v, d) for v, d in zip(values, self.dtypes, strict=True)]
        for variable, tensor in zip(self.read, tensors, strict=False):
            variable.assign(tensor)
        if tape is not None and not self.read:
            tape.watch(tensors)
        output = self.fn() if self.read else self.fn(*tensors)
        sources = [v.value if isinstance(v, keras.Variable) else v for v in self.read] or tensors
        return tf.convert_to_tensor(output), sources

    def array(self, values: Sequence[np.ndarray]) -> np.ndarray:
        """Return the output of `fn` as an array, for differences."""
        return np.asarray(self.output(values)[0], np.float64)


def _checked(
    point: _Point, names: Sequence[str], given: Sequence[Any], most_elements: int
) -> GradientReport:
    start = [np.array(v.numpy() if hasattr(v, "numpy") else v, np.float64) for v in given]
    with preserved(point.read):
        with tf.GradientTape() as tape:
            output, sources = point.output(start, tape)
        weights = tf.constant(_weights(output.shape), output.dtype)
        gradients = tape.gradient(output, sources, output_gradients=weights)
        first, again = point.array(start), point.array(start)
        if not np.array_equal(first, again, equal_nan=True):
            raise StepError(
                "The function returns a different value when it is called again.",
                expected="a function of its variables and nothing else",
                received=f"a difference of {np.max(np.abs(first - again)):.2g}",
                do="remove random numbers and counters: call layers with training=False",
            )
        checked = [
            CheckedVariable(name, *_derivatives(point, start, index, gradient, most_elements))
            for index, (name, gradient) in enumerate(zip(names, gradients, strict=True))
        ]
    return GradientReport(tuple(checked), min(point.dtypes, key=lambda d: d.size).name)


def _derivatives(
    point: _Point, start: list[np.ndarray], index: int, gradient: Any, most_elements: int
) -> tuple[np.ndarray | None, np.ndarray]:
    """Return the derivatives of the same elements, by the tape and by differences."""
    value, dtype = start[index], point.dtypes[index].as_numpy_dtype
    places = np.unique(np.linspace(0, value.size - 1, min(value.size, most_elements)).astype(int))
    # The step at which rounding and curvature distort a central difference least.
    step = float(np.finfo(dtype).eps) ** (1 / 3)

    def moved(place: int, by: float) -> tuple[np.ndarray, float]:
        other = value.copy()
        other.flat[place] = dtype(value.flat[place] + by * max(1.0, abs(value.flat[place])))
        output = point.array([*start[:index], other, *start[index + 1 :]])
        return output, float(other.flat[place])

    def slope(place: int) -> float:
        (above, right), (below, left) = moved(place, step), moved(place, -step)
        # Differences first: those of large sums would be lost in rounding.
        with np.errstate(invalid="ignore"):  # the report shows NaN
            return float(np.sum(_weights(above.shape) * (above - below))) / (right - left)

    numeric = np.array([slope(place) for place in places])
    if gradient is None:
        return None, numeric
    return np.asarray(tf.convert_to_tensor(gradient), np.float64).reshape(-1)[places], numeric


def _weights(shape: Any) -> np.ndarray:
    """Return weights to sum up an output so that errors of its elements do not cancel out."""
    size = int(np.prod(tuple(shape)))
    return np.reshape(1.0 if size == 1 else 1.0 + 0.5 * np.cos(np.arange(size)), tuple(shape))


def _labels(given: Sequence[Any]) -> list[str]:
    """Return the names of variables, with their positions if names are not unique."""
    names = [variable_name(v) if hasattr(v, "assign") else f"[{i}]" for i, v in enumerate(given)]
    return [n if names.count(n) == 1 else f"{n}[{i}]" for i, n in enumerate(names)]


def _own_dtype(value: Any) -> tf.DType:
    dtype = tf.as_dtype(getattr(value, "dtype", keras.config.floatx()))
    return dtype if dtype.is_floating else tf.as_dtype(keras.config.floatx())
