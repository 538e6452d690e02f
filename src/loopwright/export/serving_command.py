"""A command line of TensorFlow that runs an exported SavedModel on numbers saved with it."""

import os
import re
import shlex
from pathlib import Path

import numpy as np
import tensorflow as tf

from loopwright.export import arrays
from loopwright.export.signatures import Signature, drawn_like

_FOLDER = "assets.extra"
"""Where a SavedModel may have files that are no part of the model."""
_FILE = "example.npz"


def save_example(one: Signature, saved_model: Path, published: str) -> bool:
    """Write an input of a signature into a SavedModel; return whether a command can use it.

    It is drawn from the shapes: examples of a run must not travel with its model. The inputs of
    `saved_model_cli` are separated by `;`; it finds a file before `[` and after `=`.
    """
    leaves = one.named(drawn_like(one.specs, count=1))
    is_plain = all(isinstance(x, tf.Tensor) and _is_of_numpy(x.dtype) for x in leaves.values())
    if not is_plain or re.search(r"[;=\[\]]", published):
        return False
    folder = saved_model / _FOLDER
    folder.mkdir()
    arrays.write(folder / _FILE, leaves)
    return True


def _is_of_numpy(dtype: tf.DType) -> bool:
    return dtype == tf.string or np.dtype(dtype.as_numpy_dtype).kind in "biufc"


def saved_model_command(path: str, one: Signature) -> str:
    """Return a line for a shell; its input is the one that was saved."""
    file = os.path.join(path, _FOLDER, _FILE)
    inputs = ";".join(f"{name}={file}[{name}]" for name in one.input_names)
    words = ["saved_model_cli", "run", "--dir", path, "--tag_set", "serve"]
    return shlex.join([*words, "--signature_def", one.name, "--inputs", inputs])
