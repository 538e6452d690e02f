"""What TensorFlow read when this process imported it: oneDNN, and what else is fixed then."""

import ctypes
import functools
import os
from pathlib import Path

import tensorflow as tf

from loopwright.plans import launch, settings
from loopwright.plans.processor import cpu_flags
from loopwright.plans.settings import Settings

_IS_ONEDNN_ON = "_ZN10tensorflow12IsMKLEnabledEv"
_LIBRARIES = ("libtensorflow_framework.so.2", "libtensorflow_framework.2.dylib")


def current() -> Settings:
    """Return the settings of this process."""
    return settings.from_environment(os.environ, onednn=onednn_is_on())


@functools.cache
def onednn_is_on() -> bool:
    """Return whether TensorFlow runs oneDNN kernels in this process.

    TensorFlow decides once, and has no public function that says how. Without its own answer, the
    variable and the processor decide, as in TensorFlow's source.
    """
    for name in _LIBRARIES:
        try:
            library = ctypes.CDLL(str(Path(tf.sysconfig.get_lib()) / name))
            answer = getattr(library, _IS_ONEDNN_ON)
        except (OSError, AttributeError):
            continue
        answer.restype = ctypes.c_bool
        return bool(answer())
    asked = settings.onednn_asked(os.environ)
    return settings.onednn_by_default(cpu_flags()) if asked is None else asked


def one_thread_may_help() -> bool:
    """Return whether TensorFlow splits operations among cores, and the user has not asked it to."""
    has_gpu = bool(tf.config.list_physical_devices("GPU"))
    is_open = settings.THREADS["intra_op_threads"] not in settings.set_in(os.environ)
    is_open = is_open and not tf.config.threading.get_intra_op_parallelism_threads()
    return is_open and not has_gpu and (os.cpu_count() or 1) > 1


def onednn_may_help() -> bool:
    """Return whether oneDNN is off, but not because the user switched it off.

    TensorFlow leaves it off on some processors, and Loopwright where a run has recorded so.
    """
    has_gpu = bool(tf.config.list_physical_devices("GPU"))
    is_open = settings.onednn_asked(launch.unmarked(os.environ)) is None
    return is_open and not has_gpu and "avx2" in cpu_flags() and not onednn_is_on()
