"""The kind of a step: its digest, what it requires of a plan, which plans may be faster."""

import functools
import hashlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from loopwright import launch
from loopwright.data.source import Feed
from loopwright.distribute.team import Team
from loopwright.engine.trace import Built
from loopwright.environment import for_digest
from loopwright.plans.plan import Plan, Terms, objection, settled
from loopwright.plans.selector import StepKind
from loopwright.plans.tuner import Candidate
from loopwright.rewrites import scope
from loopwright.task import variables
from loopwright.task.task import Task


def step_kind(task: Task, feed: Feed | None, team: Team, trace: Callable[[], Built]) -> StepKind:
    """Return the kind of a task's train step on this data; `trace` gives its trace."""
    terms = _terms(feed, team.strategy.num_replicas_in_sync)
    resident = None if feed is None else feed.resident
    facts = [
        None if feed is None else str(feed.batch_spec),
        None if resident is None else resident.batch_size,
        terms,
    ]

    def digest(*more: Any) -> str:
        held = [v for part in variables.parts(task) for v in variables.variables(part.value)]
        shapes = sorted(f"{variable.dtype.name}{tuple(variable.shape)}" for variable in held)
        known = [trace().digest, shapes, *facts, *more]
        return hashlib.sha256(repr(known).encode()).hexdigest()

    return StepKind(
        terms,
        is_shared=not team.is_alone,
        candidates=functools.partial(_candidates, feed, terms, trace),
        identity=lambda: digest(for_digest(launch.current())),
        digest=digest,
    )


def _candidates(feed: Feed | None, terms: Terms, trace: Callable[[], Built]) -> list[Candidate]:
    leaves = [] if feed is None else tf.nest.flatten(feed.batch_spec)
    if any(None in leaf.shape[1:] for leaf in leaves):
        return []  # XLA would compile again for each length
    savings = {Plan("xla", "fused"): 0.5, Plan("xla", "graph"): 0.1}
    if trace().has_convolutions and not tf.config.list_physical_devices("GPU"):
        # Inside XLA's loop they run many times slower, and nothing can interrupt a step.
        savings = {Plan("xla", "graph"): 0.3}
    return [
        Candidate(settled(plan, terms), saving)
        for plan, saving in savings.items()
        if objection(plan, terms) is None
    ]


def _terms(feed: Feed | None, replicas: int) -> Terms:
    rewrites = scope.available()
    if feed is None:
        return Terms("none", replicas=replicas, rewrites=rewrites)
    leaves = tf.nest.flatten(feed.batch_spec)
    streamed = "python" if feed.end == "each epoch" else "pipeline"
    return Terms(
        batches="memory" if feed.resident is not None else streamed,
        plain=all(isinstance(s, tf.TensorSpec) and s.dtype != tf.string for s in leaves),
        replicas=replicas,
        rewrites=rewrites,
    )
