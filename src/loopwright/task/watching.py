"""Watching gradients: the norm of each in every step, and the last ones as they were."""

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

import tensorflow as tf

from loopwright.task import variables as state

_current = threading.local()  # replicas are traced in threads of their own


@final
class GradientWatch:
    """What a trainer watches of its gradients; `keeps`: the last ones too, for histograms.

    They are kept in variables that belong to nobody: neither saved nor resumed.
    """

    def __init__(self, *, keeps: bool) -> None:
        self._keeps = keeps
        self._kept: dict[int, tuple[Any, tf.Variable]] = {}

    @contextlib.contextmanager
    def recording(self) -> Iterator[dict[int, tuple[Any, Any]]]:
        """Collects each variable that is updated in this thread, and the norm of its gradient."""
        before, norms = getattr(_current, "recorded", None), dict[int, tuple[Any, Any]]()
        _current.recorded = (self, norms)
        try:
            yield norms
        finally:
            _current.recorded = before

    def holds(self, variable: Any) -> bool:
        """Whether a variable, or the handle of one, is its own: no part of the step's state."""
        own = {id(kept.handle) for _, kept in self._kept.values()}
        return id(getattr(variable, "handle", variable)) in own

    def last(self, owner: Any) -> dict[str, Any]:
        """The gradients of the last step that updated each variable, by its name in `owner`."""
        return named(owner, {key: (v, kept.numpy()) for key, (v, kept) in self._kept.items()})

    def keep(self, variable: Any, gradient: Any) -> None:
        """Puts a gradient aside, if that is asked for."""
        if not self._keeps:
            return
        if id(variable) not in self._kept:
            with tf.init_scope():
                aside = tf.Variable(tf.zeros(variable.shape), trainable=False, name="gradient")
            self._kept[id(variable)] = (variable, aside)
        self._kept[id(variable)][1].assign(tf.cast(tf.convert_to_tensor(gradient), tf.float32))


def is_recording() -> bool:
    """Whether anybody watches this step."""
    return getattr(_current, "recorded", None) is not None


def record(variables: Sequence[Any], norms: Sequence[Any], gradients: Sequence[Any] = ()) -> None:
    """Tells whoever watches of an update; without gradients it is none, but a dry run."""
    if not is_recording():
        return
    watch, recorded = _current.recorded
    recorded.update((id(v), (v, norm)) for v, norm in zip(variables, norms, strict=True))
    for variable, gradient in zip(variables, gradients, strict=False):
        watch.keep(variable, gradient)


def named(owner: Any, found: Mapping[int, tuple[Any, Any]]) -> dict[str, Any]:
    """What was found of each variable, by its name in `owner`: `model.layers[0].kernel`."""
    paths = {id(variable): path for path, variable in state.named(owner).items()}
    return {paths.get(id(getattr(v, "value", v)), str(v.name)): w for v, w in found.values()}
