"""Internals of Keras and TensorFlow, named where they are used; what if they move.

    @uses("keras.Layer._flatten_layers", if_moved="guards do not see layers inside of layers")
    def layers_in(layer): ...

`make compat` lists them. Imports neither library before it is asked.
"""

import importlib
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Internal:
    """What one function of `compat/` depends on."""

    names: tuple[str, ...]
    if_moved: str
    """Empty: there is no fallback."""


INTERNALS: dict[str, Internal] = {}
"""By module and function: `keras_optimizers.trained_by`."""


def uses(*names: str, if_moved: str = "") -> Callable[[Function], Function]:
    """Note which internals a function uses, and what follows if one of them has moved."""

    def note(function: Function) -> Function:
        key = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
        INTERNALS[key] = Internal(names, if_moved)
        return function

    return note


def module(name: str) -> ModuleType | None:
    """Return a private module of TensorFlow or Keras; None if it has moved.

    >>> module("tensorflow.python.no_such_module")
    """
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def is_present(name: str) -> bool:
    """Return whether a dotted name exists; an instance's attribute, if its class mentions it.

    >>> is_present("pathlib.Path.read_text"), is_present("pathlib.Path.read_all")
    (True, False)
    """
    path, _, attribute = name.rpartition(".")
    owner = find(path)
    if owner is None or hasattr(owner, attribute):
        return owner is not None
    written = [kind for kind in getattr(owner, "__mro__", [owner]) if kind is not object]
    return any(re.search(rf"\b{attribute}\b", inspect.getsource(kind)) for kind in written)


def find(path: str) -> Any:
    """Return the object of a dotted path through modules and classes; None if there is none."""
    owner, _, name = path.rpartition(".")
    found = getattr(find(owner), name, None) if owner else None
    return module(path) if found is None else found
