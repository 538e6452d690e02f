"""Writing beside the training: one at a time, and no error is lost."""

import threading
from collections.abc import Callable

import pytest

from loopwright.checkpoints.store import Writer


def test_a_write_goes_on_beside_and_is_over_after_waiting():
    writer, may_end, ended = Writer(), threading.Event(), threading.Event()

    def write() -> None:
        may_end.wait(10)
        ended.set()

    writer.start(write)
    assert not ended.is_set()
    may_end.set()
    writer.wait()
    assert ended.is_set()


def test_an_error_surfaces_at_the_next_write_once():
    writer, written = Writer(), list[int]()

    def fail() -> None:
        raise OSError("no space left")

    writer.start(fail)
    with pytest.raises(OSError, match="no space left"):
        writer.start(lambda: written.append(1))
    assert written == []
    writer.start(lambda: written.append(2))
    writer.wait()
    assert written == [2]


def held_up(writer: Writer, order: list[int]) -> Callable[[], None]:
    """Starts a write that ends when what is returned is called."""
    may_end, begun = threading.Event(), threading.Event()

    def write() -> None:
        begun.set()
        may_end.wait(60)
        order.append(0)

    writer.start(write)
    begun.wait(60)
    return may_end.set


@pytest.mark.parametrize(
    ("bests", "written"),
    [
        ([{1}, {2}, {3}], [0, 3]),  # a newer best replaces the one that waits
        ([{1}, {1, 2}], [0, 1, 2]),  # still among the best: two would wait, so it blocks
    ],
)
def test_of_those_that_wait_only_one_that_is_no_longer_the_best_is_lost(
    bests: list[set[int]], written: list[int]
):
    writer, order = Writer(), list[int]()
    go_on = held_up(writer, order)

    def queue() -> None:
        for step, best in enumerate(bests, start=1):
            writer.queue(step, lambda step=step: order.append(step), best)

    queuing = threading.Thread(target=queue)
    queuing.start()
    if written == [0, 3]:
        queuing.join()  # nothing blocks
    assert order == []
    go_on()
    queuing.join()
    writer.wait()
    assert order == written


def test_what_waits_is_written_before_what_is_due_and_neither_is_lost():
    writer, order = Writer(), list[int]()
    go_on = held_up(writer, order)
    writer.queue(1, lambda: order.append(1), best={1})
    due = threading.Thread(target=writer.start, args=(lambda: order.append(2),))
    due.start()
    go_on()
    due.join()
    writer.queue(3, lambda: order.append(3), best={3})  # it may not replace what is due
    writer.wait()
    assert order == [0, 1, 2, 3]


def test_what_waits_behind_a_failure_is_not_written_and_the_error_surfaces():
    writer, may_fail, written = Writer(), threading.Event(), list[int]()

    def fail() -> None:
        may_fail.wait(60)
        raise OSError("no space left")

    writer.start(fail)
    waits = threading.Thread(target=writer.queue, args=(1, lambda: written.append(1), {1}))
    waits.start()
    waits.join()
    may_fail.set()
    with pytest.raises(OSError, match="no space left"):
        writer.wait()
    assert written == []
    writer.queue(2, lambda: written.append(2), best={2})
    writer.wait()
    assert written == [2]
