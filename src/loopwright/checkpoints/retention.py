"""Retention: which checkpoints of a run are kept, as values.

    Trainer(task, run_dir="runs/digits", keep=[KeepLatest(3), KeepBest("val_loss")])

The newest checkpoint and the last one of each leg are kept whatever the rules say.
"""

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple, final

from loopwright.checkpoints.manifest import Checkpoint
from loopwright.errors import ConfigurationError
from loopwright.metric_direction import larger_is_better

Mode = Literal["auto", "min", "max"]


@dataclass(frozen=True)
class KeepLatest:
    """Keep the newest `count` checkpoints.

    >>> KeepLatest(0)
    Traceback (most recent call last):
    loopwright.errors.ConfigurationError: Invalid number of checkpoints to keep.
      expected: an integer, at least 1
      received: KeepLatest(count=0)
      do: KeepLatest(count=3) keeps three
    """

    count: int = 3

    def __post_init__(self) -> None:
        _check_count(self, self.count)


@dataclass(frozen=True)
class KeepBest:
    """Keep the `count` checkpoints with the best validation scores by one metric.

    A validation that is among the best `count` so far is saved at once, whatever `save_every`
    says. `trainer.restore("best")` uses the first `KeepBest`, `restore("best", metric=...)` another
    one.

    `metric` is a name as in the history: `val_loss`, or `val_NAME_loss` for a named validation
    set. `mode` is the direction: `"min"` if smaller values are better, `"max"` if larger ones are.
    With `"auto"` the name decides: losses, errors (`mae`, `rmse`, `wer`), divergences, distances
    and perplexity are better the smaller; accuracies, AUC, precision, recall, F1, IoU, Dice, R²,
    BLEU and other scores the larger. Any other name needs `mode`.

    >>> KeepBest("val_sparse_categorical_accuracy").larger_is_better
    True
    >>> KeepBest("val_dice_loss").larger_is_better
    False
    >>> KeepBest("val_wandering", mode="min").larger_is_better
    False
    """

    metric: str = "val_loss"
    count: int = 1
    mode: Mode = "auto"

    def __post_init__(self) -> None:
        if not isinstance(self.metric, str) or not self.metric:
            raise ConfigurationError(
                "KeepBest needs the name of a metric.",
                expected="a name as in the history",
                received=repr(self.metric),
                do='KeepBest("val_loss")',
            )
        _check_count(self, self.count)
        if self.mode not in ("auto", "min", "max"):
            raise ConfigurationError(
                "Unknown mode.",
                expected='"min", "max" or "auto"',
                received=repr(self.mode),
                do=f'KeepBest({self.metric!r}, mode="min") keeps the smallest',
            )
        if self.mode == "auto" and larger_is_better(self.metric) is None:
            raise ConfigurationError(
                f"Cannot tell from the name {self.metric!r} whether smaller or larger is better.",
                expected='a metric that validation reports, with mode="min" or mode="max"',
                received=f"KeepBest({self.metric!r})",
                do=f'check the name; KeepBest({self.metric!r}, mode="max") keeps the largest value',
            )

    @property
    def larger_is_better(self) -> bool:
        """Whether larger values of the metric are better."""
        if self.mode == "auto":
            return bool(larger_is_better(self.metric))
        return self.mode == "max"


Rule = KeepLatest | KeepBest


@dataclass(frozen=True)
class Entry:
    """A checkpoint or a validation as retention sees it: its step, and the scores of its state."""

    step: int
    ends_leg: bool
    scores: Mapping[str, float]


def entry_of(checkpoint: Checkpoint) -> Entry:
    """Return the entry of a usable checkpoint."""
    return Entry(checkpoint.step, checkpoint.ends_leg, prefixed(measured(checkpoint.content)))


def measured(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the scores of exactly the saved state; empty if it was not validated."""
    found = content.get("measured")
    if found is None:
        # Earlier versions saved the last scores of the epoch, perhaps those of an earlier step.
        place = content["place"]
        is_own = place.get("validated_step") == place.get("step")
        found = content.get("scores") if is_own else None
    return found if isinstance(found, Mapping) else {}


def prefixed(scores: Mapping[str, Any]) -> dict[str, Any]:
    """Return validation scores under their names in the history."""
    return {f"val_{name}": value for name, value in scores.items()}


def best_rules(rules: Sequence[Rule]) -> list[KeepBest]:
    """Return the `KeepBest` rules, in their order."""
    return [rule for rule in rules if isinstance(rule, KeepBest)]


def recorded(rules: Sequence[Rule]) -> list[dict[str, Any]]:
    """Return the `KeepBest` rules as JSON values for a checkpoint.

    >>> recorded([KeepLatest(3), KeepBest("val_auc")])
    [{'metric': 'val_auc', 'count': 1, 'mode': 'max'}]
    """
    return [
        {"metric": r.metric, "count": r.count, "mode": "max" if r.larger_is_better else "min"}
        for r in best_rules(rules)
    ]


def recorded_in(content: Mapping[str, Any]) -> list[KeepBest] | None:
    """Return the rules recorded in a checkpoint; None if they are missing or unreadable."""
    try:
        return [KeepBest(**rule) for rule in content["keep"]]
    except (KeyError, TypeError, ConfigurationError):
        return None


def best_first(score: float, rule: KeepBest) -> float:
    """Return a number that is smaller for a better score."""
    return -score if rule.larger_is_better else score


def best(entries: Sequence[Entry], rule: KeepBest) -> list[int]:
    """Return the steps where the metric was measured, the best first; of equals the earlier.

    >>> entries = [Entry(step, False, {"val_loss": abs(step - 2)}) for step in (1, 2, 3)]
    >>> best(entries, KeepBest("val_loss"))
    [2, 1, 3]
    """
    scores = {entry.step: entry.scores.get(rule.metric) for entry in entries}
    ranks = {
        step: (best_first(score, rule), step)
        for step, score in scores.items()
        if isinstance(score, Real) and _is_finite(score)
    }
    return sorted(ranks, key=ranks.__getitem__)


def _is_finite(score: Real) -> bool:
    try:
        return math.isfinite(score)
    except OverflowError:  # of an int
        return False


def kept(entries: Sequence[Entry], rules: Sequence[Rule]) -> set[int]:
    """Return the steps to keep: those of any rule, the newest, the end of each leg.

    >>> entries = [Entry(step, False, {"val_loss": abs(step - 2)}) for step in (1, 2, 3, 4)]
    >>> kept(entries, [KeepLatest(1), KeepBest("val_loss")])
    {2, 4}
    """
    steps = sorted(entry.step for entry in entries)
    latest = max((rule.count for rule in rules if isinstance(rule, KeepLatest)), default=1)
    ends = {entry.step for entry in entries if entry.ends_leg}
    return ends | set(steps[-latest:]) | best_steps(entries, rules)


def best_steps(entries: Sequence[Entry], rules: Sequence[Rule]) -> set[int]:
    """Return the steps that the `KeepBest` rules keep.

    >>> entries = [Entry(step, False, {"val_loss": abs(step - 2)}) for step in (1, 2, 3, 4)]
    >>> best_steps(entries, [KeepLatest(1), KeepBest("val_loss")])
    {2}
    """
    return {s for rule in best_rules(rules) for s in best(entries, rule)[: rule.count]}


def require_measured(rules: Sequence[KeepBest], scores: Mapping[str, Any]) -> None:
    """Raise if a validation does not report the metric of a rule; list the known names."""
    known = prefixed(scores)
    for rule in rules:
        if isinstance(known.get(rule.metric), Real):
            continue
        near = [f"val_{rule.metric}", *difflib.get_close_matches(rule.metric, known, 1)]
        proposed = next((name for name in near if isinstance(known.get(name), Real)), None)
        is_known = rule.metric in known
        raise ConfigurationError(
            f"Cannot keep the best checkpoint by {rule.metric!r}: "
            + ("it is not a single number." if is_known else "validation does not report it."),
            expected=f"one of {', '.join(known) or 'the validation scores (there are none)'}",
            received=repr(rule),
            do=f"KeepBest({proposed!r})"
            if proposed
            else "name one of the reported metrics, or return it from test_step",
        )


def _check_count(rule: Rule, count: object) -> None:
    if isinstance(count, bool) or not isinstance(count, Integral) or count < 1:
        raise ConfigurationError(
            "Invalid number of checkpoints to keep.",
            expected="an integer, at least 1",
            received=repr(rule),
            do=f"{type(rule).__name__}(count=3) keeps three",
        )


DEFAULT_KEEP: tuple[Rule, ...] = (KeepLatest(3), KeepBest("val_loss"))
"""The rules of a trainer without `keep`."""


@final
class Best(NamedTuple):
    """The best checkpoint of a run."""

    metric: str
    score: float
    step: int


def recorded_rules(checkpoints: Sequence[Checkpoint]) -> list[KeepBest] | None:
    """Return the `KeepBest` rules of the newest of some usable checkpoints; None if it has none."""
    return recorded_in(checkpoints[-1].content) if checkpoints else None


def best_of(checkpoints: Sequence[Checkpoint], rule: KeepBest) -> Best | None:
    """Return the best of some usable checkpoints."""
    entries = {checkpoint.step: entry_of(checkpoint) for checkpoint in checkpoints}
    ranked = best(list(entries.values()), rule)
    return Best(rule.metric, entries[ranked[0]].scores[rule.metric], ranked[0]) if ranked else None
