"""Compile a plan in a thread while training continues."""

import atexit
import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future

_SECONDS_TO_WAIT_AT_EXIT = 60.0
_under_way: set[threading.Thread] = set()


def compile_in_background(compile: Callable[[], None]) -> Future[None]:
    """Compile in a daemon thread; the result says when it has ended, and why it failed."""
    result = Future[None]()
    waiting = [compile]

    def run() -> None:
        try:
            waiting.pop()()  # it holds the data
        except Exception as error:
            result.set_exception(error)
        else:
            result.set_result(None)
        finally:
            _under_way.discard(thread)

    thread = threading.Thread(target=run, name="loopwright-compile", daemon=True)
    _wait_at_exit()
    _under_way.add(thread)
    thread.start()
    return result


@functools.cache
def _wait_at_exit() -> None:
    """Wait for compiles at exit: the process would crash, since XLA cannot be stopped."""

    def wait() -> None:
        for thread in list(_under_way):
            thread.join(_SECONDS_TO_WAIT_AT_EXIT)

    atexit.register(wait)
