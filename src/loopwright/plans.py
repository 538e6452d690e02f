"""Plans: how steps are run. A plan is a value.

    lw.Trainer(task, plan="eager")                            # breakpoints and prints work
    lw.Trainer(task, plan=lw.Plan(step="xla", loop="fused"))  # the loop itself inside XLA

The default is `Plan(step="graph", loop="graph")`: many steps in one call of TensorFlow's own
executor.
"""

from dataclasses import dataclass
from typing import Literal

from loopwright.errors import ConfigurationError, message

_COMBINATIONS = (
    ("eager", "python"),
    ("graph", "python"),
    ("graph", "graph"),
    ("xla", "python"),
    ("xla", "graph"),
    ("xla", "fused"),
)


@dataclass(frozen=True)
class Plan:
    """How a step is run: what it is compiled to, what loops around it, where batches come from."""

    step: Literal["eager", "graph", "xla"] = "graph"
    loop: Literal["python", "graph", "fused"] = "graph"
    """One call per step, a loop around the step, or the loop itself inside XLA."""
    feed: Literal["resident", "stream"] | None = None
    """Gathered from arrays on the device, or read from an iterator. None: as the data allows."""

    def __post_init__(self) -> None:
        if (self.step, self.loop) not in _COMBINATIONS:
            plans = [f"Plan(step={step!r}, loop={loop!r})" for step, loop in _COMBINATIONS]
            raise ConfigurationError(
                message(
                    "There is no such plan.",
                    expected=" or ".join(plans),
                    received=f"Plan(step={self.step!r}, loop={self.loop!r})",
                    do='leave it out, or use plan="eager" for debugging',
                )
            )

    def __str__(self) -> str:
        word = next((word for word, plan in WORDS.items() if plan == self), None)
        return repr(self) if word is None else repr(word)

    @property
    def reads_iterator(self) -> bool:
        """Whether batches come from an iterator whatever the data is."""
        return self.feed == "stream" or self.loop == "python"


WORDS = {
    "graph": Plan("graph", "graph"),
    "eager": Plan("eager", "python"),
    "xla": Plan("xla", "graph"),
    "fused": Plan("xla", "fused"),
}


def plan_of(plan: Plan | str) -> Plan:
    """Reads a plan or its short word.

    >>> plan_of("fused")
    Plan(step='xla', loop='fused', feed=None)
    """
    if isinstance(plan, Plan):
        return plan
    if plan not in WORDS:
        raise ConfigurationError(
            message(
                "There is no plan of this name.",
                expected=" or ".join(map(repr, WORDS)),
                received=repr(plan),
                do="leave it out, or use one of the names above",
            )
        )
    return WORDS[plan]


@dataclass(frozen=True)
class Terms:
    """What a plan has to serve."""

    in_memory: bool
    """Whether the data can lie on the device as a whole; true if there is none."""
    plain: bool
    """Whether batches are dense tensors of numbers."""
    replicas: int


def objection(plan: Plan, terms: Terms) -> tuple[str, Plan] | None:
    """Why a plan cannot serve, and the nearest one that may; None if it can.

    >>> objection(WORDS["fused"], Terms(in_memory=False, plain=True, replicas=1))
    ('a loop inside XLA cannot read from an iterator', Plan(step='xla', loop='graph', feed=None))
    """
    if plan.step == "xla" and terms.replicas > 1:
        return "XLA does not run a step on several replicas", WORDS["graph"]
    if plan.step == "xla" and not terms.plain:
        return "XLA takes dense numbers only: no strings, no sparse or ragged tensors", WORDS[
            "graph"
        ]
    if plan.loop == "fused" and (not terms.in_memory or plan.feed == "stream"):
        return "a loop inside XLA cannot read from an iterator", WORDS["xla"]
    if plan.feed == "resident" and (not terms.in_memory or plan.loop == "python"):
        return "only arrays can lie on the device as a whole", Plan(plan.step, plan.loop)
    return None


def nearest(plan: Plan, terms: Terms) -> Plan:
    """The plan itself, or the nearest one that can serve."""
    while (objected := objection(plan, terms)) is not None:
        _, plan = objected
    return plan


def refuse(plan: Plan, terms: Terms) -> None:
    """Raises in words if a plan cannot serve."""
    objected = objection(plan, terms)
    if objected is not None:
        reason, _ = objected
        raise ConfigurationError(
            message(
                f"The plan {plan} cannot run this: {reason}.",
                expected="a plan that fits the task and its data",
                received=f"plan={plan}",
                do=f"use plan={nearest(plan, terms)}, the nearest that works, or leave it out",
            )
        )
