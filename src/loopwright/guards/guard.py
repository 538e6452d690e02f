"""A guard: a function that looks at one value and yields the mistakes it finds there.

The trace of a step is such a value: made once by the engine, looked at by every guard.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, final

from loopwright.compat import keras_internals, keras_optimizers, tensorflow_internals
from loopwright.compat.keras_internals import Called
from loopwright.compat.keras_optimizers import Applied
from loopwright.errors import LoopwrightError, StepError, message
from loopwright.step_warnings import WarningId, declare, warn
from loopwright.task.context import Update
from loopwright.task.task import Task

T = TypeVar("T")


@final
@dataclass(frozen=True)
class Finding:
    """A mistake: the text of a warning or of an error."""

    text: str
    id: WarningId | None = None
    """The id of the warning; None for an error."""


Kind = Callable[..., Finding]
"""Makes findings of one kind of mistake, from the parts of a message."""


def warning(id: str, warns_that: str) -> Kind:
    """Declare a warning, and return what makes its findings."""
    declared = declare(id, warns_that)

    def find(what: str, *, do: str, **parts: str) -> Finding:
        return Finding(message(what, do=do, **parts), declared)

    return find


def refusal(what: str, *, do: str, **parts: str) -> Finding:
    """Return the finding of a mistake with which nothing can be trained."""
    return Finding(message(what, do=do, **parts))


Guard = Callable[[T], Iterable[Finding]]
"""Looks at a value, and yields the mistakes that it finds there; it changes nothing."""


def listed(texts: Sequence[str], most: int) -> str:
    """Return the first texts, and how many more there are.

    >>> listed(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    more = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {more} more" if more > 0 else "")


def examine(
    guards: Iterable[Guard[T]], seen: T, *, error: type[LoopwrightError] = StepError
) -> None:
    """Let each guard look at a value: warn of what it finds, or raise `error`."""
    for guard in guards:
        for finding in guard(seen):
            report(finding, error=error)


def report(finding: Finding, *, error: type[LoopwrightError] = StepError) -> None:
    """Warn of a mistake, or raise `error`."""
    if finding.id is None:
        raise error(finding.text) from None
    warn(finding.id, finding.text)


@final
@dataclass(frozen=True)
class Observed:
    """What a step did while it was traced."""

    called: Called
    """The layers, Keras losses and metrics that it called."""
    applied: list[Applied]
    """The updates that optimizers made."""
    gradients: list[tuple[Any, Any]]
    """Targets and sources of each `tape.gradient`."""
    requested: list[Update] = field(default_factory=list)
    """The updates that a task asked `minimize` and `apply` for.

    With several replicas the trace of a task makes none of them.
    """
    unused_losses: list[tuple[str, int]] = field(default_factory=list)
    """Trained models, and how many losses of their own layers the step did not use."""

    @property
    def updates(self) -> list[Update]:
        """Optimizers and the variables they were given."""
        return [(each.optimizer, each.variables) for each in self.applied]

    @property
    def all_updates(self) -> list[Update]:
        """The updates that were asked for, and those that were made."""
        return [*self.requested, *self.updates]


@contextlib.contextmanager
def observing() -> Iterator[Observed]:
    """Observe a step while it is traced."""
    with (
        keras_internals.watching_calls() as called,
        keras_optimizers.watching_applies() as applied,
        tensorflow_internals.watching_tapes() as gradients,
    ):
        yield Observed(called, applied, gradients)


@final
@dataclass(frozen=True)
class StepTrace:
    """One trace of a step, for one kind of batch."""

    title: str
    """The step's name in messages: `GAN.train_step`."""
    task: Task
    is_train: bool
    """Whether this is the train step, not the test step."""
    is_compiled: bool
    """Whether it is the step of a compiled Keras model, not of a task."""
    replicas: int
    graph: Any
    batch: list[Any]
    """The symbolic tensors of the batch; empty for a step without data."""
    observed: Observed
    outputs: Any = None
    """Outputs by name: of a task (weighted sum, weight); None if the trace failed."""
    error: Exception | None = None
    """What ended the trace, if it failed."""
