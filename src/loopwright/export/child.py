"""Runs an exported model by its own runtime in a new process, and saves its outputs.

`python -m loopwright.export.child saved_model|keras|litert|onnx PATH SCRATCH`

LiteRT and ONNX files are run by their own runtimes alone: nothing here imports TensorFlow then.
"""

import functools
import importlib.metadata
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from loopwright.export import arrays

Run = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Inputs by name -> outputs by name."""
RUNTIME = "runtime.txt"
"""The file in which a child says what ran the model."""


def main(kind: str, path: str, scratch: Path) -> None:
    """Read the batches in `inputs`; write their outputs, and the runtime."""
    load = {"litert": litert_runs, "onnx": onnx_runs}.get(kind)
    if load is None:
        _run_in_tensorflow(kind, path, scratch)
    else:
        _run_in(load, path, scratch)
    runtime = {"litert": "ai-edge-litert", "onnx": "onnxruntime"}.get(kind, "tensorflow")
    (scratch / RUNTIME).write_text(f"{runtime} {importlib.metadata.version(runtime)}")


def litert_runs(path: str) -> Callable[[str], Run]:
    """Return a function that returns how to run a signature of a LiteRT file."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=path)

    def runs(signature: str) -> Run:
        runner = interpreter.get_signature_runner(signature)
        return lambda inputs: runner(**inputs)

    return runs


def onnx_runs(path: str) -> Callable[[str], Run]:
    """Return a function that returns how to run the graph of an ONNX file, its only signature."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(inputs: Mapping[str, Any]) -> dict[str, Any]:
        given = {name: _with_texts(array) for name, array in inputs.items()}
        return dict(zip(names, session.run(None, given), strict=True))

    return lambda signature: run


def _with_texts(array: Any) -> Any:
    """Return an array as ONNX Runtime takes it: strings are objects of Python."""
    if array.dtype.kind != "S":
        return array
    return np.char.decode(array, "utf-8").astype(object)


def _run_in(load: Callable[[str], Callable[[str], Run]], path: str, scratch: Path) -> None:
    given: dict[str, dict[str, Any]] = {}
    for key, array in arrays.read(scratch / "inputs.npz").items():
        call, _, name = key.rpartition("\n")
        given.setdefault(call, {})[name] = array
    found, runs = dict[str, Any](), load(path)
    for call, inputs in given.items():
        run = runs(call.partition("\n")[0])
        for name, array in run(inputs).items():
            found[f"{call}\n{name}"] = array.copy()  # the next run writes into the same memory
    arrays.write(scratch / "outputs.npz", found)


def _run_in_tensorflow(kind: str, path: str, scratch: Path) -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import keras
    import tensorflow as tf

    from loopwright.checkpoints import tensors
    from loopwright.export import outputs

    given: dict[str, list[Any]] = {}
    for key, tensor in sorted(tensors.read(scratch / "inputs").items()):
        given.setdefault(key.rpartition("\n")[0], []).append(tensor)
    loaded: Any = (
        tf.saved_model.load(path)
        if kind == "saved_model"
        else keras.models.load_model(path, safe_mode=True, compile=False)
    )
    found = dict[str, Any]()
    for call, leaves in given.items():
        if kind == "saved_model":
            function = getattr(loaded, call.partition("\n")[0])
            inputs = tf.nest.pack_sequence_as(function.input_signature[0], leaves)
        else:
            function = functools.partial(loaded, training=False)
            structure = loaded.input if len(leaves) > 1 else leaves[0]
            inputs = tf.nest.pack_sequence_as(structure, leaves)
        results = function(inputs)
        found |= {f"{call}\n{key}": leaf for key, leaf in outputs.named(results).items()}
    tensors.write(scratch / "outputs", found)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
