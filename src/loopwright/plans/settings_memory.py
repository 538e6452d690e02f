"""The memory of process settings: which were faster for a kind of step, and for a command.

A step is known only after TensorFlow was imported, when it is too late to choose. So each choice is
written twice: for the step that was measured, and for the command that was launched. The next
start of the same command reads the second, and checks it against the first.
"""

import contextlib
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, final

from loopwright import disk
from loopwright.errors import first_line
from loopwright.plans import memory, processor, settings
from loopwright.plans.duel import Duel
from loopwright.plans.plan import WORDS
from loopwright.plans.settings import Settings
from loopwright.plans.settings_candidate import Candidate

_FORMAT = 1
_MOST_BYTES = 100_000
_MOST_AGE = timedelta(days=30)
# RuntimeError: the user has no home directory; RecursionError is one too.
_UNREADABLE = (
    *(OSError, ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RuntimeError),
    disk.UnsafeFileError,
)


@final
@dataclass(frozen=True)
class SettingsChoice:
    """Which settings a kind of step runs by, and the rates that decided it."""

    identity: str
    """Of the step, by the settings that TensorFlow would choose."""
    default: Settings
    """Those settings."""
    other: Settings
    """What was compared with them."""
    rates_default: tuple[float, ...]
    """Steps per second in each turn."""
    rates_other: tuple[float, ...]
    is_other_faster: bool
    """Beyond the spread of the turns."""
    date: str
    title: str = ""
    """The task, for people."""
    plan: str = "graph"
    """The plan that the other settings were measured with, as a word."""

    @property
    def chosen(self) -> Settings:
        """The settings to start by."""
        return self.other if self.is_other_faster else self.default

    @property
    def why(self) -> str:
        """The rates in words."""
        other, default = _rate(self.rates_other), _rate(self.rates_default)
        return f"{other} with {self.other.in_words}, {default} with {self.default.in_words}"

    def is_recent(self, now: datetime) -> bool:
        """Return whether the rates are of the last weeks; older ones are measured again."""
        try:
            return now - datetime.fromisoformat(self.date) < _MOST_AGE
        except (ValueError, TypeError):
            return False

    @property
    def gain(self) -> float:
        """How many times as fast the other settings were."""
        return max(self.rates_other) / max(self.rates_default)

    def content(self) -> dict[str, Any]:
        """Return the choice as JSON values."""
        return {
            "format": _FORMAT,
            **asdict(self),
            "default": self.default.content(),
            "other": self.other.content(),
        }


def decided(
    identity: str, default: Settings, candidate: Candidate, duel: Duel, title: str
) -> SettingsChoice:
    """Return the choice that a duel between two processes has decided, as of now."""
    return SettingsChoice(
        identity,
        default,
        candidate.settings,
        tuple(duel.own),
        tuple(duel.challenger),
        is_other_faster=duel.outcome == "won",
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        title=title,
        plan=candidate.plan,
    )


def parsed(content: Any) -> SettingsChoice:
    """Return the choice in the values of `SettingsChoice.content`; raise ValueError for others."""
    if content["format"] != _FORMAT:
        raise ValueError(f"format {content['format']}; this version reads format {_FORMAT}")
    default, other = (tuple(map(float, content[f"rates_{part}"])) for part in ("default", "other"))
    if not default or not other or not all(0 < rate < math.inf for rate in (*default, *other)):
        raise ValueError("rates are missing")
    plan = content.get("plan", "graph")
    if plan not in WORDS:
        raise ValueError(f"unknown plan {plan!r}")
    return SettingsChoice(
        str(content["identity"]),
        settings.parsed(content["default"]),
        settings.parsed(content["other"]),
        default,
        other,
        content["is_other_faster"] is True,
        str(content["date"]),
        str(content.get("title", "")),
        plan,
    )


def command_key(kind: str, *parts: Any) -> str:
    """Return the name under which the settings of a command are remembered on such a machine.

    Machines that share a home directory share this memory: what one of them has measured would be
    wrong for another.

    >>> command_key("run", "train.py", ["--wide"]).partition("-")[0]
    'run'
    """
    machine = [processor.name(), processor.vectors(), processor.cores()]
    text = json.dumps([machine, *parts], sort_keys=True, default=str)
    return f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def for_command(key: str) -> SettingsChoice | None:
    """Return the choice remembered for a command; None if there is none that can be read."""
    return _read("commands", key)


def for_step(identity: str) -> SettingsChoice | None:
    """Return the choice remembered for a kind of step; None if there is none."""
    return _read("steps", identity)


def ignored_for_command(key: str) -> str:
    """Return why the choice remembered for a command cannot be used; empty if it can."""
    try:
        _parsed_file("commands", key)
    except FileNotFoundError:
        return ""
    except _UNREADABLE as error:
        return (
            f"ignoring the remembered process settings, which cannot be read: {first_line(error)}"
        )
    return ""


def remember(choice: SettingsChoice, key: str) -> None:
    """Write a choice for its step and for a command; do nothing where that is not possible."""
    _write("steps", choice.identity, choice)
    if key != "-":
        _write("commands", key, choice)


def forget(identity: str) -> None:
    """Forget what was measured for a kind of step, and for the commands that run it."""
    place = _directory("commands")
    names = [] if place is None else disk.names(place)
    for key in (name.removesuffix(".json") for name in names):
        known = for_command(key)
        if known is None or known.identity == identity:
            forget_command(key)
    _delete("steps", identity)


def forget_command(key: str) -> None:
    """Forget what is remembered for a command: its step has changed."""
    _delete("commands", key)


def _directory(part: str) -> Path | None:
    plans = memory.cache_directory()
    return None if plans is None else plans.parent / "settings" / part


def _delete(part: str, name: str) -> None:
    place = _directory(part)
    with contextlib.suppress(*_UNREADABLE):
        if place is not None:
            disk.delete(place, f"{name}.json")


def _read(part: str, name: str) -> SettingsChoice | None:
    with contextlib.suppress(*_UNREADABLE):
        return _parsed_file(part, name)
    return None


def _parsed_file(part: str, name: str) -> SettingsChoice | None:
    place = _directory(part)
    if place is None:
        return None
    return parsed(json.loads(disk.read(place, f"{name}.json", _MOST_BYTES)))


def _write(part: str, name: str, choice: SettingsChoice) -> None:
    content = json.dumps(choice.content(), indent=2) + "\n"
    with contextlib.suppress(*_UNREADABLE):
        place = _directory(part)
        if place is not None:
            disk.make_run_directory(place)
            disk.write_whole(place, f"{name}.json", content.encode(), shared=True)


def _rate(rates: Sequence[float]) -> str:
    best = max(rates)
    return f"{best:,.0f} steps/s" if best >= 10 else f"{best:.2g} steps/s"
