"""The words of progress: plain text, wrapped where columns are short."""

from typing import Any

import numpy as np
import pytest

from loopwright.events import (
    BatchSkipped,
    EpochEnded,
    Finished,
    Metrics,
    PlanChosen,
    Started,
    Trained,
    Validated,
)
from loopwright.sinks import progress_text
from loopwright.sinks.progress_text import Part, RunLines

RUN = Started(step=100, epochs=3, steps_per_epoch=45, total_steps=135)
ENDLESS = Started(step=100, epochs=None, steps_per_epoch=45, total_steps=1000)


def said(parts: list[Part]) -> str:
    return progress_text.GAP.join(part.text for part in parts)


def trained(metrics: Metrics | None = None) -> Trained:
    return Trained(step=155, epoch=1, step_in_epoch=10, steps=5, seconds=0.1, metrics=metrics or {})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.5000"),
        (0.0, "0.000"),
        (-12.3456, "-12.35"),
        (0.00012, "0.00012"),
        (1.3e-05, "1.3e-05"),
        (123456.0, "1.235e+05"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (1000, "1000"),
        (np.float32(0.1), "0.1000"),
        (np.array(0.25), "0.2500"),
        (np.array([0.5]), "[0.5]"),
        (np.linspace(0, 1, 11), "[0 0.1 0.2 …]"),
        ([0.5, 0.25], "[0.5 0.25]"),
        (np.zeros((10, 10)), "[10x10]"),
        (None, "None"),
        ("two\nlines", "two lines"),
        (["a", "b"], "['a', 'b']"),
    ],
)
def test_numbers_are_short(value: Any, text: str):
    assert said(progress_text.numbers({"m": value})) == f"m {text}"


def test_a_running_epoch_says_where_it_is_and_a_run_without_epochs_counts_its_own_steps():
    text = said(progress_text.running(RUN, trained({"loss": 0.5}), rate=0.5))
    assert text == "epoch 2/3 · 10/45 steps · 2.0 s/step · 0:01:10 left · loss 0.5000"
    text = said(progress_text.running(ENDLESS, trained(), rate=None))
    assert text == "epoch 2 · 55/1000 steps"
    assert progress_text.progress(ENDLESS, trained()) == (55, 1000)
    assert progress_text.progress(RUN, trained()) == (10, 45)


@pytest.mark.parametrize(
    ("steps", "seconds", "text"),
    [
        (45, 0.41, "45 steps · 0.41 s · 110 steps/s"),
        (45, 9.0, "45 steps · 9.0 s · 5.0 steps/s"),
        (45, 125.2, "45 steps · 0:02:05 · 2.8 s/step"),
        (45, 0.02, "45 steps · 0.02 s · 2,250 steps/s"),
        (44, 0.0, "44/45 steps · 0.00 s"),
        (0, 1.0, "0/45 steps · 1.0 s"),
    ],
)
def test_an_ended_epoch_says_its_length_time_and_rate(steps: int, seconds: float, text: str):
    event = EpochEnded(0, 145, steps, seconds, {"loss": 0.5}, {"loss": 0.25})
    assert (
        said(progress_text.ended(RUN, event))
        == f"epoch 1/3 · {text} · loss 0.5000 · val_loss 0.2500"
    )


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (Finished(1435, 3.0, "complete"), "done: 1,335 steps in 3.0 s"),
        (Finished(101, 3.0, "stopped"), "stopped by a callback after 1 step in 3.0 s"),
        (Finished(102, 0.5, "left"), "ended by the caller after 2 steps in 0.50 s"),
        (Finished(100, 3600.0, "failed"), "failed after 0 steps in 1:00:00"),
        (Finished(102, 0.5, "interrupted"), "interrupted after 2 steps in 0.50 s"),
        (
            Finished(102, 0.5, "interrupted", saved=True),
            "interrupted and saved after 2 steps in 0.50 s",
        ),
    ],
)
def test_the_last_words_say_how_the_run_ended(event: Finished, text: str):
    assert progress_text.last(RUN, event).text == text


@pytest.mark.parametrize(
    ("room", "lines"),
    [
        (51, ["epoch 1 · 45 steps · 9 steps/s · loss 0.5 · mae 0.7"]),
        (50, ["epoch 1 · 45 steps · 9 steps/s · loss 0.5", "mae 0.7"]),
        (18, ["epoch 1 · 45 steps", "9 steps/s", "loss 0.5", "mae 0.7"]),
        (3, ["epoch 1", "45 steps", "9 steps/s", "loss 0.5", "mae 0.7"]),
    ],
)
def test_where_columns_are_short_a_line_is_wrapped_and_nothing_left_out(
    room: int, lines: list[str]
):
    parts = [*map(Part, ["epoch 1", "45 steps", "9 steps/s", "loss 0.5", "mae 0.7"])]
    assert [said(line) for line in progress_text.wrapped(parts, room)] == lines


def test_a_wide_character_counts_as_two_columns():
    assert progress_text.columns([Part("損失"), Part("1")]) == 8


def test_resumed_runs_skipped_batches_plans_and_validations_are_lines_of_their_own():
    lines = RunLines()
    events = [
        Started(1060, 3, 45, 135, resumed_steps=60),
        BatchSkipped(12, "examples 8 to 15"),
        BatchSkipped(12, "examples 8 to 15", 10),
        PlanChosen(30, "fused", "2x faster", 'plan="fused"'),
        Validated(40, 0, 0.1, {"loss": 0.5}),
        trained({"loss": 0.5}),
        Validated(45, 0, 0.1, {"loss": 0.5}),
        EpochEnded(0, 45, 45, 1.0, {"loss": 0.5}, {"loss": 0.5}),
    ]
    assert [said(line) for event in events for line in lines.add(event)] == [
        "resuming from step 1,060",
        "skipped the batch of step 12 · examples 8 to 15",
        "skipped the batch of step 12; rolled back to step 10 · examples 8 to 15",
        'plan: fused · 2x faster · to reproduce: plan="fused"',
        "step 40 · val_loss 0.5000",
        "epoch 1/3 · 45 steps · 1.0 s · 45 steps/s · loss 0.5000 · val_loss 0.5000",
    ]
