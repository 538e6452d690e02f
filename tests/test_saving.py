"""Writing beside the training: one at a time, and no error is lost."""

import threading

import pytest

from loopwright.saving import Writer


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


def test_an_error_surfaces_when_waited_for():
    writer = Writer()
    writer.start(lambda: {}["nothing"])
    with pytest.raises(KeyError):
        writer.wait()
    writer.wait()


def test_writes_never_overlap():
    writer, order = Writer(), list[str]()

    def write(name: str) -> None:
        order.append(f"{name} begins")
        order.append(f"{name} ends")

    for name in "abc":
        writer.start(lambda name=name: write(name))
    writer.wait()
    assert order == [f"{name} {what}" for name in "abc" for what in ("begins", "ends")]
