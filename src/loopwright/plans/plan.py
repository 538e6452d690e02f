"""A plan: how steps are compiled, looped and fed, as a value.

    lw.Trainer(task)                                          # "auto": measured while it trains
    lw.Trainer(task, plan="eager")                            # breakpoints and prints work
    lw.Trainer(task, plan=lw.Plan(step="xla", loop="fused"))  # the loop itself inside XLA

Every run starts with `Plan(step="graph", loop="graph")`, many steps in one call of TensorFlow's own
executor, unless another plan is given.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from loopwright.errors import ConfigurationError, message

_COMBINATIONS = (
    ("eager", "python"),
    ("graph", "python"),
    ("graph", "graph"),
    ("xla", "python"),
    ("xla", "graph"),
    ("xla", "fused"),
)
_FEEDS = (None, "resident", "stream", "chunk")
_STEP_WORDS = {"eager": "Python step", "graph": "graph step", "xla": "XLA step"}
_LOOP_WORDS = {"python": "one call per step", "graph": "graph loop", "fused": "loop inside XLA"}
_FEED_WORDS = {
    "resident": "arrays on the device",
    "stream": "batches from an iterator",
    "chunk": "batches in chunks",
}


@dataclass(frozen=True)
class Plan:
    """How a step is run: how it is compiled, what loops around it, where batches come from."""

    step: Literal["eager", "graph", "xla"] = "graph"
    loop: Literal["python", "graph", "fused"] = "graph"
    """One call per step, a loop around the step, or the loop itself inside XLA."""
    feed: Literal["resident", "stream", "chunk"] | None = None
    """Gathered from arrays on the device, read from an iterator one by one, or several at a time.
    None: chosen by the kind of data."""

    def __post_init__(self) -> None:
        if (self.step, self.loop) not in _COMBINATIONS or self.feed not in _FEEDS:
            plans = [f"Plan(step={step!r}, loop={loop!r})" for step, loop in _COMBINATIONS]
            feeds = " or ".join(repr(feed) for feed in _FEEDS if feed)
            raise ConfigurationError(
                message(
                    "Unknown plan.",
                    expected=f"{' or '.join(plans)}, with feed={feeds} or none",
                    received=f"Plan(step={self.step!r}, loop={self.loop!r}, feed={self.feed!r})",
                    do='leave it out, or use plan="eager" for debugging',
                )
            )

    def __str__(self) -> str:
        word = next((word for word, plan in WORDS.items() if plan == self), None)
        return repr(self) if word is None else repr(word)

    @property
    def in_words(self) -> str:
        """The plan in words: `loop inside XLA, arrays on the device`."""
        parts = [] if self.loop == "fused" else [_STEP_WORDS[self.step]]
        parts.append(_LOOP_WORDS[self.loop])
        return ", ".join(parts + ([_FEED_WORDS[self.feed]] if self.feed else []))


WORDS = {
    "graph": Plan("graph", "graph"),
    "eager": Plan("eager", "python"),
    "xla": Plan("xla", "graph"),
    "fused": Plan("xla", "fused"),
}


def plan_of(plan: Plan | str) -> Plan:
    """Return a plan, given as a plan or by name.

    >>> plan_of("fused")
    Plan(step='xla', loop='fused', feed=None)
    """
    if isinstance(plan, Plan):
        return plan
    if plan not in WORDS:
        words = " or ".join(map(repr, ["auto", *WORDS]))
        raise ConfigurationError(
            message(
                f"Unknown plan {plan!r}.",
                expected=f"{words}, a Plan(...), a plan history, or the path of a plan.json",
                received=repr(plan),
                do="leave it out, or use one of the names above",
            )
        )
    return WORDS[plan]


def plan_from(content: Mapping[str, Any]) -> Plan:
    """Return the plan in the JSON values of `dataclasses.asdict`; raise if it is none.

    >>> plan_from({"step": "xla", "loop": "fused"})
    Plan(step='xla', loop='fused', feed=None)
    """
    return Plan(**content)


@dataclass(frozen=True)
class Terms:
    """What the task and its data require of a plan."""

    batches: Literal["none", "memory", "pipeline", "python"]
    """None; from arrays in memory; from a tf.data pipeline; made one by one in Python."""
    plain: bool = True
    """Whether batches are dense tensors of numbers."""
    replicas: int = 1


def objection(plan: Plan, terms: Terms) -> tuple[str, Plan] | None:
    """Return why a plan cannot be used, and the nearest one that may; None if it can.

    >>> objection(WORDS["fused"], Terms("python"))[0]
    'a loop inside XLA needs its batches in advance, and Python makes them one by one'
    """
    without_feed = Plan(plan.step, plan.loop)
    if plan.step == "xla" and terms.replicas > 1:
        return "XLA does not run a step on several replicas", WORDS["graph"]
    if plan.step == "xla" and not terms.plain:
        reason = "XLA takes dense numbers only: no strings, no sparse or ragged tensors"
        return reason, WORDS["graph"]
    if plan.loop == "fused" and terms.batches == "python":
        reason = "a loop inside XLA needs its batches in advance, and Python makes them one by one"
        return reason, WORDS["xla"]
    if plan.loop == "fused" and plan.feed == "stream":
        return "a loop inside XLA cannot read from an iterator", without_feed
    if plan.feed is not None and terms.batches == "none":
        return "there is no data to feed", without_feed
    if plan.feed == "resident" and (terms.batches != "memory" or plan.loop == "python"):
        return (
            "only arrays can be kept on the device as a whole, for loops that gather",
            without_feed,
        )
    if plan.feed == "chunk" and plan.loop == "python":
        return "a call for each step takes one batch, not a chunk of them", without_feed
    if plan.feed == "chunk" and (terms.batches == "python" or not terms.plain):
        return "chunks are stacked from dense batches of a tf.data pipeline", without_feed
    return None


def nearest(plan: Plan, terms: Terms) -> Plan:
    """Return the plan, or the nearest one that can be used."""
    while (objected := objection(plan, terms)) is not None:
        _, plan = objected
    return plan


def settled(plan: Plan, terms: Terms) -> Plan:
    """Return the plan with its feed set, where it was left to the data.

    >>> settled(WORDS["fused"], Terms("pipeline"))
    Plan(step='xla', loop='fused', feed='chunk')
    """
    if plan.feed is not None or terms.batches == "none":
        return plan
    if terms.batches == "memory" and plan.loop != "python":
        return replace(plan, feed="resident")
    return replace(plan, feed="chunk" if plan.loop == "fused" else "stream")


def refuse(plan: Plan, terms: Terms) -> None:
    """Raise if a plan cannot be used."""
    objected = objection(plan, terms)
    if objected is not None:
        reason, _ = objected
        raise ConfigurationError(
            message(
                f"The plan {plan} cannot run this task: {reason}.",
                expected="a plan that fits the task and its data",
                received=f"plan={plan}",
                do=f"use plan={nearest(plan, terms)}, the nearest that works, or leave it out",
            )
        )
