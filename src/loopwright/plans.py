"""Plans: how steps are run. A plan is a value.

    lw.Trainer(task, plan="eager")                              # breakpoints and prints work
    lw.Trainer(task, plan=lw.Plan(step="graph", loop="graph"))  # many steps in one call

The default is the second.
"""

from dataclasses import dataclass
from typing import Literal

from loopwright.errors import ConfigurationError, message

_COMBINATIONS = (("graph", "graph"), ("eager", "python"))


@dataclass(frozen=True)
class Plan:
    """How a step is run: what it is compiled to, and what loops around it."""

    step: Literal["eager", "graph"] = "graph"
    loop: Literal["python", "graph"] = "graph"

    def __post_init__(self) -> None:
        if (self.step, self.loop) not in _COMBINATIONS:
            plans = [f"Plan(step={step!r}, loop={loop!r})" for step, loop in _COMBINATIONS]
            raise ConfigurationError(
                message(
                    "There is no such plan.",
                    expected=" or ".join(plans),
                    received=f"Plan(step={self.step!r}, loop={self.loop!r})",
                    do='leave it out for the fastest, or use plan="eager" for debugging',
                )
            )


def plan_of(plan: Plan | str) -> Plan:
    """Reads a plan or its short word.

    >>> plan_of("eager")
    Plan(step='eager', loop='python')
    """
    words = {"graph": Plan("graph", "graph"), "eager": Plan("eager", "python")}
    if isinstance(plan, Plan):
        return plan
    if plan not in words:
        raise ConfigurationError(
            message(
                "There is no plan of this name.",
                expected=" or ".join(map(repr, words)),
                received=repr(plan),
                do="leave it out, or use one of the names above",
            )
        )
    return words[plan]
