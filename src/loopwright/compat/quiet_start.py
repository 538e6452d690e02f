"""Import TensorFlow without the lines that its libraries print (decision 0017)."""

import contextlib
import faulthandler
import importlib.abc
import importlib.util
import os
import re
import sys
import types
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from typing import Any, final

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
_LEVEL = "TF_CPP_MIN_LOG_LEVEL"


def install() -> None:
    """Make the import of TensorFlow quiet, wherever a program imports it from now on.

    TF_CPP_MIN_LOG_LEVEL=0 asks for every line. Where TensorFlow is imported already, only the
    lines about devices are still to come.
    """
    if os.environ.get(_LEVEL) == "0":
        return
    if "tensorflow" in sys.modules:
        with quiet_start():
            _look_for_devices(sys.modules["tensorflow"])
    elif not any(isinstance(finder, _QuietTensorFlow) for finder in sys.meta_path):
        sys.meta_path.insert(0, _QuietTensorFlow())


@final
class _QuietTensorFlow(importlib.abc.MetaPathFinder):
    """Finds TensorFlow once, with a quiet loader."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of TensorFlow with a quiet loader; None for other modules."""
        if fullname != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _QuietLoader(spec.loader)
        return spec


@final
class _QuietLoader(importlib.abc.Loader):
    """Loads a module as its own loader does, under `quiet_start`."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> types.ModuleType | None:
        """Create the module with its own loader."""
        return self._loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        """Run the module, give its own loader back to it, and look for devices."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        # Warnings and errors, but no notices. It has no effect on the lines of the start itself.
        os.environ.setdefault(_LEVEL, "1")
        with quiet_start():
            self._loader.exec_module(module)
            _look_for_devices(module)


def _look_for_devices(tensorflow: Any) -> None:
    """Have TensorFlow look for GPUs now if there are none: it only complains the first time.

    With a GPU, settings like CUDA_VISIBLE_DEVICES may still have to be made.
    """
    if not _has_gpu_driver():
        with contextlib.suppress(Exception):  # raised again when TensorFlow is used
            tensorflow.config.list_physical_devices()


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
    import tempfile  # not with `import loopwright`, which is light

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
