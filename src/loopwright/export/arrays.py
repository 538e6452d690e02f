"""Arrays in files that a process without TensorFlow reads: `.npz`, without pickle."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


def write(path: Path, named: Mapping[str, Any]) -> None:
    """Write arrays or tensors under any names; `np.savez` would not take the name `file`."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, value in named.items():
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, plain(value), allow_pickle=False)


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


def read(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a file."""
    with np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}
