"""A command line of TensorFlow that runs an exported SavedModel on examples saved with it."""

import os
import re
import shlex
from pathlib import Path

import numpy as np
import tensorflow as tf

from loopwright.export import arrays
from loopwright.export.signatures import Signature

_FOLDER = "assets.extra"
"""Where a SavedModel may have files that are no part of the model."""
_FILE = "examples.npz"


def save_examples(one: Signature, saved_model: Path, published: str) -> bool:
    """Write the examples of a signature into a SavedModel; return whether a command can use them.

    `saved_model_cli` separates inputs by `;`, and finds its file before `[` and after `=`.
    """
    leaves = one.named(one.examples)
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
    """Return a line for a shell; its examples are those that were compared."""
    file = os.path.join(path, _FOLDER, _FILE)
    inputs = ";".join(f"{name}={file}[{name}]" for name in one.input_names)
    words = ["saved_model_cli", "run", "--dir", path, "--tag_set", "serve"]
    return shlex.join([*words, "--signature_def", one.name, "--inputs", inputs])
