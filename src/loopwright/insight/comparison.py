"""What differs between runs, read from their files: config, code, data, plan, environment.

Nothing here imports TensorFlow, and nothing is replayed.
"""

import json
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

from loopwright.config import file
from loopwright.config.edits import STEP, edits
from loopwright.config.schema import Config
from loopwright.errors import ConfigurationError, printable
from loopwright.plans.plan_history import PlanHistory
from loopwright.runs import RunRecord, mapping

Kind = Literal["config", "program", "code", "data", "plan", "environment"]
KINDS: tuple[Kind, ...] = ("config", "program", "code", "data", "plan", "environment")

_OF_THE_PLACE = {"run_dir", "sinks", "on_change"}
_NOT_THE_MACHINE = {"command", "git"}
_MOST_CHARACTERS = 60


@final
@dataclass(frozen=True)
class Differs:
    """One value that differs between runs, as text for each of them."""

    kind: Kind
    name: str
    values: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name}: {grouped(self.values)}"


def letters(count: int) -> list[str]:
    """Return short labels for runs.

    >>> letters(3), letters(28)[-2:]
    (['a', 'b', 'c'], ['aa', 'ab'])
    """
    one = list(string.ascii_lowercase)
    return [*one, *(first + second for first in one for second in one)][:count]


def grouped(values: Sequence[str]) -> str:
    """Return values with the runs that have them.

    >>> grouped(["32", "64", "32"])
    '32 (a, c), 64 (b)'
    """
    found: dict[str, list[str]] = {}
    for label, value in zip(letters(len(values)), values, strict=True):
        found.setdefault(value, []).append(label)
    return ", ".join(f"{value} ({', '.join(labels)})" for value, labels in found.items())


def config_values(config: Config) -> dict[str, str]:
    """Return the values of a config by dotted keys, without those that only say where it runs."""
    content = file.to_dict(config)
    return dict(_flat({k: v for k, v in content.items() if k not in _OF_THE_PLACE}))


def config_changes(before: Config, now: Config) -> dict[str, tuple[str, str]]:
    """Return the values of a config that were changed, by dotted keys."""
    old, new = config_values(before), config_values(now)
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    return {key: (old.get(key, "default"), new.get(key, "default")) for key in keys}


def differences(runs: Sequence[RunRecord]) -> list[Differs]:
    """Return every value that differs between some of the runs, the most telling kinds first.

    A run that has not trained has recorded neither program, data nor plan: these do not differ.
    """
    found: list[Differs] = []
    if all(configs := [_config(run) for run in runs]):
        found += _differing("config", configs)
    if all(run.content for run in runs):
        found += _programs(runs, {each.name for each in found})
        found += _differing("data", [dict(_flat(run.content.get("data", {}))) for run in runs])
    if all(run.plans.changes for run in runs):
        found += _differing("plan", [plans_in_words(run.plans) for run in runs])
    if all(environments := [_environment(run) for run in runs]):
        found += _differing("code", [{"revision": _revision(run)} for run in runs])
        found += _differing("environment", environments)
    order = {kind: at for at, kind in enumerate(KINDS)}
    return sorted(found, key=lambda each: order[each.kind])


def same_kinds(runs: Sequence[RunRecord], found: Sequence[Differs]) -> list[str]:
    """Return what the runs have in common: the kinds that were recorded and do not differ."""
    known: dict[Kind, Callable[[RunRecord], object]] = {
        "config": _config,
        "program": lambda run: run.content.get("declared"),
        "code": lambda run: run.json("environment.json").get("git"),
        "data": lambda run: run.content.get("data"),
        "plan": lambda run: run.plans.changes,
        "environment": _environment,
    }
    differ = {each.kind for each in found}
    return [kind for kind in KINDS if kind not in differ and all(map(known[kind], runs))]


def equal_until(one: RunRecord, other: RunRecord) -> tuple[int | None, int | None]:
    """Return the last common checkpoint before any that differs, and the first that differs.

    By the checksums of their files: what differs may also be the position in the data.
    """
    equal, common = None, sorted({*one.checksums} & {*other.checksums})
    for step in common:
        if one.checksums[step] != other.checksums[step]:
            return equal, step
        equal = step
    return equal, None


def first_other_epoch(one: RunRecord, other: RunRecord) -> int | None:
    """Return the step at the end of the first epoch whose training metrics differ."""
    common = sorted({*one.epoch_losses} & {*other.epoch_losses})
    return next((s for s in common if one.epoch_losses[s] != other.epoch_losses[s]), None)


def _config(run: RunRecord) -> dict[str, str]:
    """Return the values of its config, by dotted keys; empty for a run of a script."""
    try:
        found = file.saved_in(run.directory)
    except ConfigurationError:
        return {}
    return {} if found is None else config_values(found)


def _environment(run: RunRecord) -> dict[str, str]:
    """Return versions, threads, settings and machine."""
    found = run.json("environment.json")
    return {n: _text(v) for n, v in found.items() if n not in _NOT_THE_MACHINE}


def _revision(run: RunRecord) -> str:
    """Return the revision of the code that it was started with."""
    git = mapping(run.json("environment.json").get("git"))
    if not git.get("revision"):
        return "not in a repository"
    changed = " with uncommitted changes" if git.get("is_changed") else ""
    return f"{str(git['revision'])[:10]}{changed}"


def _programs(runs: Sequence[RunRecord], known: set[str]) -> Iterator[Differs]:
    """Yield what differs in the programs, as each checkpoint declares it, from the first run."""
    declared = [mapping(run.content.get("declared")) for run in runs]
    values: dict[tuple[Kind, str], list[str]] = {}
    for at, each in enumerate(declared[1:], start=1):
        for edit in edits(declared[0], each):
            if edit.name in known or f"fit.{edit.name}" in known:
                continue
            kind: Kind = "code" if edit.name == STEP else "program"
            name = f"{edit.name} {edit.place}".strip()
            # Programs are compared up to rounding: float32 has about seven digits.
            texts = tuple(
                f"{value:.6g}" if isinstance(value, float) else _text(value)
                for value in (edit.before, edit.now)
            )
            if edit.name == STEP:
                name, texts = edit.place, tuple(f"digest {text[:8]}" for text in texts)
            row = values.setdefault((kind, name), [texts[0]] * len(runs))
            row[at] = texts[1]
    for (kind, name), row in values.items():
        yield Differs(kind, printable(name), tuple(row))


def _differing(kind: Kind, values: Sequence[Mapping[str, str]]) -> Iterator[Differs]:
    names = dict.fromkeys(name for each in values for name in each)
    missing = "default" if kind == "config" else "none"
    for name in names:
        row = tuple(each.get(name, missing) for each in values)
        if len(set(row)) > 1:
            yield Differs(kind, printable(name), row)


def plans_in_words(plans: PlanHistory) -> dict[str, str]:
    """Return the plans and the process settings of a run, and at which steps they changed."""
    lasting, before = list[str](), None
    for change in plans.changes:
        if not change.is_trial and change.plan != before:
            words = change.plan.in_words
            rewrites = change.plan.rewrites
            words += f" with {', '.join(rewrites)}" if rewrites else ""
            lasting.append(f"{words} from step {change.step + 1:,}")
            before = change.plan
    trials = [f"{c.step + 1:,}" for c in plans.changes if c.is_trial]
    few = trials if len(trials) <= 3 else [*trials[:2], "...", trials[-1]]
    settings = [f"{c.settings.in_words} from step {c.step + 1:,}" for c in plans.settings]
    return {
        "plan": "; ".join(lasting) or "none",
        "measured at": f"steps {', '.join(few)}" if few else "no step",
        "settings": "; ".join(settings) or "none",
    }


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, _text(value)


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    text = "none" if value is None else text
    text = printable(text)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 3]}..."
