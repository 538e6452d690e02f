"""What differs between runs, read from their files, and why two of them differ at a step.

Nothing here imports TensorFlow, and nothing is replayed.
"""

import json
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

from loopwright.config import file
from loopwright.config.schema import Config
from loopwright.errors import ConfigurationError, printable
from loopwright.insight.first_difference import Difference
from loopwright.plans.record import PlanHistory
from loopwright.run_changes import STEP, edits
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
    for kind, values_of in _RECORDED.items():
        values = [values_of(run) for run in runs]
        if all(values) or (kind == "code" and any(values)):
            found += _differing(kind, values)
    if all(run.content for run in runs):
        found += _programs(runs, {each.name for each in found if each.kind == "config"})
    return sorted(found, key=lambda each: KINDS.index(each.kind))


def same_kinds(runs: Sequence[RunRecord], found: Sequence[Differs]) -> list[str]:
    """Return what the runs have in common: the kinds that were recorded and do not differ."""
    known = {**_RECORDED, "program": lambda run: run.content.get("declared")}
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


def _revision(run: RunRecord) -> dict[str, str]:
    """Return the revision of the code that it was started with; empty outside a repository."""
    git = mapping(run.json("environment.json").get("git"))
    if not git.get("revision"):
        return {}
    changed = " with uncommitted changes" if git.get("is_changed") else ""
    return {"revision": f"{str(git['revision'])[:10]}{changed}"}


_RECORDED: Mapping[Kind, Callable[[RunRecord], Mapping[str, str]]] = {
    "config": _config,
    "code": _revision,
    "data": lambda run: dict(_flat(run.content.get("data") or {})),
    "plan": lambda run: plans_in_words(run.plans) if run.plans.changes else {},
    "environment": _environment,
}
"""The values that a run has recorded, by kind; programs are compared by their edits."""


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


_ROUNDING = 1e-4
"""Up to this share of the largest value, two results of one step may differ by rounding."""
_SEEDED = ("seed", "fit.shuffle", "shuffle")
_NUMERIC = ("oneDNN", "threads", "XLA flags", "THREADS", "cores", "processor", "devices")
_VERSIONS = ("tensorflow", "keras")
_WITHOUT_EFFECT = ("fit.save_every", "fit.validate_every", "fit.verbose", "keep", "export", "plan")
"""Values of a config that change no bit of a state; the plan of the step is compared itself."""


def explained(
    difference: Difference,
    facts: tuple[Mapping[str, Any], Mapping[str, Any]],
    found: Sequence[Differs],
    *,
    relative: float | None,
    reasons: Sequence[str] = (),
) -> str:
    """Return the likely cause of a difference at a step, and what was the same in both runs.

    `facts` made the step in each run, `found` differs between their files, `relative` is by how
    much the first variable differs, as a share of its largest value; `reasons` are why the runs
    cannot be repeated exactly.
    """
    found = [each for each in found if each.name not in _WITHOUT_EFFECT]
    if difference.step == 0:
        return _beginning(found)
    one, other = facts
    if one.get("batch") != other.get("batch"):
        return _batch(found, reasons)
    same = ["the batch"] if one.get("batch") else []
    if one.get("rates") != other.get("rates"):
        texts = [_rates(each.get("rates", {})) for each in facts]
        because = _named(found, ("learning_rate", "optimizer", "schedules"))
        return _with_same(f"The learning rate: {texts[0]} in a, {texts[1]} in b.{because}", same)
    same += ["the learning rate"] if one.get("rates") else []
    if one.get("plan") != other.get("plan"):
        return _with_same(
            f"The plan: a ran this step by {one.get('plan')}, b by {other.get('plan')}. Plans "
            "round differently. To repeat a in b, pass a's plan.json as plan.",
            same,
        )
    same += ["the plan"] if one.get("plan") else []
    kinds = ("code", "config", "program")
    written = [each for each in found if each.kind in kinds]
    written = [each for each in written if each.name != "revision"] or written
    settings = "; ".join(map(str, list(filter(_is_numeric, found))[:3]))
    is_rounding = relative is not None and relative <= _ROUNDING
    if settings and (is_rounding or not written):
        text = f"The environment, which changes how numbers are rounded: {settings}."
        return _with_same(text, same)
    for kind in kinds:
        own = [str(each) for each in written if each.kind == kind]
        if own:
            return _with_same(f"The {kind}: {'; '.join(own[:3])}.", same)
    if reasons:
        return _with_same(f"The step cannot be repeated: {'; '.join(reasons[:2])}.", same)
    return _with_same(
        "Nothing that is recorded differs: a value that the program reads from elsewhere (time, "
        "environment, files), or an operation whose sums depend on threads or on the atomics of a "
        "GPU. loopwright verify --repeat trains twice and looks closer.",
        same,
    )


def _with_same(cause: str, same: Sequence[str]) -> str:
    return f"{cause} The same in both: {', '.join(same)}." if same else cause


def _beginning(found: Sequence[Differs]) -> str:
    seeds = _named(found, ("seed",))
    if seeds:
        return f"The runs begin with different weights.{seeds}"
    likely = [each for each in found if each.kind in ("config", "program", "code")]
    versions = [each for each in found if each.name in _VERSIONS]
    named = "; ".join(map(str, [*likely, *versions][:3]))
    because = f" What differs: {named}." if named else ""
    return (
        "The runs begin with different weights, or with different variables."
        f"{because} Layers without a seed draw from keras.utils.set_random_seed."
    )


def _batch(found: Sequence[Differs], reasons: Sequence[str]) -> str:
    text = "The data: this step trained on different batches."
    seeds, data = _named(found, _SEEDED), [each for each in found if each.kind == "data"]
    if seeds:
        return f"{text}{seeds}"
    if data:
        return f"{text} The data itself differs: {'; '.join(map(str, data[:3]))}."
    if reasons:
        return f"{text} {reasons[0].capitalize()}."
    return (
        f"{text} Seed and size are the same: the pipeline yields another order or other values "
        "(an unseeded shuffle, a map with random numbers), or examples were changed."
    )


def _named(found: Sequence[Differs], names: Sequence[str]) -> str:
    own = [each for each in found if any(name in each.name for name in names)]
    return f" {'; '.join(map(str, own[:2]))}." if own else ""


def _rates(rates: Mapping[str, float]) -> str:
    if len(rates) == 1:
        return f"{next(iter(rates.values())):.6g}"
    return ", ".join(f"{name} {rate:.6g}" for name, rate in rates.items())


def _is_numeric(each: Differs) -> bool:
    is_machine = any(word in each.name for word in _NUMERIC) or each.name in _VERSIONS
    return (each.kind == "environment" and is_machine) or each.name == "settings"
