"""Which checkpoints of a run are kept, as values.

    Trainer(task, run_dir="runs/digits", keep=[KeepLatest(3), KeepBest("val_loss")])

The newest checkpoint and the last one of each leg are kept whatever the rules say.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Literal

from loopwright.errors import ConfigurationError, message

Mode = Literal["auto", "min", "max"]

# Short names count as whole words only: `layer2_mae` is no R², `indices` are no Dice.
# `io_u` is what Keras makes of MeanIoU.
_LARGER_IS_BETTER = re.compile(
    r"accuracy|auc|precision|recall|bleu|score|(?<![a-z0-9])(acc|f1|r2|iou|io_u|dice)(?![a-z])"
)
_SMALLER_IS_BETTER = re.compile(r"loss|error")  # also of a dice_loss


@dataclass(frozen=True)
class KeepLatest:
    """Keeps the newest `count` checkpoints.

    >>> KeepLatest(0)
    Traceback (most recent call last):
    loopwright.errors.ConfigurationError: The number of checkpoints to keep is not usable.
      expected: a whole number from 1 on
      received: KeepLatest(count=0)
      do: KeepLatest(count=3) keeps three
    """

    count: int = 3

    def __post_init__(self) -> None:
        _check_count(self, self.count)


@dataclass(frozen=True)
class KeepBest:
    """Keeps the `count` checkpoints with the best value of a metric.

    With `mode="auto"` the name decides: accuracies, AUC, precision, recall, F1, IoU, Dice, R²,
    BLEU and other scores are better the larger they are, everything else the smaller.

    >>> KeepBest("val_sparse_categorical_accuracy").larger_is_better
    True
    >>> KeepBest("val_dice_loss").larger_is_better
    False
    """

    metric: str = "val_loss"
    count: int = 1
    mode: Mode = "auto"

    def __post_init__(self) -> None:
        if not isinstance(self.metric, str) or not self.metric:
            raise ConfigurationError(
                message(
                    "The metric that decides which checkpoints are best has no name.",
                    expected="a name as in the history",
                    received=repr(self.metric),
                    do='KeepBest("val_loss")',
                )
            )
        _check_count(self, self.count)
        if self.mode not in ("auto", "min", "max"):
            raise ConfigurationError(
                message(
                    "This mode does not say which value is best.",
                    expected='"min", "max" or "auto"',
                    received=repr(self.mode),
                    do=f'KeepBest({self.metric!r}, mode="min") keeps the smallest',
                )
            )

    @property
    def larger_is_better(self) -> bool:
        """Whether the largest value is the best one."""
        if self.mode != "auto":
            return self.mode == "max"
        name = self.metric.lower()
        return not _SMALLER_IS_BETTER.search(name) and bool(_LARGER_IS_BETTER.search(name))


Rule = KeepLatest | KeepBest


@dataclass(frozen=True)
class Entry:
    """What retention knows of a checkpoint: its step, its leg, and what was measured."""

    step: int
    leg: int
    ends_leg: bool
    scores: Mapping[str, float]


def best(entries: Sequence[Entry], rule: KeepBest) -> list[int]:
    """The steps where the metric was measured, the best first; of equals the earlier one.

    >>> entries = [Entry(step, 1, False, {"val_loss": abs(step - 2)}) for step in (1, 2, 3)]
    >>> best(entries, KeepBest("val_loss"))
    [2, 1, 3]
    """
    sign = -1 if rule.larger_is_better else 1
    scores = {entry.step: entry.scores.get(rule.metric) for entry in entries}
    ranks = {
        step: (sign * score, step)
        for step, score in scores.items()
        if isinstance(score, Real) and math.isfinite(score)
    }
    return sorted(ranks, key=ranks.__getitem__)


def kept(entries: Sequence[Entry], rules: Sequence[Rule]) -> set[int]:
    """The steps whose checkpoints stay: what any rule keeps, the newest, the end of each leg.

    >>> entries = [Entry(step, 1, False, {"val_loss": abs(step - 2)}) for step in (1, 2, 3, 4)]
    >>> kept(entries, [KeepLatest(1), KeepBest("val_loss")])
    {2, 4}
    """
    steps = sorted(entry.step for entry in entries)
    stays = {entry.step for entry in entries if entry.ends_leg} | set(steps[-1:])
    for rule in rules:
        ranked = steps[::-1] if isinstance(rule, KeepLatest) else best(entries, rule)
        stays.update(ranked[: rule.count])
    return stays


def _check_count(rule: Rule, count: object) -> None:
    if isinstance(count, bool) or not isinstance(count, Integral) or count < 1:
        raise ConfigurationError(
            message(
                "The number of checkpoints to keep is not usable.",
                expected="a whole number from 1 on",
                received=repr(rule),
                do=f"{type(rule).__name__}(count=3) keeps three",
            )
        )
