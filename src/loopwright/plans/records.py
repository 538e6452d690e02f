"""The formats of files about plans and settings, read strictly: they may come from anyone.

Imported only when a file is read: `loopwright --help` does without pydantic.
"""

# ruff: noqa: RUF012  (pydantic copies defaults)
# pyright: reportUninitializedInstanceVariable=false
# Of pydantic's own attributes, in classes with an abstract base.

import json
from typing import Annotated, Any, Literal, TypeVar, final

from pydantic import Field, ValidationError

from loopwright.launch import MOST_THREADS, Settings
from loopwright.plans.plan import Plan, Rewrite
from loopwright.records import Record, in_words

_Count = Annotated[int, Field(ge=0, le=2**53)]
_Threads = Annotated[int, Field(ge=0, le=MOST_THREADS)]


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


@final
class _Change(Record):
    step: _Count
    plan: PlanRecord
    trial: bool = False


@final
class SettingsChangeRecord(Record):
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
    settings: list[SettingsChangeRecord] = []


_R = TypeVar("_R", bound=Record)


def read(kind: type[_R], content: Any) -> _R:
    """Return the record in JSON values; raise ValueError that names the first problem.

    >>> read(SettingsChangeRecord, {"step": 0, "onednn": "yes"})
    Traceback (most recent call last):
    ValueError: onednn: expected a valid boolean, received 'yes'
    """
    try:
        return kind.model_validate_json(json.dumps(content))
    except ValidationError as error:
        raise ValueError(in_words(error)) from None
