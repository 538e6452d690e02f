"""Which plan ran which steps: a value that can be saved to a file and run again.

trainer = lw.Trainer(make_task())
trainer.fit(x, y, epochs=50)
trainer.plan_history.save("plan.json")
lw.Trainer(make_task(), plan="plan.json").fit(x, y, epochs=50)     # the same bits
"""

# ruff: noqa: RUF012  (pydantic copies defaults)
# pyright: reportUninitializedInstanceVariable=false
# Of pydantic's own attributes, in classes with an abstract base.

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, final

from pydantic import Field, ValidationError

from loopwright import disk, launch, untrusted
from loopwright.errors import ConfigurationError, first_line
from loopwright.launch import MOST_THREADS, Settings
from loopwright.plans.plan import Plan, Rewrite
from loopwright.records import Record, in_words

_FORMAT = 1


@dataclass(frozen=True)
class PlanChange:
    """The steps after `step` ran by this plan."""

    step: int
    plan: Plan
    is_trial: bool = False
    """Whether the plan was only being measured against the plan in force."""


@dataclass(frozen=True)
class SettingsChange:
    """The steps after `step` ran in a process with these settings."""

    step: int
    settings: Settings


@final
@dataclass(frozen=True)
class PlanChoice:
    """A chosen plan, and the reason in words."""

    plan: Plan
    why: str


@final
@dataclass(frozen=True)
class PlanHistory:
    """The plans of a run, and the steps after which they changed.

    >>> history = PlanHistory().changed(0, Plan()).changed(90, Plan("xla", "fused"))
    >>> history.at(40)
    (Plan(step='graph', loop='graph', feed=None), 50)
    """

    changes: tuple[PlanChange, ...] = ()
    notes: tuple[str, ...] = ()
    """What was measured, skipped and chosen, in words."""
    choices: Mapping[str, PlanChoice] = field(default_factory=dict[str, PlanChoice])
    """What was chosen for each kind of step: a resumed run follows it."""
    measured: tuple[str, ...] = ()
    """Kinds of step that the cache had no choice for: the run measures them, also when resumed."""
    settings: tuple[SettingsChange, ...] = ()
    """Which process settings ran which steps; empty in records of earlier versions."""

    @property
    def in_force(self) -> Plan | None:
        """The last plan that was not on trial; None if no step was run."""
        plans = [change.plan for change in self.changes if not change.is_trial]
        return plans[-1] if plans else None

    def changed(self, step: int, plan: Plan, *, is_trial: bool = False) -> "PlanHistory":
        """Return the history with a plan that runs the steps after `step`."""
        change = PlanChange(step, plan, is_trial)
        if self.changes and replace(self.changes[-1], step=step) == change:
            return self
        # A plan that ran no step is not recorded.
        kept = tuple(change for change in self.changes if change.step < step)
        if kept and replace(kept[-1], step=step) == change:
            return replace(self, changes=kept)
        return replace(self, changes=(*kept, change))

    def with_plans(self, change: Callable[[Plan], Plan]) -> "PlanHistory":
        """Return the history with `change` applied to each plan."""
        plans = tuple(replace(c, plan=change(c.plan)) for c in self.changes)
        return replace(self, changes=plans)

    def with_rewrites_of(self, recorded: "PlanHistory") -> "PlanHistory":
        """Return the history with open rewrites set to the last ones recorded, if there are any."""
        known = [c.plan.rewrites for c in recorded.changes if c.plan.step == "xla"]

        def closed(plan: Plan) -> Plan:
            return replace(plan, rewrites=known[-1]) if plan.rewrites is None else plan

        return self.with_plans(closed) if known else self

    def noted(self, note: str) -> "PlanHistory":
        """Return the history with one more note."""
        return replace(self, notes=(*self.notes, note))

    def chosen(self, identity: str, choice: PlanChoice) -> "PlanHistory":
        """Return the history with the choice for a kind of step."""
        return replace(self, choices={**self.choices, identity: choice})

    def measuring(self, identity: str) -> "PlanHistory":
        """Return the history of a run that measures the plans for a kind of step itself."""
        return replace(self, measured=(*self.measured, identity))

    def with_settings(self, step: int, found: Settings) -> "PlanHistory":
        """Return the history with settings that the steps after `step` run by."""
        kept = tuple(change for change in self.settings if change.step < step)
        if kept and kept[-1].settings == found:
            return self if len(kept) == len(self.settings) else replace(self, settings=kept)
        return replace(self, settings=(*kept, SettingsChange(step, found)))

    def settings_after(self, step: int) -> Settings | None:
        """Return the settings that the step after `step` steps ran by; None if not recorded."""
        known = [change.settings for change in self.settings if change.step <= step]
        return known[-1] if known else None

    def at(self, step: int) -> tuple[Plan, int | None]:
        """Return the plan after `step` steps, and for how many steps; None: to the end."""
        later = [change.step for change in self.changes if change.step > step]
        is_known = len(later) < len(self.changes)
        return self._change_at(step).plan, (later[0] - step if later and is_known else None)

    def is_trial_at(self, step: int) -> bool:
        """Return whether the plan after `step` steps was on trial."""
        return self._change_at(step).is_trial

    def _change_at(self, step: int) -> PlanChange:
        known = [change for change in self.changes if change.step <= step]
        return known[-1] if known else self.changes[0]

    def until(self, step: int) -> "PlanHistory":
        """Return the history of the first `step` steps."""
        changes = tuple(c for c in self.changes if c.step < step)
        return replace(
            self, changes=changes, settings=tuple(c for c in self.settings if c.step < step)
        )

    def content(self) -> dict[str, Any]:
        """Return the history as JSON values."""
        changes = [
            {"step": each.step, "plan": asdict(each.plan)}
            | ({"trial": True} if each.is_trial else {})
            for each in self.changes
        ]
        choices = {identity: asdict(choice) for identity, choice in self.choices.items()}
        return {
            "format": _FORMAT,
            "changes": changes,
            "notes": list(self.notes),
            "choices": choices,
            "measured": list(self.measured),
            "settings": [{"step": c.step, **c.settings.content()} for c in self.settings],
        }

    def text(self) -> str:
        """Return the content of a file of the history."""
        return json.dumps(self.content(), indent=2) + "\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file that `Trainer(plan=path)` runs again."""
        Path(path).write_text(self.text(), encoding="utf-8")


@final
class PlanLog:
    """The history of a run while it grows: a change is written before it is used."""

    def __init__(self) -> None:
        self.history = PlanHistory()
        self.settings = launch.current()
        """What this process runs by."""
        self._write: Callable[[PlanHistory], None] = lambda plans: None
        self._is_unwritten = False

    def write_to(self, write: Callable[[PlanHistory], None]) -> None:
        """Have the history written durably by this function."""
        self._write = write

    def resume(self, history: PlanHistory) -> None:
        """Continue a history that was written before."""
        self.history = history

    def go_back(self, step: int) -> None:
        """Forget the plans after `step` steps: these steps run again."""
        self.history = self.history.until(step)

    def note(self, text: str) -> None:
        """Add a note, to be written with the next change."""
        self.history = self.history.noted(text)

    def change(self, history: PlanHistory) -> None:
        """Take a changed history, to be written by the next `flush`."""
        self._is_unwritten |= history is not self.history and history != self.history
        self.history = history

    def record(self, step: int, plan: Plan, *, is_trial: bool) -> None:
        """Write which plan will run the steps after `step`."""
        changed = self.history.changed(step, plan, is_trial=is_trial)
        self.change(changed.with_settings(step, self.settings))
        self.flush()

    def flush(self) -> None:
        """Write what has changed; before the first step there is nothing to repeat."""
        if self._is_unwritten and self.history.changes:
            self._write(self.history)
            self._is_unwritten = False


def recorded(run_dir: Path) -> PlanHistory | None:
    """Return the history in the `plan.json` of a run; None if there is none that can be read."""
    found = untrusted.json_or_none(run_dir, "plan.json")
    try:
        return parsed(found)
    except ValueError:
        return None


def load(path: str | os.PathLike[str]) -> PlanHistory:
    """Return the history in a file that `PlanHistory.save` wrote.

    The config of a run may name it: a symlink, a pipe and an endless file are refused.
    """
    try:
        found = parsed(untrusted.read_json(Path(path).parent, Path(path).name))
        if not found.changes:
            raise ValueError("no step was run yet")
        return found
    except FileNotFoundError:
        reason = "the file does not exist"
    except disk.UnsafeFileError as error:
        reason = error.reason.partition(";")[0]
    except (OSError, ValueError) as error:
        reason = first_line(error)
    raise ConfigurationError(
        "The plan history cannot be read.",
        expected="a file written by trainer.plan_history.save(...)",
        received=f"{os.fspath(path)}: {reason}",
        do='check the path, or leave plan out: "auto" measures again',
    )


# -- the file, read strictly: it may come from anyone ----------------------------------------------

_Count = Annotated[int, Field(ge=0, le=2**53)]
_Threads = Annotated[int, Field(ge=0, le=MOST_THREADS)]
_R = TypeVar("_R", bound=Record)


@final
class _PlanRecord(Record):
    """A plan; one without rewrites is older than they are, and ran without any."""

    step: Literal["eager", "graph", "xla"] = "graph"
    loop: Literal["python", "graph", "fused"] = "graph"
    feed: Literal["resident", "stream", "chunk"] | None = None
    rewrites: list[Rewrite] | None = []

    @property
    def value(self) -> Plan:
        """The plan itself; raises for parts that do not go together."""
        rewrites = None if self.rewrites is None else tuple(self.rewrites)
        return Plan(self.step, self.loop, self.feed, rewrites)


@final
class _ChangeRecord(Record):
    step: _Count
    plan: _PlanRecord
    trial: bool = False


@final
class _SettingsRecord(Record):
    """What a process was started by that ran the steps after `step`."""

    step: _Count
    onednn: bool
    xla_flags: list[str] = []
    intra_op_threads: _Threads = 0
    inter_op_threads: _Threads = 0

    @property
    def value(self) -> Settings:
        """The settings themselves."""
        threads = (self.intra_op_threads, self.inter_op_threads)
        return Settings(self.onednn, tuple(self.xla_flags), *threads)


@final
class _ChoiceRecord(Record):
    plan: _PlanRecord
    why: str


@final
class _HistoryRecord(Record):
    """A `plan.json`, and the plans in a checkpoint."""

    format: Literal[1]
    changes: list[_ChangeRecord]
    notes: list[str]
    choices: dict[str, _ChoiceRecord]
    measured: list[str] = []
    settings: list[_SettingsRecord] = []


def settings_in_words(content: Any) -> str:
    """Return one of the "settings" of a plan history in words; raise ValueError for others.

    >>> settings_in_words({"step": 0, "onednn": "yes"})
    Traceback (most recent call last):
    ValueError: onednn: expected a valid boolean, received 'yes'
    """
    return _validated(_SettingsRecord, content).value.in_words


def parsed(content: Any) -> PlanHistory:
    """Return the history in the values of `PlanHistory.content`; raise ValueError for others."""
    history = _validated(_HistoryRecord, content)
    for steps in ([c.step for c in history.changes], [c.step for c in history.settings]):
        if steps != sorted(set(steps)):
            raise ValueError("the steps of the changes are not increasing")
    return PlanHistory(
        tuple(PlanChange(c.step, c.plan.value, c.trial) for c in history.changes),
        tuple(history.notes),
        {name: PlanChoice(c.plan.value, c.why) for name, c in history.choices.items()},
        tuple(history.measured),
        tuple(SettingsChange(c.step, c.value) for c in history.settings),
    )


def _validated(kind: type[_R], content: Any) -> _R:
    try:
        return kind.model_validate_json(json.dumps(content))
    except ValidationError as error:
        raise ValueError(in_words(error)) from None
