"""Loads an exported model in a process of its own, and writes down its answers.

`python -m loopwright.exported saved_model|keras PATH SCRATCH`
"""

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np


def answer(kind: str, path: str, scratch: Path) -> None:
    """Reads `inputs.npz`, writes `outputs.npz`: arrays by signature and place."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import keras
    import tensorflow as tf

    given: dict[str, list[Any]] = {}
    with np.load(scratch / "inputs.npz") as inputs:
        for key in inputs:
            name = key.rpartition(" ")[0]
            given.setdefault(name, []).append(inputs[key])
    outputs: dict[str, Any] = {}
    loaded: Any = (
        tf.saved_model.load(path)
        if kind == "saved_model"
        else keras.models.load_model(path, safe_mode=True, compile=False)
    )
    for name, leaves in given.items():
        tensors = [tf.constant(leaf) for leaf in leaves]
        if kind == "saved_model":
            function = getattr(loaded, name)
            structure = function.input_signature[0]
            answers = function(tf.nest.pack_sequence_as(structure, tensors))
        else:
            structure = loaded.input if len(tensors) > 1 else tensors[0]
            answers = loaded(tf.nest.pack_sequence_as(structure, tensors), training=False)
        for place, leaf in enumerate(tf.nest.flatten(answers)):
            outputs[f"{name} {place}"] = np.asarray(leaf)
    np.savez(scratch / "outputs.npz", **outputs)


if __name__ == "__main__":
    answer(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
