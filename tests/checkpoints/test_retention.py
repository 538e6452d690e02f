"""Which checkpoints are kept: values, and what holds for all of them."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.checkpoints.retention import (
    Entry,
    KeepBest,
    KeepLatest,
    Rule,
    best,
    best_steps,
    kept,
    require_measured,
)
from loopwright.errors import ConfigurationError


def entry(step: int, *, ends_leg: bool = False, **scores: Any) -> Entry:
    return Entry(step, ends_leg, scores)


SCORES = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.sampled_from([0.0, 1.0]))
ENTRIES = st.lists(
    st.builds(
        Entry,
        step=st.integers(0, 50),
        ends_leg=st.booleans(),
        scores=st.dictionaries(st.sampled_from(["val_loss", "accuracy"]), SCORES),
    ),
    unique_by=lambda entry: entry.step,
)
RULES = st.lists(
    st.one_of(
        st.builds(KeepLatest, st.integers(1, 5)),
        st.builds(
            KeepBest,
            st.sampled_from(["val_loss", "accuracy", "other_loss"]),
            st.integers(1, 3),
            st.sampled_from(["auto", "min", "max"]),
        ),
    ),
    max_size=3,
)


@given(ENTRIES, RULES, RULES)
def test_what_stays_depends_on_values_and_what_is_left_tells_the_same(
    entries: list[Entry], rules: list[Rule], more: list[Rule]
):
    stays = kept(entries, rules)
    steps = {entry.step for entry in entries}
    assert stays <= steps
    assert stays >= {entry.step for entry in entries if entry.ends_leg}
    assert bool(stays) == bool(entries)
    assert not entries or max(steps) in stays
    assert kept(entries[::-1], rules[::-1]) == stays
    assert kept(entries, [*rules, *more]) == stays | kept(entries, more)
    on_disk = [entry for entry in entries if entry.step in stays]
    assert kept(on_disk, rules) == stays
    assert best_steps(on_disk, rules) == best_steps(entries, rules)


@given(ENTRIES, st.sampled_from(["min", "max"]))
def test_nothing_that_counts_is_better_than_the_best(entries: list[Entry], mode: Any):
    ranked = best(entries, KeepBest("accuracy", mode=mode))
    scores = {entry.step: entry.scores.get("accuracy", math.nan) for entry in entries}
    finite = [score for score in scores.values() if math.isfinite(score)]
    assert len(ranked) == len(finite)
    assert [scores[step] for step in ranked] == sorted(finite, reverse=mode == "max")


def test_the_best_stays_beside_the_newest():
    entries = [entry(1, val_loss=0.9), entry(2, val_loss=0.1), entry(3, val_loss=0.5)]
    assert kept(entries, [KeepBest("val_loss")]) == {2, 3}
    assert kept(entries, [KeepBest("val_loss", mode="max")]) == {1, 3}
    assert kept(entries, [KeepBest("val_loss", count=2)]) == {2, 3}


@pytest.mark.parametrize("worthless", [math.nan, math.inf, -math.inf, None, "0.1", [0.1]])
@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_score_that_is_no_finite_number_is_never_the_best(worthless: Any, mode: Any):
    entries = [entry(1, val_loss=worthless), entry(2, val_loss=0.5), entry(3)]
    assert best(entries, KeepBest("val_loss", mode=mode)) == [2]
    assert kept(entries, [KeepBest("val_loss", count=3, mode=mode)]) == {2, 3}


def test_numbers_of_numpy_are_numbers():
    entries = [entry(1, val_loss=np.float32(0.5)), entry(2, val_loss=np.float64(0.25))]
    assert best(entries, KeepBest("val_loss")) == [2, 1]


LARGER = [
    *("val_accuracy", "val_sparse_categorical_accuracy", "val_acc", "acc1", "auc_1"),
    *("val_Precision", "recall_at_precision", "f1_score", "val_f1", "mean_io_u", "val_iou"),
    *("dice", "r2_score", "val_r2", "bleu", "val_map50", "val_cosine_similarity", "val_psnr"),
    *("val_top_5", "rouge_l"),
]
SMALLER = [
    *("val_loss", "loss", "dice_loss", "score_error", "mean_absolute_error", "mae", "layer2_mae"),
    *("perplexity", "val_rmse", "brier_score", "val_top5_error", "false_positives"),
    *("val_kl_divergence", "binary_crossentropy", "val_loss_1", "val_mape"),
]


@pytest.mark.parametrize("metric", [*LARGER, *SMALLER])
def test_the_name_says_which_direction_is_better(metric: str):
    assert KeepBest(metric).larger_is_better == (metric in LARGER)
    assert KeepBest(metric, mode="max").larger_is_better
    assert not KeepBest(metric, mode="min").larger_is_better


def test_a_misspelled_metric_is_refused_with_the_names_that_exist():
    with pytest.raises(
        ConfigurationError, match=r"(?s)one of val_loss, val_gain.*KeepBest\('val_loss"
    ):
        require_measured([KeepBest("val_lossy")], {"loss": 0.5, "gain": 1.0})


def test_a_validation_is_among_the_best_so_far_by_any_rule():
    rules = [KeepLatest(1), KeepBest("val_loss", count=2), KeepBest("val_accuracy")]
    entries = [
        entry(5, val_loss=0.6, val_accuracy=0.5),
        entry(10, val_loss=0.7, val_accuracy=0.1),  # the second best loss
        entry(20, val_loss=0.8, val_accuracy=0.5),  # as good as an earlier one
        entry(30, val_loss=0.9, val_accuracy=0.6),
        entry(40, val_loss=math.nan, val_accuracy=[0.9]),
    ]
    assert best_steps(entries, rules) == {5, 10, 30}
    assert best_steps(entries, [KeepLatest(3)]) == set()


NO_COUNT = r"(?s)an integer, at least 1.*do: .*count=3"
NO_METRIC = r'(?s)needs the name of a metric.*do: KeepBest\("val_loss"\)'
NO_DIRECTION = r'(?s)smaller or larger.*do: .*mode="max"'


@pytest.mark.parametrize(
    ("rule", "arguments", "words"),
    [
        *(
            (rule, {"count": n}, NO_COUNT)
            for rule in (KeepLatest, KeepBest)
            for n in (0, -1, 1.5, True, "3", None)
        ),
        *((KeepBest, {"metric": metric}, NO_METRIC) for metric in ("", None, 3)),
        *(
            (KeepBest, {"metric": metric}, NO_DIRECTION)
            for metric in ("indices", "val_gain", "val_wandering", "heap")
        ),
        (KeepBest, {"mode": "best"}, r"(?s)'best'.*do: .*mode=\"min\""),
    ],
)
def test_a_rule_that_means_nothing_is_refused_in_words(rule: Any, arguments: Any, words: str):
    with pytest.raises(ConfigurationError, match=words):
        rule(**arguments)
