"""The context of a running step: one for each thread, and restored when it is left."""

import threading

import pytest

from loopwright.task import context
from loopwright.task.context import StepContext, entered


def test_outside_of_any_step_nothing_is_known():
    assert context.current() == StepContext()
    assert context.current().counter is None


def test_a_context_is_restored_also_after_an_error():
    with entered(StepContext(fraction=0.5)):
        with pytest.raises(ZeroDivisionError), entered(StepContext(updates=False)):
            _ = 1 / 0
        assert context.current().fraction == 0.5
        assert context.current().updates
    assert context.current() == StepContext()


def test_a_thread_that_traces_a_replica_has_a_context_of_its_own():
    seen = []

    def replica() -> None:
        seen.append(context.draws_alike())
        with entered(StepContext(fraction=0.25)):
            seen.append(context.current().fraction)

    with entered(StepContext(draws_alike=True)):
        thread = threading.Thread(target=replica)
        thread.start()
        thread.join()
        assert context.draws_alike()

    assert seen == [False, 0.25]
