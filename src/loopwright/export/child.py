"""What an export does in a new process: convert a SavedModel, or run a file.

`python -m loopwright.export.child convert SCRATCH` reads `SCRATCH/order.json` and `SCRATCH/source`,
and writes `SCRATCH/model.tflite` or `SCRATCH/model.onnx`: a crash of a converter ends its process.
`python -m loopwright.export.child saved_model|keras|litert|onnx PATH SCRATCH` saves the outputs.

LiteRT and ONNX files are run by their own runtimes alone: nothing here imports TensorFlow then.
"""

import functools
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np


def write_arrays(path: Path, named: Mapping[str, Any]) -> None:
    """Write arrays or tensors; each name has a line break, so it is no argument of `np.savez`."""
    arrays: dict[str, Any] = {name: plain(value) for name, value in named.items()}
    np.savez(path, **arrays)


def plain(value: Any) -> np.ndarray:
    """Return an array without objects: strings have a dtype of their own.

    >>> plain(np.array([b"cat", b"eel"], dtype=object)).dtype
    dtype('S3')
    """
    array = np.asarray(value)
    if array.dtype != object:
        return array
    texts = [text if isinstance(text, bytes) else str(text).encode() for text in array.ravel()]
    return np.asarray(texts or [b""], "S")[: array.size].reshape(array.shape)


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a file."""
    with np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


OPSET = 18
"""The newest that tf2onnx 1.17 writes."""


def convert(scratch: Path) -> None:
    """Write the file that the order asks for."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    order = json.loads((scratch / "order.json").read_text())
    write = _write_onnx if order["format"] == "onnx" else _write_litert
    write(scratch, order)


def _write_litert(scratch: Path, order: dict[str, Any]) -> None:
    import tensorflow as tf

    converter = tf.lite.TFLiteConverter.from_saved_model(
        os.fspath(scratch / "source"), signature_keys=order["signatures"]
    )
    if order["quantize"]:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if order["quantize"] == "float16":
        converter.target_spec.supported_types = [tf.float16]
    if order["quantize"] == "int8":
        converter.representative_dataset = lambda: _calibration(scratch, order["batch_size"] or 1)
    (scratch / "model.tflite").write_bytes(converter.convert())


def _calibration(scratch: Path, size: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the examples in batches of `size`, with the signature that takes them."""
    given: dict[str, dict[str, Any]] = {}
    for key, array in read_arrays(scratch / "calibration.npz").items():
        signature, _, name = key.partition("\n")
        given.setdefault(signature, {})[name] = array
    for signature, inputs in given.items():
        count = min(len(array) for array in inputs.values())
        for first in range(0, count - size + 1, size):
            yield signature, {name: a[first : first + size] for name, a in inputs.items()}


def _write_onnx(scratch: Path, order: dict[str, Any]) -> None:
    import tf2onnx.convert

    (signature,) = order["signatures"]
    options = {
        "--saved-model": os.fspath(scratch / "source"),
        "--signature_def": signature,
        "--tag": "serve",
        "--opset": str(OPSET),
        "--output": os.fspath(scratch / "model.onnx"),
    }
    sys.argv = ["tf2onnx.convert", *(word for pair in options.items() for word in pair)]
    tf2onnx.convert.main()


Run = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Inputs by name -> outputs by name."""


def main(kind: str, path: str, scratch: Path) -> None:
    """Read the batches in `inputs`; write their outputs."""
    load = {"litert": litert_runs, "onnx": onnx_runs}.get(kind)
    if load is None:
        _run_in_tensorflow(kind, path, scratch)
    else:
        _run_in(load, path, scratch)


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
    for key, array in read_arrays(scratch / "inputs.npz").items():
        call, _, name = key.rpartition("\n")
        given.setdefault(call, {})[name] = array
    found, runs = dict[str, Any](), load(path)
    for call, inputs in given.items():
        run = runs(call.partition("\n")[0])
        for name, array in run(inputs).items():
            found[f"{call}\n{name}"] = array.copy()  # the next run writes into the same memory
    write_arrays(scratch / "outputs.npz", found)


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
    if sys.argv[1] == "convert":
        convert(Path(sys.argv[2]))
    else:
        main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
