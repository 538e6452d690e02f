"""TensorFlow's start: what its libraries say of themselves while they load is for nobody."""

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator

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
    switch, TF_CPP_MIN_LOG_LEVEL, is read too late for them.
    """
    try:
        sys.stderr.flush()
        screen = os.dup(2)
    except (OSError, ValueError, AttributeError):  # there is no standard error
        yield
        return
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.flush()
            os.dup2(screen, 2)
            os.close(screen)
            held.seek(0)
            for line in held:
                if not _NOISE.search(line):
                    os.write(2, line)
