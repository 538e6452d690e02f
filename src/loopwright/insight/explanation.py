"""Why two runs differ at a step, in words: from what made the step in each of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from loopwright.insight.comparison import Differs
from loopwright.insight.first_difference import Difference

_ROUNDING = 1e-4
"""Up to this share of the largest value, two results of one step may differ by rounding."""
_SEEDED = ("seed", "fit.shuffle", "shuffle")
_NUMERIC = ("oneDNN", "threads", "XLA flags", "THREADS", "cores", "processor", "devices")
_VERSIONS = ("tensorflow", "keras")
_WITHOUT_EFFECT = ("fit.save_every", "fit.validate_every", "fit.verbose", "keep", "export", "plan")
"""Values of a config that change no bit of a state; the plan of the step is compared itself."""


@final
@dataclass(frozen=True)
class Explanation:
    """The likely cause of a difference."""

    cause: str
    same: Sequence[str] = ()
    """What was the same in both, and so is not the cause."""

    def __str__(self) -> str:
        both = f" The same in both: {', '.join(self.same)}." if self.same else ""
        return f"{self.cause}{both}"


def explained(
    difference: Difference,
    facts: tuple[Mapping[str, Any], Mapping[str, Any]],
    found: Sequence[Differs],
    *,
    relative: float | None,
    reasons: Sequence[str] = (),
) -> Explanation:
    """Return the likely cause of a difference at a step.

    `facts` made the step in each run, `found` differs between their files, `relative` is by how
    much the first variable differs, as a share of its largest value; `reasons` are why the runs
    cannot be repeated exactly.
    """
    found = [each for each in found if each.name not in _WITHOUT_EFFECT]
    if difference.step == 0:
        return Explanation(_beginning(found))
    one, other = facts
    if one.get("batch") != other.get("batch"):
        return Explanation(_batch(found, reasons))
    same = ["the batch"] if one.get("batch") else []
    if one.get("rates") != other.get("rates"):
        texts = [_rates(each.get("rates", {})) for each in facts]
        because = _named(found, ("learning_rate", "optimizer", "schedules"))
        return Explanation(f"The learning rate: {texts[0]} in a, {texts[1]} in b.{because}", same)
    same += ["the learning rate"] if one.get("rates") else []
    settings = [each for each in found if _is_numeric(each)]
    if one.get("plan") != other.get("plan"):
        return Explanation(
            f"The plan: a ran this step by {one.get('plan')}, b by {other.get('plan')}. Plans "
            "round differently. To repeat a in b, pass a's plan.json as plan.",
            same,
        )
    same += ["the plan"] if one.get("plan") else []
    wheres = [(kind, [each for each in found if each.kind == kind]) for kind in ("code", "config")]
    wheres.append(("program", [each for each in found if each.kind == "program"]))
    is_rounding = relative is not None and relative <= _ROUNDING
    if settings and (is_rounding or not any(each for _, each in wheres)):
        names = "; ".join(map(str, settings[:3]))
        return Explanation(
            f"The environment, which changes how numbers are rounded: {names}.", same
        )
    for kind, each in wheres:
        own = [one for one in each if one.name != "revision"] or each
        if own:
            names = "; ".join(map(str, own[:3]))
            return Explanation(f"The {kind}: {names}.", same)
    if reasons:
        return Explanation(f"The step cannot be repeated: {'; '.join(reasons[:2])}.", same)
    return Explanation(
        "Nothing that is recorded differs: a value that the program reads from elsewhere (time, "
        "environment, files), or an operation whose sums depend on threads or on the atomics of a "
        "GPU. loopwright verify --repeat trains twice and looks closer.",
        same,
    )


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
