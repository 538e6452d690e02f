"""What optimizers of Keras keep to themselves: accumulators, counters, variables."""

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import keras

from loopwright.adaptations.replacement import replaced


@contextlib.contextmanager
def without_accumulation(optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    """Makes one `apply` of an accumulating optimizer an ordinary update.

    Keras' own accumulation branches inside a replica, which `tf.distribute` refuses. Its
    `iterations` must go on counting updates, not calls: Adam and schedules read it.
    If this moves: accumulation differs between one and several replicas (tested).
    """
    steps = optimizer.gradient_accumulation_steps
    if not steps:
        yield
        return
    owner = defining_class("iterations")
    original = owner.iterations

    def iterations(self: Any) -> Any:
        return self._iterations // steps if self is optimizer else original.fget(self)

    with (
        replaced(optimizer, "gradient_accumulation_steps", None),
        replaced(owner, "iterations", property(iterations)),
    ):
        yield


@dataclass(frozen=True)
class Applied:
    """One update by an optimizer."""

    optimizer: Any
    variables: list[Any]
    gradients: list[Any]


@contextlib.contextmanager
def watching_applies() -> Iterator[list[Applied]]:
    """Note each `apply` and `apply_gradients` of an optimizer, with what it was given.

    If this moves: the guards against unrolled loops and against two optimizers for one variable
    miss updates that a step makes by itself.
    """
    owner = defining_class("apply")
    original, seen = owner.apply, list[Applied]()

    # AutoGraph leaves functions of Keras alone: `wraps` lets this pass as such.
    @functools.wraps(original)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        grads = list(grads)
        seen.append(Applied(self, trainable_variables or [], grads))
        return original(self, grads, trainable_variables)

    with replaced(owner, "apply", apply):
        yield seen


def accumulators(optimizer: keras.optimizers.Optimizer, variables: list[Any]) -> list[Any]:
    """The optimizer's own gradient accumulators for `variables`, as `tf.Variable`s.

    If this moves: an accumulating optimizer fails with several replicas (tested).
    """
    stored = optimizer._accumulated_gradients
    return [stored[optimizer._get_variable_index(variable)].value for variable in variables]


def trained_by(optimizer: keras.optimizers.Optimizer) -> list[Any]:
    """The variables an optimizer was built for, in its own order.

    If this moves: every `fit` fails (tested).
    """
    return list(optimizer._trainable_variables)


def learning_rate_of(optimizer: keras.optimizers.Optimizer) -> Any:
    """What an optimizer was given as its learning rate: a variable, a schedule or a function.

    If this moves: every `fit` fails (tested).
    """
    return optimizer._learning_rate


def update_counter(optimizer: keras.optimizers.Optimizer) -> Any:
    """The optimizer's count of calls, which `iterations` divides by the accumulation steps.

    If this moves: no step with an optimizer can be built (tested).
    """
    return optimizer._iterations


def counter_in(graph: Any, optimizer: keras.optimizers.Optimizer) -> Any:
    """The optimizer's count of calls as a graph has captured it; None if it has not.

    If this moves: the guard against a count returned as a loss says nothing (tested).
    """
    handle = update_counter(optimizer).value.handle
    return next((inner for outer, inner in graph.captures if outer is handle), None)


def defining_class(attribute: str) -> Any:
    """The class that gives Keras optimizers this attribute, where it can be replaced for all."""
    return next(cls for cls in keras.optimizers.Optimizer.__mro__ if attribute in vars(cls))
