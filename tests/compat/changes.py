"""What is changed in Keras and TensorFlow while a scope of Loopwright's lasts."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import loopwright

HERE = str(Path(loopwright.__file__).parent)


def ours() -> set[str]:
    """Every function of Keras and TensorFlow that is now one of Loopwright's."""
    libraries = ("keras.", "tensorflow.")
    modules = {n: m for n, m in sys.modules.items() if n.startswith(libraries) and m is not None}
    return {name for module in modules.values() for name in _ours_in(vars(module), module.__name__)}


def _ours_in(names: Any, path: str) -> Iterator[str]:
    for name, value in list(names.items()):
        if isinstance(value, type) and value.__module__ == path:  # not wherever it is imported
            yield from _ours_in(vars(value), f"{path}.{name}")
        function = value.fget if isinstance(value, property) else value
        if isinstance(function, FunctionType) and function.__code__.co_filename.startswith(HERE):
            yield f"{path}.{name}"
