"""Which plan ran which steps: a value that can be kept in a file and run again.

trainer = lw.Trainer(task)
trainer.fit(x, y, epochs=50)
trainer.plan_history.save("plan.json")
lw.Trainer(task_made_anew, plan="plan.json").fit(x, y, epochs=50)     # the same bits
"""

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final

from loopwright.errors import ConfigurationError, message
from loopwright.plans import Plan

_FORMAT = 1


@dataclass(frozen=True)
class PlanChange:
    """From the step after `step` on, steps ran by this plan."""

    step: int
    plan: Plan


@final
@dataclass(frozen=True)
class PlanHistory:
    """The plans of a run, and since which step.

    >>> history = PlanHistory().changed(0, Plan()).changed(90, Plan("xla", "fused"))
    >>> history.at(40)
    (Plan(step='graph', loop='graph', feed=None), 50)
    """

    changes: tuple[PlanChange, ...] = ()
    notes: tuple[str, ...] = ()
    """What was measured, skipped and chosen, in words."""

    def changed(self, step: int, plan: Plan) -> "PlanHistory":
        """The history with a plan that runs the steps after `step`."""
        if self.changes and self.changes[-1].plan == plan:
            return self
        # A plan that ran no step has left nothing behind.
        kept = tuple(change for change in self.changes if change.step < step)
        if kept and kept[-1].plan == plan:
            return replace(self, changes=kept)
        return replace(self, changes=(*kept, PlanChange(step, plan)))

    def with_plans(self, change: Callable[[Plan], Plan]) -> "PlanHistory":
        """The history with each plan replaced by what `change` makes of it."""
        plans = tuple(PlanChange(c.step, change(c.plan)) for c in self.changes)
        return replace(self, changes=plans)

    def noted(self, note: str) -> "PlanHistory":
        """The history with one more note."""
        return replace(self, notes=(*self.notes, note))

    def at(self, step: int) -> tuple[Plan, int | None]:
        """The plan after `step` steps, and for how many steps more; None: to the end."""
        known = [change for change in self.changes if change.step <= step]
        current = known[-1] if known else self.changes[0]
        later = [change.step for change in self.changes if change.step > step]
        return current.plan, (later[0] - step if later and known else None)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a file that `Trainer(plan=path)` runs again."""
        changes = [{"step": change.step, "plan": asdict(change.plan)} for change in self.changes]
        content = {"format": _FORMAT, "changes": changes, "notes": self.notes}
        Path(path).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


@final
class Recorded:
    """Runs steps by the plans of a history: one plan, where it was fixed."""

    choice = None

    def __init__(self, history: PlanHistory) -> None:
        self._history = history

    def plan_after(self, step: int) -> Plan:
        """The plan after `step` steps."""
        return self._history.at(step)[0]

    def next(self, step: int, steps: int) -> tuple[Plan, int]:
        """The plan after `step` steps, and how many of the next `steps` to run by it."""
        plan, left = self._history.at(step)
        return plan, steps if left is None else min(steps, left)

    def ran(self, plan: Plan, steps: int, seconds: float, compile_seconds: float) -> None:
        """Nothing to learn."""


def load(path: str | os.PathLike[str]) -> PlanHistory:
    """Reads what `PlanHistory.save` wrote."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        return _parsed(content)
    except FileNotFoundError:
        reason = "there is no such file"
    except (OSError, ValueError, TypeError, KeyError) as error:
        reason = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    raise ConfigurationError(
        message(
            "This plan history cannot be read.",
            expected="a file written by trainer.plan_history.save(...)",
            received=f"{os.fspath(path)}: {reason}",
            do='check the path, or leave plan out: "auto" measures anew',
        )
    )


def _parsed(content: Any) -> PlanHistory:
    if content["format"] != _FORMAT:
        raise ValueError(f"format {content['format']}, where this version reads {_FORMAT}")
    changes = tuple(
        PlanChange(int(change["step"]), Plan(**change["plan"])) for change in content["changes"]
    )
    steps = [change.step for change in changes]
    if not changes or steps != sorted(set(steps)):
        raise ValueError("there is at least one change, and their steps rise")
    return PlanHistory(changes, tuple(map(str, content["notes"])))
