"""Choosing: which plans may be faster for a step, how they are compiled beside the training."""

import atexit
import functools
import hashlib
import threading
from collections.abc import Callable, Sequence
from typing import Any, final

import tensorflow as tf

from loopwright.compat.environment import environment
from loopwright.data.source import Feed
from loopwright.engine.trace import Built
from loopwright.plans.plan import (
    Plan,
    Terms,
    objection,
    settled,
)
from loopwright.plans.tuner import Candidate, first_line
from loopwright.task import variables

_SECONDS_TO_WAIT_AT_EXIT = 60.0


def candidates(built: Built, feed: Feed | None, terms: Terms) -> list[Candidate]:
    """The plans that may be faster than the graph loop, the most promising first."""
    leaves = [] if feed is None else tf.nest.flatten(feed.batch_spec)
    if any(None in leaf.shape[1:] for leaf in leaves):
        return []  # XLA would compile anew for each length
    savings = {Plan("xla", "fused"): 0.5, Plan("xla", "graph"): 0.1}
    if built.has_convolutions and not tf.config.list_physical_devices("GPU"):
        # Inside XLA's loop they run many times slower, and nothing can interrupt a step.
        savings = {Plan("xla", "graph"): 0.3}
    return [
        Candidate(settled(plan, terms), saving)
        for plan, saving in savings.items()
        if objection(plan, terms) is None
    ]


def read_alike(one: Plan, other: Plan) -> bool:
    """Whether a training can switch from one plan to the other while its data is open."""
    return (one.feed == "resident") == (other.feed == "resident")


def remembered(plan: Plan, among: Sequence[Candidate]) -> Candidate:
    """The plan that an earlier run has chosen, worth as much as when it was tried."""
    savings = {candidate.plan: candidate.saving for candidate in among}
    return Candidate(plan, savings.get(plan, 0.5))


def identity(task: Any, built: Built, feed: Feed | None, terms: Terms) -> str:
    """The same for the same step, shapes, machine and versions, in any process."""
    held = [
        variable for part in variables.parts(task) for variable in variables.variables(part.value)
    ]
    known = [
        built.digest,
        sorted(f"{variable.dtype.name}{tuple(variable.shape)}" for variable in held),
        None if feed is None else str(feed.batch_spec),
        feed.resident.batch_size if feed is not None and feed.resident is not None else None,
        terms,
        environment(),
    ]
    return hashlib.sha256(repr(known).encode()).hexdigest()


@final
class BackgroundCompile:
    """Runs a compile in a thread, beside the training."""

    def __init__(self, compile: Callable[[], None]) -> None:
        self._compile, self._failure = compile, ""
        self._thread = threading.Thread(target=self._run, name="loopwright-compile", daemon=True)
        _wait_at_exit()
        _under_way.add(self._thread)
        self._thread.start()

    def is_over(self) -> bool:
        """Whether it has ended, well or badly."""
        return not self._thread.is_alive()

    def failure(self) -> str | None:
        """Why it failed, in one line; None if it did not."""
        return self._failure or None

    def _run(self) -> None:
        try:
            self._compile()
        except Exception as error:
            self._failure = first_line(error)
        finally:
            self._compile = lambda: None  # it holds the data
            _under_way.discard(self._thread)


_under_way: set[threading.Thread] = set()


@functools.cache
def _wait_at_exit() -> None:
    """Lets a compile end before the process does, which would crash it (XLA cannot be stopped)."""

    def wait() -> None:
        for thread in list(_under_way):
            thread.join(_SECONDS_TO_WAIT_AT_EXIT)

    atexit.register(wait)
