"""Loads an exported model in a new process and saves its outputs for comparison.

`python -m loopwright.export.child saved_model|keras PATH SCRATCH`
"""

import os
import sys
from pathlib import Path
from typing import Any


def save_outputs(kind: str, path: str, scratch: Path) -> None:
    """Read the tensors in `inputs`, and write those of `outputs`, by signature and name."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import keras
    import tensorflow as tf

    from loopwright.checkpoints import tensors
    from loopwright.export import outputs

    given: dict[str, list[Any]] = {}
    for key, tensor in sorted(tensors.read(scratch / "inputs").items()):
        given.setdefault(key.partition("\n")[0], []).append(tensor)
    found: dict[str, Any] = {}
    loaded: Any = (
        tf.saved_model.load(path)
        if kind == "saved_model"
        else keras.models.load_model(path, safe_mode=True, compile=False)
    )
    for name, leaves in given.items():
        if kind == "saved_model":
            function = getattr(loaded, name)
            structure = function.input_signature[0]
            results = function(tf.nest.pack_sequence_as(structure, leaves))
        else:
            structure = loaded.input if len(leaves) > 1 else leaves[0]
            results = loaded(tf.nest.pack_sequence_as(structure, leaves), training=False)
        found |= {f"{name}\n{key}": leaf for key, leaf in outputs.named(results).items()}
    tensors.write(scratch / "outputs", found)


if __name__ == "__main__":
    save_outputs(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
