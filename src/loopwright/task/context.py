"""The context of a running step: what `minimize`, `apply` and `Scheduled` must know of it.

A context variable holds it. A new thread starts without one, and replicas are traced in threads
of their own: the engine enters the context inside the function that each replica calls.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, final

import tensorflow as tf

from loopwright.task import variables as state

Update = tuple[Any, list[Any]]
"""An optimizer, and the variables it is asked to update."""


@final
class GradientWatch:
    """What a trainer watches of its gradients; `keeps`: the last ones too, for histograms.

    They are kept in variables outside the task's state: neither saved nor resumed.
    """

    def __init__(self, *, keeps: bool) -> None:
        self._keeps = keeps
        self._kept: dict[int, tuple[Any, tf.Variable]] = {}

    def holds(self, variable: Any) -> bool:
        """Return whether a variable, or its handle, belongs to the watch and not to the step."""
        own = {id(kept.handle) for _, kept in self._kept.values()}
        return id(getattr(variable, "handle", variable)) in own

    def last(self, owner: Any) -> dict[str, Any]:
        """Return the last gradient of each updated variable, by the variable's name in `owner`."""
        return named(owner, {key: (v, kept.numpy()) for key, (v, kept) in self._kept.items()})

    def keep(self, variable: Any, gradient: Any) -> None:
        """Store the gradient of this step, if histograms are wanted."""
        if not self._keeps:
            return
        if id(variable) not in self._kept:
            with tf.init_scope():
                kept = tf.Variable(tf.zeros(variable.shape), trainable=False, name="gradient")
            self._kept[id(variable)] = (variable, kept)
        self._kept[id(variable)][1].assign(tf.cast(tf.convert_to_tensor(gradient), tf.float32))


@final
@dataclass(frozen=True)
class StepContext:
    """What code inside a step knows about the step that runs it; the default is: no step."""

    counter: tf.Variable | None = None
    """The step counter, which `Scheduled` follows; None outside of any step."""
    fraction: Any = None
    """This replica's part of the global batch, n_local / n_global; None with one replica."""
    reduced: Callable[[], contextlib.AbstractContextManager[None]] | None = None
    """With several replicas: marks gradients as reduced (see `compat`)."""
    draws_alike: bool = False
    """Whether all replicas draw the same random numbers, as for gradients already reduced."""
    requested: list[Update] | None = None
    """While building: collects every update that the step asks for."""
    updates: bool = True
    """False in a dry run that only collects."""
    watch: GradientWatch | None = None
    norms: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    """If there is a watch: each variable updated so far with the norm of its gradient, by id."""

    def record(
        self, variables: Sequence[Any], norms: Sequence[Any], gradients: Sequence[Any] = ()
    ) -> None:
        """Record an update for the watch, if there is one; a dry run has no gradients."""
        if self.watch is None:
            return
        self.norms.update((id(v), (v, norm)) for v, norm in zip(variables, norms, strict=True))
        for variable, gradient in zip(variables, gradients, strict=False):
            self.watch.keep(variable, gradient)


_current: ContextVar[StepContext] = ContextVar("step_context")


def current() -> StepContext:
    """Return the context of the step that runs in this thread."""
    return _current.get(StepContext())


@contextlib.contextmanager
def entered(context: StepContext) -> Iterator[StepContext]:
    """Make `context` the current one in this thread, until it is left."""
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)


def draws_alike() -> bool:
    """Return whether all replicas draw the same random numbers now."""
    return current().draws_alike


def named(owner: Any, found: Mapping[int, tuple[Any, Any]]) -> dict[str, Any]:
    """Return what was found for each variable, by its name in `owner`: `model.layers[0].kernel`."""
    paths = {id(variable): path for path, variable in state.named(owner).items()}
    return {paths.get(id(getattr(v, "value", v)), str(v.name)): w for v, w in found.values()}
