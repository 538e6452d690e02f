"""The memory of plans: choices of earlier runs, their evidence, and when to check them.

A file for each kind of step, in the cache directory of the user. It holds the plan, the reason, and
what was tried: the rates of each turn, or why there are none. Only what was tried to its end counts
as measured. The record of a run comes first: a resumed run never asks this memory.
"""

import contextlib
import json
import os
import statistics
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, final

from loopwright import disk
from loopwright.errors import first_line
from loopwright.plans.plan import Plan
from loopwright.plans.plan_history import Choice, PlanHistory

_FORMAT = 2
_MOST_BYTES = 1_000_000
_DAY = 86_400.0
_SOME_DAYS, _MANY_DAYS = 3, 14
_FAR = 1.5
TIE = "no difference beyond the noise"

State = Literal["measured", "failed", "not tried"]
Check = Literal["not due", "if the run is long", "due"]


@final
@dataclass(frozen=True)
class Tried:
    """What is known of a plan for one kind of step."""

    plan: Plan
    state: State
    reason: str = ""
    """Why it failed or was not tried."""
    rates: tuple[float, ...] = ()
    """The steps per second of each turn of its trial."""
    steps: int = 0
    """How many steps it ran in its trial."""
    compile_seconds: float = 0.0
    """How long it takes to compile while nothing else runs."""

    @property
    def rate(self) -> float:
        """The steps per second of the usual turn."""
        return statistics.median(self.rates)

    @property
    def in_words(self) -> str:
        """Rate and spread, or why there is none: `36.8 (35-37) steps/s`."""
        if self.state != "measured":
            return f"{self.state}, {self.reason}"
        reason = f", {self.reason}" if self.reason else ""
        return f"{rate_in_words(self.rates)} steps/s{reason}"


@final
@dataclass(frozen=True)
class Entry:
    """A remembered choice for one kind of step, and its evidence."""

    choice: Choice
    tried: tuple[Tried, ...]
    """Every plan that comes into question, the one that training starts with first."""
    date: float
    """When the oldest part of the evidence was measured, in seconds since 1970."""
    load: float = 0.0
    """How many processes were ready to run during the trials, for each core."""
    version: str = ""
    """The version of Loopwright."""
    title: str = ""
    """Task, model and shape of a batch, for people."""

    @property
    def is_complete(self) -> bool:
        """Whether every plan was tried to its end, or cannot be compiled."""
        return all(one.state != "not tried" for one in self.tried)

    def of(self, plan: Plan) -> Tried | None:
        """Return what is known of a plan."""
        return next((one for one in self.tried if one.plan == plan), None)

    def check(self, now: float) -> Check:
        """Return whether its plan has to be compared with the others again.

        >>> entry = Entry(Choice(Plan(), ""), (), date=0.0)
        >>> [entry.check(days * 86_400.0) for days in (1, 5, 15)]
        ['not due', 'if the run is long', 'due']
        """
        days = (now - self.date) / _DAY
        if not -1 <= days < _MANY_DAYS:  # a date in the future says nothing
            return "due"
        return "if the run is long" if days >= _SOME_DAYS else "not due"

    def content(self) -> dict[str, Any]:
        """Return the entry as JSON values."""
        return {
            "format": _FORMAT,
            **asdict(self.choice),
            "tried": [asdict(one) for one in self.tried],
            "date": datetime.fromtimestamp(self.date, UTC).isoformat(timespec="seconds"),
            "load": self.load,
            "version": self.version,
            "title": self.title,
        }


def is_far(rate: float, remembered: float) -> bool:
    """Return whether a rate is so far from the remembered one that the evidence is void.

    >>> is_far(15.8, remembered=36.8), is_far(33.0, remembered=36.8)
    (True, False)
    """
    return not 1 / _FAR < rate / remembered < _FAR


def rate_in_words(rates: tuple[float, ...]) -> str:
    """Return the usual rate, and the spread where there is one.

    >>> rate_in_words((35.0, 36.8, 37.2)), rate_in_words((5000.0, 5000.0))
    ('36.8 (35-37.2)', '5,000')
    """
    usual, *spread = (
        f"{rate:,.0f}" if rate >= 1000 else f"{rate:.3g}"
        for rate in (statistics.median(rates), min(rates), max(rates))
    )
    return usual if len({*spread}) == 1 else f"{usual} ({'-'.join(spread)})"


def reason_for(plan: Plan, tried: Sequence[Tried]) -> str:
    """Return in words why a plan was chosen; training started with the first of those tried.

    >>> graph, fused = Plan(), Plan("xla", "fused")
    >>> rates = Tried(graph, "measured", rates=(20.0,)), Tried(fused, "measured", rates=(50.0,))
    >>> reason_for(fused, rates)
    '50 steps/s, 2.5x the speed of the first plan'
    """
    first, *others = tried
    chosen = next(one for one in tried if one.plan == plan)
    if chosen is not first:
        is_faster = first.rates and chosen.rates and chosen.rate > first.rate
        times = (
            f", {chosen.rate / first.rate:.1f}x the speed of the first plan" if is_faster else ""
        )
        return f"{chosen.in_words}{times}"
    for one in others:
        if one.reason == TIE and first.rates:
            spreads = (rate_in_words(each.rates) for each in (one, first))
            return f"{TIE}: {' against '.join(spreads)} steps/s"
    left = [one.plan.in_words for one in others if one.state == "not tried"]
    words = f" so far, not tried: {'; '.join(left)}" if left else ""
    return f"nothing faster was found{words}"


def load_per_core() -> float:
    """Return how many processes were ready to run for each core, during the last minute."""
    with contextlib.suppress(OSError):
        return os.getloadavg()[0] / (os.cpu_count() or 1)
    return 0.0


# --- the record of a run first, then the memory ---


@final
@dataclass(frozen=True)
class Recalled:
    """What is known when training begins."""

    choice: Choice | None
    """The choice to follow; None: the run measures."""
    history: PlanHistory
    """The history that records this answer."""
    entry: Entry | None = None
    """The evidence, if the answer is from the memory of this machine."""
    note: str = ""
    """Why something that is remembered was ignored."""


def recall(
    history: PlanHistory,
    identity: str,
    start: Plan,
    candidates: Collection[Plan],
    *,
    is_continued: bool,
) -> Recalled:
    """Return the choice known for a kind of step, and the history that records this answer.

    A run asks the memory once for each kind of step. Resumed (`is_continued`), it follows its own
    record and never the memory, which other runs may have changed since. `start` is the plan that
    training starts with. Of the memory, which anyone may edit, only one of `candidates` is used.
    """
    if identity in history.choices:
        return Recalled(history.choices[identity], history)
    if identity in history.measured:
        return Recalled(None, history)
    if is_continued:
        # Records of earlier versions name a remembered choice only as the plan of every step.
        plans = [change.plan for change in history.changes]
        is_choice = len(plans) == 1 and plans[0] != start
        return Recalled(Choice(plans[0], "as recorded") if is_choice else None, history)
    entry = read(identity)
    if entry is not None and entry.choice.plan not in (start, *candidates):
        note = f"ignoring the remembered plan {entry.choice.plan}, which training would not try"
        return Recalled(None, history.measuring(identity), note=note)
    if entry is None or (entry.choice.plan == start and not entry.is_complete):
        note = _why_ignored(identity) if entry is None else ""
        return Recalled(None, history.measuring(identity), entry, note)
    return Recalled(entry.choice, history.chosen(identity, entry.choice), entry)


# --- files ---


def cache_directory() -> Path | None:
    """Return the directory of the memory; None if it is switched off, or there is no home."""
    own = os.environ.get("LOOPWRIGHT_CACHE_DIR")
    if own is not None:
        return Path(own) / "plans" if own else None
    with contextlib.suppress(RuntimeError):  # the user has no home directory
        root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(root) / "loopwright" / "plans"
    return None


_UNREADABLE = (OSError, ValueError, OverflowError, RecursionError, disk.UnsafeFileError)


def read(identity: str) -> Entry | None:
    """Return what is remembered of a kind of step; None if it is missing or cannot be read."""
    with contextlib.suppress(*_UNREADABLE):
        return _parsed_file(identity)
    return None


def _why_ignored(identity: str) -> str:
    try:
        _parsed_file(identity)
    except FileNotFoundError:
        return ""
    except _UNREADABLE as error:
        return f"ignoring the remembered plan, which cannot be read: {first_line(error)}"
    return ""


def _parsed_file(identity: str) -> Entry | None:
    place = cache_directory()
    if place is None:
        return None
    return parsed(json.loads(disk.read(place, f"{identity}.json", _MOST_BYTES)))


def write(identity: str, entry: Entry) -> None:
    """Remember an entry; do nothing where nothing can be written."""
    content = json.dumps(entry.content(), indent=2) + "\n"
    with contextlib.suppress(OSError, disk.UnsafeFileError):
        place = cache_directory()
        if place is not None:
            disk.make_run_directory(place)
            disk.write_whole(place, f"{identity}.json", content.encode(), shared=True)


def identities() -> list[str]:
    """Return the kinds of step that something is remembered of."""
    place = cache_directory()
    names = [] if place is None else disk.names(place)
    return [name.removesuffix(".json") for name in names if name.endswith(".json")]


def forget_all() -> int:
    """Delete the remembered plans and process settings; return how many plans there were."""
    place, count = cache_directory(), len(identities())
    if place is not None:
        for name in ("plans", "settings"):
            with contextlib.suppress(FileNotFoundError):
                disk.delete(place.parent, name)
    return count


def parsed(content: Any) -> Entry:
    """Return the entry in the values of `Entry.content`; raise ValueError for others."""
    from loopwright.plans import records

    found = records.read(records.EntryRecord, content)
    tried = [
        Tried(t.plan.value, t.state, t.reason, tuple(t.rates), t.steps, t.compile_seconds)
        for t in found.tried
    ]
    if any(one.state == "measured" and not one.rates for one in tried):
        raise ValueError("a measured plan without rates")
    return Entry(
        choice=Choice(found.plan.value, found.why),
        tried=tuple(tried),
        date=datetime.fromisoformat(found.date).timestamp(),
        load=found.load,
        version=found.version,
        title=found.title,
    )
