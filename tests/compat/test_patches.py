"""Patches of Keras and TensorFlow, while another thread trains."""

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import keras
import pytest
import tensorflow as tf
from tests.mirrored import mirrored

from loopwright.compat import keras_internals, keras_optimizers
from loopwright.compat.internals import replaced

SECONDS = 30.0


class Owner:
    """A class of Keras, as far as patches see it."""

    def method(self) -> list[str]:
        return ["original"]

    @property
    def value(self) -> list[str]:
        return ["original"]


def prefixed(prefix: str) -> Callable[[Any], Any]:
    """A patch that puts a word before what was there."""

    return lambda original: lambda self: [prefix, *original(self)]


def prefixed_method(prefix: str) -> contextlib.AbstractContextManager[None]:
    return replaced(Owner, "method", prefixed(prefix))


@contextlib.contextmanager
def entered_elsewhere(scope: contextlib.AbstractContextManager[Any]) -> Iterator[SimpleNamespace]:
    """Another thread inside a scope; `leave()` has it leave the scope."""
    inside, leaving = threading.Event(), threading.Event()
    other = SimpleNamespace(value=None)

    def run() -> None:
        with scope as other.value:
            inside.set()
            leaving.wait(SECONDS)

    thread = threading.Thread(target=run)
    thread.start()
    assert inside.wait(SECONDS)

    def leave() -> None:
        leaving.set()
        thread.join(SECONDS)

    other.leave = leave
    try:
        yield other
    finally:
        leave()


@pytest.mark.parametrize("leaves_first", [True, False])
def test_the_original_returns_when_both_threads_have_left(leaves_first: bool):
    original = vars(Owner)["method"]
    with entered_elsewhere(prefixed_method("first")) as first:
        with prefixed_method("second"):
            if leaves_first:
                first.leave()
            assert Owner().method() == ["second", "original"]
        assert Owner().method() == ["original"]
    assert vars(Owner)["method"] is original


def test_a_patch_acts_only_in_the_thread_that_made_it():
    with entered_elsewhere(prefixed_method("other")):
        assert Owner().method() == ["original"]
    with entered_elsewhere(replaced(Owner, "value", prefixed("other"))):
        assert Owner().value == ["original"]


def test_patches_inside_each_other_all_act_innermost_first():
    with prefixed_method("outer"):
        with prefixed_method("inner"):
            assert Owner().method() == ["inner", "outer", "original"]
        assert Owner().method() == ["outer", "original"]
    with replaced(Owner, "value", prefixed("outer")), replaced(Owner, "value", prefixed("inner")):
        assert Owner().value == ["inner", "outer", "original"]


def test_an_attribute_of_instances_is_replaced_for_one_thread_and_can_still_be_set():
    class Plain:
        def __init__(self) -> None:
            self.steps = 2

    plain = Plain()
    hidden = replaced(Plain, "steps", lambda _: lambda self: None, is_field=True)
    with entered_elsewhere(hidden):
        assert plain.steps == 2
        plain.steps = 3
        assert plain.steps == 3
    with replaced(Plain, "steps", lambda _: lambda self: None, is_field=True):
        assert plain.steps is None
    assert (plain.steps, "steps" in vars(Plain)) == (3, False)


def test_threads_that_come_and_go_leave_the_original():
    original, wrong = vars(Owner)["method"], list[Any]()

    def trace(name: str) -> None:
        for _ in range(300):
            with prefixed_method(name):
                found = Owner().method()
                if found != [name, "original"]:
                    wrong.append(found)

    threads = [threading.Thread(target=trace, args=(str(n),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert wrong == []
    assert vars(Owner)["method"] is original


def test_replicas_have_the_patches_of_the_thread_that_starts_them():
    def on_replica() -> Any:
        return tf.constant(Owner().method())

    def on_all() -> list[Any]:
        outputs = mirrored().experimental_local_results(mirrored().run(on_replica))
        return [value.numpy().tolist() for value in outputs]

    with prefixed_method("replica"):
        assert on_all() == [[b"replica", b"original"]] * 2
    with entered_elsewhere(prefixed_method("other")):
        assert on_all() == [[b"original"]] * 2


def test_an_accumulating_optimizer_counts_right_while_another_thread_traces_it():
    optimizer = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
    optimizer.build([keras.Variable(1.0)])
    keras_optimizers.update_counter(optimizer).assign(4)
    with entered_elsewhere(keras_optimizers.without_accumulation(optimizer)) as other:
        assert optimizer.gradient_accumulation_steps == 2
        with keras_optimizers.without_accumulation(optimizer):
            other.leave()
            assert optimizer.gradient_accumulation_steps is None
            assert int(optimizer.iterations) == 2
    assert optimizer.gradient_accumulation_steps == 2


def test_keras_warnings_are_shown_again_after_two_threads_left_them_out():
    before = list(warnings.filters)
    elsewhere = entered_elsewhere(keras_internals.without_keras_warnings())
    with elsewhere as first, keras_internals.without_keras_warnings():
        first.leave()
        warnings.warn("You are using a softmax over axis 3", stacklevel=1)
    assert list(warnings.filters) == before
