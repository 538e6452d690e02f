"""Leaving a loop over events: on purpose, or by an exception in its body."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from loopwright.errors import ConfigurationError
from loopwright.events import Event, Saved
from loopwright.fit.event_stream import EventStream, LoopLeft


class Leg:
    """Events without end, and how they were ended."""

    def __init__(self) -> None:
        self.end = "none"

    def events(self) -> Iterator[Event]:
        try:
            while True:
                yield Saved(step=1, seconds=0.0)
        except LoopLeft:
            self.end = "left"
            raise
        except GeneratorExit:
            self.end = "dropped"
            raise

    def stream(self) -> EventStream:
        return EventStream(self.events())  # pyright: ignore[reportArgumentType]


def by_break(events: Any) -> None:
    for _ in events():
        break


def by_return(events: Any) -> None:
    for _ in events():
        return


def by_break_after_an_exception_in_the_same_loop(events: Any) -> None:
    kept = []
    for _ in events():
        try:
            raise ValueError
        except ValueError as error:
            kept.append(error)
        if len(kept) > 1:
            break


def by_break_while_an_exception_is_handled(events: Any) -> None:
    try:
        raise KeyError
    except KeyError:
        for _ in events():
            break


def by_the_end_of_a_with_block(events: Any) -> None:
    with events() as stream:
        for _ in stream:
            break


def by_running_out_beside_a_shorter_loop(events: Any) -> None:
    for _, _ in zip(range(2), events(), strict=False):
        pass


@pytest.mark.parametrize(
    "leave",
    [
        by_break,
        by_return,
        by_break_after_an_exception_in_the_same_loop,
        by_break_while_an_exception_is_handled,
        by_the_end_of_a_with_block,
        by_running_out_beside_a_shorter_loop,
    ],
    ids=lambda leave: leave.__name__,
)
def test_a_loop_left_on_purpose_finishes_the_leg(leave: Callable[[Any], None]):
    leg = Leg()
    leave(leg.stream)
    assert leg.end == "left"


def by_an_exception(events: Any) -> None:
    for _ in events():
        raise ValueError


def by_an_exception_of_a_function(events: Any) -> None:
    def fail() -> None:
        raise ValueError

    for _ in events():
        fail()


def by_an_exception_that_is_caught(events: Any) -> None:
    try:
        for _ in events():
            raise ValueError
    except ValueError:
        pass


def by_an_exception_in_a_with_block(events: Any) -> None:
    with events() as stream:
        for _ in stream:
            raise ValueError


def by_an_exception_in_closing(events: Any) -> None:
    with contextlib.closing(events()) as stream:
        for _ in stream:
            raise ValueError


def by_an_exception_before_finally(events: Any) -> None:
    stream = events()
    try:
        for _ in stream:
            raise ValueError
    finally:
        stream.close()


def by_close(events: Any) -> None:
    stream = events()
    next(stream)
    stream.close()


def by_dropping_events_that_were_held(events: Any) -> None:
    stream = events()
    for _ in stream:
        break
    stream = None


def by_dropping_the_events(events: Any) -> None:
    stream = events()
    next(stream)


def by_an_exception_through_a_generator(events: Any) -> None:
    def passed_on() -> Iterator[Event]:
        yield from events()

    for _ in passed_on():
        raise ValueError


@pytest.mark.parametrize(
    "leave",
    [
        by_an_exception,
        by_an_exception_of_a_function,
        by_an_exception_that_is_caught,
        by_an_exception_in_a_with_block,
        by_an_exception_in_closing,
        by_an_exception_before_finally,
        by_close,
        by_dropping_events_that_were_held,
        by_dropping_the_events,
        by_an_exception_through_a_generator,
    ],
    ids=lambda leave: leave.__name__,
)
def test_a_loop_left_by_an_exception_does_not_finish_the_leg(leave: Callable[[Any], None]):
    leg = Leg()
    with contextlib.suppress(ValueError):
        leave(leg.stream)
    assert leg.end == "dropped"


def test_a_stream_is_closed_when_its_loop_is_left_and_not_later():
    leg = Leg()
    for _ in leg.stream():
        assert leg.end == "none"
        break
    assert leg.end == "left"


def test_a_stream_that_is_being_read_is_not_closed():
    def events() -> Iterator[Event]:
        stream.close()
        yield Saved(step=1, seconds=0.0)

    stream = EventStream(events())  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigurationError, match=r"This trainer is training\."):
        next(stream)


def test_a_stream_that_was_never_read_is_closed_in_silence():
    leg = Leg()
    leg.stream().close()
    assert leg.end == "none"
