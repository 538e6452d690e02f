"""Gradient transforms: functions `(gradients, variables) -> gradients` for `minimize`.

    lw.Supervised(model, "mse", "adam", gradients=[clip_by_global_norm(1.0), centralize()])
    self.minimize(loss, model, optimizer, tape, transform=[self.noise])

They receive gradients that are averaged over replicas and unscaled, and run in the given order,
before the optimizer's own accumulation and clipping. A limit, a stddev or a factor can be an
`lw.Scheduled`.
"""

import re
from collections.abc import Mapping
from typing import Any, final

import keras
import tensorflow as tf

from loopwright.compat.lines import variable_name
from loopwright.errors import StepError
from loopwright.task.gradients import Transform, times


def clip_by_global_norm(limit: Any) -> Transform:
    """Scale all gradients down together, so that their global norm is at most `limit`.

    >>> [gradient] = clip_by_global_norm(2.5)([tf.constant([3.0, 4.0])], ["w"])
    >>> gradient.numpy().tolist()
    [1.5, 2.0]
    """
    return _ClipByGlobalNorm(limit)


def add_noise(stddev: Any, seed: int) -> Transform:
    """Add normal noise, after Neelakantan et al., 2015 (arXiv:1511.06807).

    Its seed is saved with the task that owns it: in `Supervised(gradients=[...])`, or as an
    attribute set in `__init__`. The sparse gradient of an embedding becomes dense.

    >>> noise = add_noise(0.01, seed=0)
    """
    return _Noise(stddev, seed)


def centralize() -> Transform:
    """Subtract from each output's gradient its mean over the inputs, after Yong et al., 2020.

    >>> [kernel] = centralize()([tf.constant([[1.0, 4.0], [3.0, 4.0]])], ["kernel"])
    >>> kernel.numpy().tolist()
    [[-1.0, 0.0], [1.0, 0.0]]
    """
    return _centralized


def freeze(pattern: str) -> Transform:
    """Do not update variables whose name matches, not even by weight decay.

    The pattern is a regular expression, searched in names such as `encoder/dense/kernel`.

    >>> weights = [keras.Variable(1.0, name="encoder"), keras.Variable(1.0, name="head")]
    >>> freeze("encoder")([tf.constant(5.0), tf.constant(6.0)], weights)[0] is None
    True
    """

    def transform(gradients: list[Any], variables: list[Any]) -> list[Any]:
        _require_match([pattern], variables)
        return [
            None if re.search(pattern, variable_name(variable)) else gradient
            for gradient, variable in zip(gradients, variables, strict=True)
        ]

    return transform


def scale(factors: Mapping[str, Any]) -> Transform:
    """Multiply the gradient of each variable by the factor of the first matching pattern.

    >>> weights = [keras.Variable(1.0, name="encoder"), keras.Variable(1.0, name="head")]
    >>> scaled = scale({"encoder": 0.5})([tf.constant(4.0), tf.constant(4.0)], weights)
    >>> [float(gradient) for gradient in scaled]
    [2.0, 4.0]
    """
    return _Scale(factors)


# Transforms with state are objects: Loopwright finds the state of objects, not of closures.


@final
class _ClipByGlobalNorm:
    def __init__(self, limit: Any) -> None:
        self.limit = limit

    def __call__(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        # Rows of an embedding can occur twice: the norm counts their sum, as in the dense table.
        norm = tf.linalg.global_norm([tf.convert_to_tensor(gradient) for gradient in gradients])
        limit = tf.cast(tf.convert_to_tensor(self.limit), norm.dtype)
        return [times(gradient, limit / tf.maximum(norm, limit)) for gradient in gradients]


@final
class _Noise:
    def __init__(self, stddev: Any, seed: int) -> None:
        self.stddev, self.seed = stddev, keras.random.SeedGenerator(seed)

    def __call__(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        return [self._noisy(tf.convert_to_tensor(gradient)) for gradient in gradients]

    def _noisy(self, gradient: Any) -> Any:
        noise = keras.random.normal(tf.shape(gradient), dtype=gradient.dtype.name, seed=self.seed)
        return gradient + noise * tf.cast(tf.convert_to_tensor(self.stddev), gradient.dtype)


@final
class _Scale:
    def __init__(self, factors: Mapping[str, Any]) -> None:
        self.factors = dict(factors)

    def __call__(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        _require_match(list(self.factors), variables)
        pairs = zip(gradients, variables, strict=True)
        return [self._scaled(gradient, variable_name(variable)) for gradient, variable in pairs]

    def _scaled(self, gradient: Any, name: str) -> Any:
        for pattern, factor in self.factors.items():
            if re.search(pattern, name):
                return times(gradient, factor)
        return gradient


def _centralized(gradients: list[Any], variables: list[Any]) -> list[Any]:
    def centred(gradient: Any) -> Any:
        rank = gradient.shape.rank
        if rank is None or rank < 2:
            return gradient
        whole = tf.convert_to_tensor(gradient)
        return whole - tf.reduce_mean(whole, axis=list(range(rank - 1)), keepdims=True)

    return [centred(gradient) for gradient in gradients]


def _require_match(patterns: list[str], variables: list[Any]) -> None:
    names = [variable_name(variable) for variable in variables]
    for pattern in patterns:
        if not any(re.search(pattern, name) for name in names):
            raise StepError(
                f"No variable matches the pattern {pattern!r}.",
                expected="a regular expression that matches the name of a variable",
                received="variables " + ", ".join(names),
                do="correct the pattern; name your layers to tell them apart",
            )
