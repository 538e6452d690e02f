"""metrics.jsonl: one line per event, and one continuous run whatever happened."""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loopwright as lw
from loopwright.events import (
    EpochEnded,
    Finished,
    GradientsWatched,
    ImagesDrawn,
    RunFacts,
    Saved,
    Started,
    Trained,
)
from loopwright.fit.journal import Journal


@contextlib.contextmanager
def opened(
    path: Path, after_bytes: int, clock: Callable[[], float], **options: bool
) -> Iterator[Journal]:
    journal = Journal(path, clock)
    with contextlib.closing(journal):
        journal.open({path.name: after_bytes}, **options)
        yield journal


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def trained(step: int) -> Trained:
    return Trained(step=step, epoch=0, step_in_epoch=step, steps=1, seconds=0.1, metrics={})


def ended(**metrics: Any) -> EpochEnded:
    rates = {"learning_rate": 0.1}
    return EpochEnded(epoch=0, step=3, steps=3, seconds=0.5, metrics=metrics, learning_rates=rates)


def test_an_event_is_a_line_with_its_name_and_time(tmp_path: Path):
    with opened(tmp_path / "m", 0, lambda: 12.3456) as journal:
        journal(ended(loss=0.5))
    expected = {"event": "epoch_ended", "time": 12.346, "epoch": 0, "step": 3, "steps": 3}
    assert lines(tmp_path / "m") == [
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
    with opened(tmp_path / "m", 0, lambda: 0.0) as journal:
        journal(Started(0, 1, 3, 3, facts=facts, inexact=["a reason"]))
        journal(GradientsWatched(3, {"w": np.ones(3)}))
        journal(ImagesDrawn(3, {"noise": np.ones((1, 2, 2, 1))}))
        journal(Finished(3, 1.0, "complete", history={"loss": [0.5]}))
    started, finished = lines(tmp_path / "m")
    assert list(started)[2:] == [
        "step",
        "epochs",
        "steps_per_epoch",
        "total_steps",
        "resumed_steps",
    ]
    of_end = ["step", "seconds", "reason", "spent", "advice", "saved", "failed_step"]
    assert list(finished)[2:] == of_end


def test_numbers_that_json_does_not_know_become_words(tmp_path: Path):
    with opened(tmp_path / "m", 0, lambda: 0.0) as journal:
        journal(ended(a=float("nan"), b=np.float32(2.0), c=-np.inf, d=np.array([1, np.inf])))
    metrics = {"a": "NaN", "b": 2.0, "c": "-Infinity", "d": [1.0, "Infinity"]}
    assert lines(tmp_path / "m")[0]["metrics"] == metrics


def test_of_many_steps_in_a_second_one_is_told_and_of_epochs_all(tmp_path: Path):
    now = iter([0.0, 0.4, 0.9, 0.95, 1.1, 1.2])
    with opened(tmp_path / "m", 0, lambda: next(now)) as journal:
        for event in (trained(1), trained(2), ended(), ended(), trained(3), trained(4)):
            journal(event)
    events = [(line["event"], line["step"]) for line in lines(tmp_path / "m")]
    assert events == [("trained", 1), ("epoch_ended", 3), ("epoch_ended", 3), ("trained", 3)]


def test_who_goes_on_forgets_what_came_after(tmp_path: Path):
    with opened(tmp_path / "m", 0, lambda: 0.0) as journal:
        journal(ended(loss=1.0))
        seen = (tmp_path / "m").stat().st_size
        journal(ended(loss=2.0))
    with opened(tmp_path / "m", seen, lambda: 0.0) as journal:
        journal(ended(loss=3.0))
    assert [line["metrics"]["loss"] for line in lines(tmp_path / "m")] == [1.0, 3.0]


def test_a_new_leg_leaves_the_end_of_the_one_before_and_nothing_of_its_own_first_try(
    tmp_path: Path,
):
    with opened(tmp_path / "m", 0, lambda: 0.0) as journal:
        journal(ended())
        seen = (tmp_path / "m").stat().st_size
        journal(Saved(step=3, seconds=0.1))
        journal(Finished(step=3, seconds=1.0, reason="complete"))
        journal(ended())  # of a second leg that was killed before it was saved
    with opened(tmp_path / "m", seen, lambda: 0.0, is_new_leg=True) as journal:
        journal(ended())
    events = [line["event"] for line in lines(tmp_path / "m")]
    assert events == ["epoch_ended", "finished", "epoch_ended"]


def test_a_journal_that_lost_its_end_is_told_of_and_goes_on(tmp_path: Path):
    (tmp_path / "m").write_text('{"event": "started"}\n')
    with (
        pytest.warns(lw.LoopwrightWarning, match="is truncated: it has 21 bytes, and had 500"),
        opened(tmp_path / "m", 500, lambda: 0.0) as journal,
    ):
        journal(ended())
    assert [line["event"] for line in lines(tmp_path / "m")] == ["started", "epoch_ended"]
