"""Each way of leaving a loop over events: all but the end leave the call of `fit` open."""

import contextlib
import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.resume.program import Noisy, arrays, digest

import loopwright as lw
from loopwright.fit.event_stream import EventStream

Events = Callable[[], EventStream]


def trainer_in(run_dir: Path | None) -> lw.Trainer:
    return lw.Trainer(Noisy(), run_dir=run_dir, plan="graph")


def options(epochs: int = 3) -> dict[str, Any]:
    return {"x": arrays()[0], "y": arrays()[1], "batch_size": 8, "epochs": epochs, "verbose": 0}


@functools.cache
def undisturbed_bits() -> str:
    trainer = trainer_in(None)
    trainer.fit(**options())
    return digest(trainer.task)


def is_second_epoch(event: lw.Event) -> bool:
    return isinstance(event, lw.EpochStarted) and event.epoch == 1


def by_break(events: Events) -> None:
    for event in events():
        if is_second_epoch(event):
            break


def by_return_of_a_generator(events: Events) -> None:
    def pass_on() -> Iterator[lw.Event]:
        yield from events()

    for event in pass_on():
        if is_second_epoch(event):
            return


def by_an_exception(events: Events) -> None:
    for event in events():
        if is_second_epoch(event):
            raise ValueError


def by_ctrl_c(events: Events) -> None:
    for event in events():
        if is_second_epoch(event):
            raise KeyboardInterrupt


def by_close(events: Events) -> None:
    stream = events()
    next(event for event in stream if is_second_epoch(event))
    stream.close()


def by_dropping_the_events(events: Events) -> None:
    stream = events()
    next(event for event in stream if is_second_epoch(event))
    del stream


def by_holding_the_events(events: Events) -> None:
    stream = events()
    next(event for event in stream if is_second_epoch(event))
    HELD.append(stream)


def by_an_exception_in_a_with_block(events: Events) -> None:
    with events() as stream:
        for event in stream:
            if is_second_epoch(event):
                raise ValueError


HELD: list[EventStream] = []
LEFT_OPEN = [
    by_break,
    by_return_of_a_generator,
    by_an_exception,
    by_ctrl_c,
    by_close,
    by_dropping_the_events,
    by_holding_the_events,
    by_an_exception_in_a_with_block,
]


def leave(trainer: lw.Trainer, way: Callable[[Events], None]) -> None:
    with contextlib.suppress(ValueError, KeyboardInterrupt):
        way(lambda: trainer.events(**options()))


def status(run_dir: Path) -> str:
    return json.loads((run_dir / "status.json").read_text())["status"]


@pytest.mark.parametrize("way", LEFT_OPEN, ids=lambda way: way.__name__)
def test_a_loop_that_is_left_is_saved_and_the_next_fit_continues_it(
    way: Callable[[Events], None], tmp_path: Path
):
    trainer = trainer_in(tmp_path)
    leave(trainer, way)
    expected = "running" if way is by_holding_the_events else "interrupted"
    assert status(tmp_path) == expected
    assert trainer.fit(**options()).epoch == [0, 1, 2]
    assert digest(trainer.task) == undisturbed_bits()


def test_a_later_call_that_is_left_at_its_first_event_keeps_the_end_of_the_one_before(
    tmp_path: Path,
):
    trainer = trainer_in(tmp_path)
    trainer.fit(**options(1))
    next(trainer.events(**options(1)))
    assert trainer_in(tmp_path).fit(**options(1)).epoch == [0]  # it is complete


def by_break_in_a_with_block(events: Events) -> None:
    with events() as stream:
        for event in stream:
            if is_second_epoch(event):
                break


def by_reaching_the_end(events: Events) -> None:
    for _ in events():
        pass


@pytest.mark.parametrize(
    ("way", "epochs"), [(by_break_in_a_with_block, [0]), (by_reaching_the_end, [0, 1, 2])]
)
def test_the_end_of_the_events_or_of_a_with_block_finishes_the_call(
    way: Callable[[Events], None], epochs: list[int], tmp_path: Path
):
    trainer = trainer_in(tmp_path)
    leave(trainer, way)
    assert status(tmp_path) == "completed"
    assert trainer.history.epoch == epochs
    bits = digest(trainer.task)
    again = trainer_in(tmp_path)
    assert [type(event).__name__ for event in again.events(**options())] == ["Finished"]
    assert digest(again.task) == bits
    assert trainer.fit(**options(1)).epoch == [0]  # another call of fit


@pytest.mark.parametrize(
    "other",
    [{"epochs": 1}, {"epochs": 5}, {"x": arrays(64)[0], "y": arrays(64)[1]}],
    ids=["fewer epochs", "more epochs", "other data"],
)
def test_a_fit_that_asks_for_something_else_is_refused_with_the_form_that_finishes(
    other: dict[str, Any], tmp_path: Path
):
    trainer = trainer_in(tmp_path)
    leave(trainer, by_break)
    with pytest.raises(lw.ConfigurationError, match=r"with trainer\.events\(\.\.\.\) as events:"):
        trainer.fit(**options() | other)
    trainer.fit(**options())
    assert digest(trainer.task) == undisturbed_bits()
