"""Mistakes that the trace of a step shows: of a task, or of a compiled Keras model."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from loopwright import step_warnings
from loopwright.compat import (
    error_messages,
    keras_internals,
    keras_optimizers,
    tensorflow_internals,
)
from loopwright.compat.keras_internals import Called
from loopwright.compat.keras_optimizers import Applied
from loopwright.compat.random_calls import Line
from loopwright.engine.step import Step
from loopwright.errors import message
from loopwright.guards import calls, labels, operations
from loopwright.guards import updates as updated_variables
from loopwright.guards.side_effects import SideEffect, side_effects
from loopwright.task.task import owner


@dataclass(frozen=True)
class Watched:
    """What a step did while it was traced."""

    called: Called
    applied: list[Applied] = field(default_factory=list)
    gradients: list[tuple[Any, Any]] = field(default_factory=list)

    @property
    def updates(self) -> list[tuple[Any, list[Any]]]:
        """Optimizers and the variables they were given."""
        return [(each.optimizer, each.variables) for each in self.applied]


@contextlib.contextmanager
def watching(graph: Any, placeholders: Sequence[Any]) -> Iterator[Watched]:
    """Watch a step while it is traced; name what its losses were given, also if one of them fails.

    `placeholders` are the tensors of the batch.
    """
    with (
        keras_internals.watching_calls() as called,
        keras_optimizers.watching_applies() as applied,
        tensorflow_internals.watching_tapes() as gradients,
    ):
        try:
            yield Watched(called, applied, gradients)
        except Exception as error:
            calls.check_loss_arguments(called, graph, placeholders)
            labels.check_failed_loss(called.losses, error_messages.place_in(error))
            raise
    calls.check_loss_arguments(called, graph, placeholders)


def check(
    step: Step,
    watched: Watched,
    graph: Any,
    outputs: Mapping[str, Any],
    placeholders: Sequence[Any],
    *,
    met: Sequence[tuple[Any, list[Any]]] = (),
) -> None:
    """Look at a trace; `met` are the updates that `minimize` and `apply` of a task were asked for.

    With several replicas the trace of a task makes none of them.
    """
    called = watched.called
    labels.check_losses(called.losses)
    labels.check_logits(called.losses)
    labels.check_softmax(tf.nest.flatten(called.outputs))
    labels.check_metrics(called.metrics)
    operations.check_reads_batch(step.title, placeholders)
    operations.check_operations(step.title, graph, placeholders)
    if step.name != "train_step":
        return
    trained = [v for _, variables in [*met, *watched.updates] for v in variables]
    calls.check_training(called, trained)
    calls.check_updates(
        step.title, met, watched.updates, replicas=step.replicas if step.reports_last else 1
    )
    updated_variables.check_optimizers(step.title, watched.updates or met)
    if not step.reports_last:  # Keras' own examples sum, with weights for each example
        updated_variables.check_reduced(step.title, watched.gradients)
    if step.replicas == 1:
        updated_variables.check_loss(step.title, outputs, graph, placeholders, watched.applied)
    if not met:
        updated_variables.check_updated(step.title, step.task, graph)


def check_side_effects(step: Step) -> None:
    """Warn of Python statements in a step that is compiled: they run while it is traced."""
    source = owner(step.task)
    numbers = [name for name, value in vars(source).items() if isinstance(value, int | float)]

    def methods(name: str, inherited: bool) -> list[Line]:
        found = [vars(kind)[name] for kind in type(source).__mro__ if name in vars(kind)]
        chosen = found[1:] if inherited else found[:1]
        return [line for function in chosen for line in error_messages.own_lines(function)]

    for effect in side_effects(error_messages.own_lines(step.source), numbers, methods)[:1]:
        with step_warnings.silenced(step.silenced):
            step_warnings.warn("python-side-effect", _once(step.title, effect))


def _once(title: str, effect: SideEffect) -> str:
    what, instead = {
        "print": ("prints with Python", "use tf.print(...)"),
        "append": (
            "appends a symbolic tensor to a list",
            "return the value by name, and read it from the history or in a callback",
        ),
        "count": ("counts with a Python number", "count with self.step or a tf.Variable"),
    }[effect.kind]
    return message(
        f"{title} {what}{effect.place}: Python runs once, while the step is traced.",
        expected="TensorFlow operations for what should happen in each step",
        received="a Python statement with an effect outside the step",
        do=f'{instead}; or run Python in each step with plan="eager"',
    )
