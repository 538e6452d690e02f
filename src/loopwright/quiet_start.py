"""Leave out what TensorFlow prints at its start, in processes of our own (decision 0017)."""

import contextlib
import faulthandler
import os
import re
import sys
import tempfile
from collections.abc import Iterator

UNQUIET = "LOOPWRIGHT_UNQUIET_START"
"""The environment variable that disables this."""

_NOISE = (
    rb"All log messages before absl::InitializeLog"
    rb"|oneDNN custom operations are on"
    rb"|This TensorFlow binary is optimized to use available CPU instructions"
    rb"|To enable the following instructions"
    rb"|Unable to register cu\w+ factory"
    rb"|TF-TRT Warning: Could not find TensorRT"
    rb"|Created TensorFlow Lite XNNPACK delegate"
)
_NOISE_WITHOUT_GPU = (
    rb"|Could not find cuda drivers"
    rb"|failed call to cuInit"
    rb"|kernel driver does not appear to be running"
)
_GPU_DRIVERS = ("/dev/nvidiactl", "/proc/driver/nvidia", "/dev/dxg")


def _has_gpu_driver() -> bool:
    return any(os.path.exists(path) for path in _GPU_DRIVERS)


@contextlib.contextmanager
def quiet_start(*, drops_all: bool = False) -> Iterator[None]:
    """Collect standard error, and print all but known noise afterwards; or nothing of it.

    It works on the file descriptor: these lines come from C++ libraries. Their own
    switch, TF_CPP_MIN_LOG_LEVEL, is read too late for them. If such a library crashes the process,
    the signal and the Python lines that led there are printed, but not what is held back: a parent
    that reads the standard error of its child sets `UNQUIET` in the child's environment. With
    a GPU, lines about its driver are printed.
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
            text = b"" if drops_all else without_noise(held.read())
            for line in text.splitlines(keepends=True):
                os.write(2, line)


def without_noise(text: bytes) -> bytes:
    """Return the text without the lines that TensorFlow writes at every start."""
    noise = re.compile(_NOISE if _has_gpu_driver() else _NOISE + _NOISE_WITHOUT_GPU)
    return b"".join(line for line in text.splitlines(keepends=True) if not noise.search(line))


@contextlib.contextmanager
def _crashes_shown(screen: int) -> Iterator[None]:
    """Print a crash to the screen: what is collected is lost with the process."""
    if faulthandler.is_enabled():  # by the user, perhaps into a file
        yield
        return
    faulthandler.enable(screen, all_threads=False)
    try:
        yield
    finally:
        faulthandler.disable()
