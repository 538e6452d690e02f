"""Changes between two configs, and which of them a resumed run accepts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from loopwright.config.schema import Config
from loopwright.errors import ConfigurationError
from loopwright.loop.schedule import every

_ALWAYS_ALLOWED = {
    "run_dir",
    "plan",
    "keep",
    "sinks",
    "export",
    "on_change",
    "exact",
    "fit.validate_every",
    "fit.save_every",
    "fit.verbose",
}

_ACCEPTED_AS = {
    "seed": ("seed",),
    "optimizer": ("optimizer", "learning_rate"),
    "model": ("layers", "loss", "optimizer", "learning_rate", "schedules"),
    "precision": ("layers",),
    "fit.shuffle": ("shuffle",),
}
"""The names in `on_change` that accept a change of these keys."""


@dataclass(frozen=True)
class Change:
    """One value of a config that differs."""

    key: str
    before: Any
    now: Any
    is_allowed: bool

    def __str__(self) -> str:
        verdict = "allowed" if self.is_allowed else "NOT ALLOWED in a resumed run"
        return f"{self.key}: {_short(self.before)} -> {_short(self.now)} ({verdict})"


def changes(before: Config, now: Config) -> list[Change]:
    """Return the values that differ.

    >>> from loopwright.config.file import load
    >>> for change in changes(load("digits", ["fit.epochs=3"]), load("digits", ["fit.epochs=5",
    ...     "seed=1"])): print(change)
    seed: 0 -> 1 (NOT ALLOWED in a resumed run)
    fit.epochs: 3 -> 5 (allowed)
    """
    old, new = _flat(before), _flat(now)
    accepted = () if isinstance(now.on_change, str) else now.on_change

    def is_allowed(key: str) -> bool:
        names = _ACCEPTED_AS.get(key, ())
        return _is_allowed(key, old.get(key), new.get(key)) or any(n in accepted for n in names)

    keys = [*old, *(key for key in new if key not in old)]
    return [
        Change(key, old.get(key), new.get(key), is_allowed(key))
        for key in keys
        if old.get(key) != new.get(key)
    ]


def refuse_changes(found: Sequence[Change]) -> None:
    """Raise if a change is not allowed in a resumed run."""
    refused = [change for change in found if not change.is_allowed]
    if refused:
        raise ConfigurationError(
            "The run in this directory was started with a different config.",
            expected="the same config; only these values may change: more epochs, intervals, "
            "verbosity, keep, plan, sinks, export",
            received="; ".join(map(str, refused)),
            do="restore these values, pass on_change=start_over (it moves the old run aside, "
            "only if something differs), or choose another --run-dir",
        )


def _is_allowed(key: str, before: Any, now: Any) -> bool:
    if key == "fit.epochs":
        return before is not None and now is not None and now > before
    if key == "fit.until" and before is not None and now is not None:
        one, other = every(before), every(now)
        pairs = [(one.steps, other.steps), (one.epochs, other.epochs), (one.seconds, other.seconds)]
        return any(a is not None and b is not None and b > a for a, b in pairs)
    return key in _ALWAYS_ALLOWED


def _flat(config: Config) -> dict[str, Any]:
    content = config.model_dump()
    fit = content.pop("fit")
    return {**content, **{f"fit.{key}": value for key, value in fit.items()}}


def _short(value: Any) -> str:
    return "none" if value is None else f"{value!r:.120}" if not isinstance(value, str) else value
