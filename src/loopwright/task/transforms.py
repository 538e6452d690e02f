"""Gradient transforms: functions that change gradients between the reduction and the optimizer."""

from collections.abc import Callable, Sequence
from typing import Any

from loopwright.errors import StepError, message

Transform = Callable[[list[Any], list[Any]], Sequence[Any]]
"""(gradients, variables) -> gradients, after the reduction over replicas.

None in place of a gradient leaves its variable as it is.
"""

Transforms = Transform | Sequence[Transform] | None
"""One, several in the order they are applied, or none."""


def transformed(
    transforms: Transforms, gradients: list[Any], variables: list[Any]
) -> tuple[list[Any], list[Any]]:
    """The gradients that all transforms leave, and their variables.

    >>> transformed(lambda gradients, variables: [None, 2.0], [1.0, 1.0], ["a", "b"])
    ([2.0], ['b'])
    """
    for transform in as_list(transforms):
        result = transform(list(gradients), list(variables))
        if not isinstance(result, list | tuple) or len(result) != len(gradients):
            raise StepError(
                message(
                    "A gradient transform has to return as many gradients as it was given.",
                    expected=f"a list of {len(gradients)} gradients",
                    received=f"{type(result).__name__}"
                    + (f" of {len(result)}" if isinstance(result, list | tuple) else ""),
                    do="write it as `def transform(gradients, variables): return [...]`",
                )
            )
        kept = [(g, v) for g, v in zip(result, variables, strict=True) if g is not None]
        gradients, variables = [g for g, _ in kept], [v for _, v in kept]
        if not gradients:
            raise StepError(
                message(
                    "The gradient transforms leave nothing to train.",
                    expected="a gradient for at least one variable",
                    received=f"None for all {len(result)}",
                    do="freeze fewer variables, or leave this minimize out",
                )
            )
    return gradients, variables


def as_list(transforms: Transforms) -> list[Transform]:
    """None, one or several, as a list."""
    if transforms is None:
        return []
    return [transforms] if callable(transforms) else list(transforms)
