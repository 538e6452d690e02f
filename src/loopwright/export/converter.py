"""Converts a SavedModel in a new process, which a crash of the converter cannot take along.

`python -m loopwright.export.converter SCRATCH` reads `SCRATCH/order.json` and `SCRATCH/source`, and
writes `SCRATCH/model.tflite` or `SCRATCH/model.onnx`.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loopwright.export import arrays

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
    for key, array in arrays.read(scratch / "calibration.npz").items():
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


if __name__ == "__main__":
    convert(Path(sys.argv[1]))
