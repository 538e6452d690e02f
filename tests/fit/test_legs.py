"""Which calls of `fit` are begun, gone on with, or skipped."""

from dataclasses import fields
from typing import Any

import pytest

from loopwright.checkpoints.snapshot import Snapshot
from loopwright.fit.resume import entry
from loopwright.loop.schedule import Every, Position

TWO_EPOCHS = Every(epochs=2)
INSIDE = Position(step=7, epoch=0, step_in_epoch=7)
OVER = Position(step=20, epoch=2, is_over=True)


def reached(leg: int, place: Position, until: Every) -> Snapshot:
    known: dict[str, Any] = {field.name: {} for field in fields(Snapshot)}
    return Snapshot(**{**known, "leg": leg, "position": place, "until": str(until)})


def test_a_run_without_a_checkpoint_begins():
    assert entry(0, TWO_EPOCHS, None) == "begin"


def test_what_was_interrupted_goes_on_and_what_came_before_is_skipped():
    saved = reached(1, INSIDE, TWO_EPOCHS)
    assert [entry(leg, TWO_EPOCHS, saved) for leg in range(3)] == ["skip", "resume", "begin"]


def test_what_was_finished_is_skipped_and_what_comes_after_begins():
    saved = reached(1, OVER, TWO_EPOCHS)
    assert [entry(leg, TWO_EPOCHS, saved) for leg in range(3)] == ["skip", "skip", "begin"]


@pytest.mark.parametrize(
    ("before", "now", "what"),
    [
        (Every(epochs=2), Every(epochs=3), "resume"),
        (Every(epochs=2), Every(epochs=1), "skip"),
        (Every(steps=20), Every(steps=30), "resume"),
        (Every(seconds=60.0), Every(seconds=90.0), "resume"),
        (Every(epochs=2), Every(steps=10_000), "skip"),
    ],
)
def test_a_finished_leg_goes_on_only_if_it_is_asked_to_go_further(
    before: Every, now: Every, what: str
):
    assert entry(0, now, reached(0, OVER, before)) == what


@pytest.mark.parametrize(
    ("place", "until", "what"),
    [
        (Position(20, epoch=2), Every(epochs=2), "end"),
        (Position(27, epoch=2, step_in_epoch=7), Every(epochs=2), "end"),
        (Position(27, epoch=2, step_in_epoch=7), Every(epochs=3), "resume"),
        (Position(20, epoch=1, step_in_epoch=10, is_due=True), Every(epochs=2), "resume"),
        (Position(20, epoch=2), Every(steps=20), "end"),
        (Position(20, epoch=2), Every(steps=15), "end"),
        (Position(20, epoch=2, is_due=True), Every(steps=20), "resume"),
        (Position(20, epoch=2, is_due=True), Every(steps=15), "end"),
        (Position(20, epoch=2, seconds=9.0), Every(seconds=8.0), "end"),
        (Position(20, epoch=2, seconds=9.0, is_due=True), Every(seconds=8.0), "resume"),
        (Position(20, epoch=2, seconds=9.0), Every(seconds=10.0), "resume"),
    ],
)
def test_a_leg_that_was_interrupted_with_nothing_left_to_do_is_ended(
    place: Position, until: Every, what: str
):
    assert entry(0, until, reached(0, place, Every(epochs=9))) == what
