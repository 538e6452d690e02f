"""TensorFlow's start: what its libraries say of themselves while they load is for nobody."""

import contextlib
import faulthandler
import os
import re
import sys
import tempfile
from collections.abc import Iterator

UNQUIET = "LOOPWRIGHT_UNQUIET_START"
"""The environment variable with which nothing is held back."""

_NOISE = re.compile(
    rb"All log messages before absl::InitializeLog"
    rb"|oneDNN custom operations are on"
    rb"|Could not find cuda drivers"
    rb"|failed call to cuInit"
    rb"|kernel driver does not appear to be running"
    rb"|This TensorFlow binary is optimized to use available CPU instructions"
    rb"|To enable the following instructions"
    rb"|Unable to register cu\w+ factory"
    rb"|TF-TRT Warning: Could not find TensorRT"
)


@contextlib.contextmanager
def quiet_start() -> Iterator[None]:
    """Holds back what is written to standard error, and then says all of it but the known noise.

    It works on the file descriptor: these lines come from libraries that know no Python. Their own
    switch, TF_CPP_MIN_LOG_LEVEL, is read too late for them. If such a library crashes the process,
    the signal and the Python lines that led there are printed, but not what is held back: a parent
    that reads the standard error of its child sets `UNQUIET` in the child's environment.
    """
    if os.environ.get(UNQUIET):
        yield
        return
    try:
        sys.stderr.flush()
        screen = os.dup(2)
    except (OSError, ValueError, AttributeError):  # there is no standard error
        yield
        return
    with tempfile.TemporaryFile() as held, _crashes_shown(screen):
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.flush()
            os.dup2(screen, 2)
            os.close(screen)
            held.seek(0)
            for line in without_noise(held.read()).splitlines(keepends=True):
                os.write(2, line)


def without_noise(text: bytes) -> bytes:
    """Return the text without the lines that TensorFlow writes at every start."""
    return b"".join(line for line in text.splitlines(keepends=True) if not _NOISE.search(line))


@contextlib.contextmanager
def _crashes_shown(screen: int) -> Iterator[None]:
    """Have a crash printed where people see it: what is held back is lost with the process."""
    if faulthandler.is_enabled():  # by the person, into a file of their own
        yield
        return
    faulthandler.enable(screen, all_threads=False)
    try:
        yield
    finally:
        faulthandler.disable()
