"""metrics.jsonl: one line per event, and one continuous run whatever happened."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loopwright as lw
from loopwright.events import (
    EpochEnded,
    Event,
    Finished,
    GradientsWatched,
    ImagesDrawn,
    RunFacts,
    Saved,
    Started,
    Trained,
)
from loopwright.fit.journal import Journal


def write(
    directory: Path,
    *events: Event,
    after_bytes: int = 0,
    clock: Callable[[], float] = lambda: 12.3456,
    is_new_leg: bool = False,
) -> list[Any]:
    """Append events to a journal, and return its lines."""
    with contextlib.closing(Journal(directory / "m", clock)) as journal:
        journal.open({"m": after_bytes}, is_new_leg=is_new_leg)
        for event in events:
            journal(event)
    return [json.loads(line) for line in (directory / "m").read_text().splitlines()]


def trained(step: int) -> Trained:
    return Trained(step=step, epoch=0, step_in_epoch=step, steps=1, seconds=0.1, metrics={})


def ended(**metrics: Any) -> EpochEnded:
    rates = {"learning_rate": 0.1}
    return EpochEnded(epoch=0, step=3, steps=3, seconds=0.5, metrics=metrics, learning_rates=rates)


def test_an_event_is_a_line_with_its_name_and_time(tmp_path: Path):
    expected = {"event": "epoch_ended", "time": 12.346, "epoch": 0, "step": 3, "steps": 3}
    assert write(tmp_path, ended(loss=0.5)) == [
        {
            **expected,
            "seconds": 0.5,
            "metrics": {"loss": 0.5},
            "validation": {},
            "learning_rates": {"learning_rate": 0.1},
        }
    ]


def test_facts_history_gradients_and_images_are_not_in_the_journal(tmp_path: Path):
    facts = RunFacts({"seed": 0}, "a summary", {"keras": "3"}, graph=object())
    started, finished = write(
        tmp_path,
        Started(0, 1, 3, 3, facts=facts, inexact=["a reason"]),
        GradientsWatched(3, {"w": np.ones(3)}),
        ImagesDrawn(3, {"noise": np.ones((1, 2, 2, 1))}),
        Finished(3, 1.0, "complete", history={"loss": [0.5]}),
    )
    of_start = ["step", "epochs", "steps_per_epoch", "total_steps", "resumed_steps"]
    assert list(started)[2:] == of_start
    of_end = ["step", "seconds", "reason", "spent", "advice", "saved", "failed_step"]
    assert list(finished)[2:] == of_end


def test_numbers_that_json_does_not_know_become_words(tmp_path: Path):
    odd = ended(a=float("nan"), b=np.float32(2.0), c=-np.inf, d=np.array([1, np.inf]))
    metrics = {"a": "NaN", "b": 2.0, "c": "-Infinity", "d": [1.0, "Infinity"]}
    assert write(tmp_path, odd)[0]["metrics"] == metrics


def test_of_many_steps_in_a_second_one_is_told_and_of_epochs_all(tmp_path: Path):
    now = iter([0.0, 0.4, 0.9, 0.95, 1.1, 1.2])
    given = trained(1), trained(2), ended(), ended(), trained(3), trained(4)
    lines = write(tmp_path, *given, clock=lambda: next(now))
    events = [(line["event"], line["step"]) for line in lines]
    assert events == [("trained", 1), ("epoch_ended", 3), ("epoch_ended", 3), ("trained", 3)]


def test_who_goes_on_forgets_what_came_after(tmp_path: Path):
    write(tmp_path, ended(loss=1.0))
    seen = (tmp_path / "m").stat().st_size
    write(tmp_path, ended(loss=2.0), after_bytes=seen)
    lines = write(tmp_path, ended(loss=3.0), after_bytes=seen)
    assert [line["metrics"]["loss"] for line in lines] == [1.0, 3.0]


def test_a_new_leg_leaves_the_end_of_the_one_before_and_nothing_of_its_own_first_try(
    tmp_path: Path,
):
    write(tmp_path, ended())
    seen = (tmp_path / "m").stat().st_size
    end = Saved(step=3, seconds=0.1), Finished(step=3, seconds=1.0, reason="complete")
    of_a_killed_leg = ended()  # which was not saved
    write(tmp_path, *end, of_a_killed_leg, after_bytes=seen)
    lines = write(tmp_path, ended(), after_bytes=seen, is_new_leg=True)
    assert [line["event"] for line in lines] == ["epoch_ended", "finished", "epoch_ended"]


def test_a_journal_that_lost_its_end_is_told_of_and_goes_on(tmp_path: Path):
    (tmp_path / "m").write_text('{"event": "started"}\n')
    words = "is truncated: it has 21 bytes, and had 500"
    with pytest.warns(lw.LoopwrightWarning, match=words):
        lines = write(tmp_path, ended(), after_bytes=500)
    assert [line["event"] for line in lines] == ["started", "epoch_ended"]
