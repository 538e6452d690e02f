"""Signals: noted at once, obeyed later; handlers are those of the program before and after."""

import contextlib
import os
import signal
import threading
from typing import Any

import pytest

import loopwright as lw
from loopwright.loop import signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_being_asked_to_leave_ends_with_143(number: int):
    with signals.watched() as heard:
        assert not heard.received()
        os.kill(os.getpid(), number)
        assert heard.received()
    with pytest.raises(lw.Preempted) as left:
        heard.raise_received()
    assert left.value.code == 143
    assert isinstance(left.value, SystemExit)


def test_one_interrupt_is_noted_and_a_second_leaves_at_once():
    with signals.watched() as heard:
        os.kill(os.getpid(), signal.SIGINT)
        assert heard.received()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        heard.raise_received()


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_of_ctrl_c_and_being_asked_to_leave_the_latter_wins_in_any_order(first: int):
    second = signal.SIGTERM if first == signal.SIGINT else signal.SIGINT
    with signals.watched() as heard:
        os.kill(os.getpid(), first)
        os.kill(os.getpid(), second)
    with pytest.raises(lw.Preempted):
        heard.raise_received()


def test_a_second_interrupt_leaves_at_once_also_after_being_asked_to_leave():
    with signals.watched() as heard:
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert heard.received()


def test_the_handlers_of_the_program_are_put_back_also_after_an_error():
    def own(number: int, frame: Any) -> None:
        """Never called here."""

    before = {n: signal.signal(n, own) for n in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)}
    try:
        with contextlib.suppress(RuntimeError), signals.watched():
            assert signal.getsignal(signal.SIGTERM) is not own
            raise RuntimeError
        assert all(signal.getsignal(number) is own for number in before)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_in_another_thread_a_warning_says_that_none_can_be_heard():
    told: list[Any] = []

    def watch() -> None:
        warned = pytest.warns(lw.LoopwrightWarning, match="outside the main thread")
        with warned as caught, signals.watched() as heard:
            assert not heard.received()
        told.extend(caught)

    thread = threading.Thread(target=watch)
    thread.start()
    thread.join()
    assert len(told) == 1
