"""The formats of files about plans and settings, read strictly: they may come from anyone.

Imported only when a file is read: `loopwright --help` does without pydantic.
"""

# ruff: noqa: RUF012  (pydantic copies defaults)
# pyright: reportUninitializedInstanceVariable=false
# Of pydantic's own attributes, in classes with an abstract base.

import json
from abc import ABC
from typing import Annotated, Any, Literal, TypeVar, final

from pydantic import Field, ValidationError

from loopwright.plans.plan import Plan, Rewrite
from loopwright.plans.settings import MOST_THREADS
from loopwright.records import Record, in_words

_Count = Annotated[int, Field(ge=0, le=2**53)]
_Threads = Annotated[int, Field(ge=0, le=MOST_THREADS)]
_Amount = Annotated[float, Field(ge=0)]
_Rate = Annotated[float, Field(gt=0)]


@final
class PlanRecord(Record):
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


class SettingsFields(Record, ABC):
    """What a process is started by."""

    onednn: bool
    xla_flags: list[str] = []
    intra_op_threads: _Threads = 0
    inter_op_threads: _Threads = 0


@final
class _Change(Record):
    step: _Count
    plan: PlanRecord
    trial: bool = False


@final
class SettingsRecord(SettingsFields):
    """Process settings."""


@final
class _SettingsChange(SettingsFields):
    step: _Count


@final
class _Choice(Record):
    plan: PlanRecord
    why: str


@final
class HistoryRecord(Record):
    """A `plan.json`, and the plans in a checkpoint."""

    format: Literal[1]
    changes: list[_Change]
    notes: list[str]
    choices: dict[str, _Choice]
    measured: list[str] = []
    settings: list[_SettingsChange] = []


@final
class _Tried(Record):
    plan: PlanRecord
    state: Literal["measured", "failed", "not tried"]
    reason: str
    rates: list[_Rate]
    steps: _Count
    compile_seconds: _Amount


@final
class EntryRecord(Record):
    """A file of the memory of plans."""

    format: Literal[2]
    plan: PlanRecord
    why: str
    tried: list[_Tried]
    date: str
    load: _Amount
    version: str
    title: str


@final
class ChoiceRecord(Record):
    """A file of the memory of process settings."""

    format: Literal[2]
    identity: str
    default: SettingsRecord
    chosen: SettingsRecord
    gain: _Rate
    run_dir: str


_R = TypeVar("_R", bound=Record)


def read(kind: type[_R], content: Any) -> _R:
    """Return the record in JSON values; raise ValueError that names the first problem.

    >>> read(SettingsRecord, {"onednn": "yes"})
    Traceback (most recent call last):
    ValueError: onednn: expected a valid boolean, received 'yes'
    """
    try:
        return kind.model_validate_json(json.dumps(content))
    except ValidationError as error:
        raise ValueError(in_words(error)) from None
