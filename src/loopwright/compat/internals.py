"""Internals of Keras and TensorFlow, named where they are used; what if they move.

    @uses("keras.Layer._flatten_layers", if_moved="guards do not see layers inside of layers")
    def layers_in(layer): ...

`make compat` lists them. Imports neither library before it is asked.
"""

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import Any, TypeVar

from loopwright import step_warnings
from loopwright.errors import ConfigurationError, message

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Internal:
    """What one function of `compat/` depends on."""

    used_by: str
    """Module and function: `keras_optimizers.trained_by`."""
    names: tuple[str, ...]
    if_moved: str
    """Empty: there is no fallback."""

    def missing(self) -> list[str]:
        """Return the names that the installed versions do not have."""
        return [name for name in self.names if not is_present(name)]

    def moved(self) -> str:
        """Return what has moved, as the beginning of a sentence."""
        name = next(iter(self.missing() or self.names))
        library = importlib.import_module(name.partition(".")[0])
        title = {"keras": "Keras", "tensorflow": "TensorFlow"}[library.__name__]
        return f"{title} {library.__version__} has moved {name.rpartition('.')[2]}"


INTERNALS: dict[str, Internal] = {}
_warned = set[str]()


def uses(*names: str, if_moved: str = "") -> Callable[[Function], Function]:
    """Note which internals a function uses, and what follows if one of them has moved."""

    def note(function: Function) -> Function:
        key = _key(function)
        INTERNALS[key] = Internal(key, names, if_moved)
        return function

    return note


def internal_of(function: Callable[..., Any]) -> Internal:
    """Return what a function was decorated with."""
    return INTERNALS[_key(function)]


def _key(function: Any) -> str:
    return f"{function.__module__.rpartition('.')[2]}.{function.__name__}"


def warn_moved(function: Callable[..., Any]) -> None:
    """Warn, once in a process, that an internal of this function has moved and what follows."""
    internal = internal_of(function)
    if internal.used_by not in _warned:
        _warned.add(internal.used_by)
        step_warnings.warn_at_call(f"{internal.moved()}: {internal.if_moved}")


def refusal(function: Callable[..., Any]) -> ConfigurationError:
    """Return the error for an internal without which numbers would be wrong."""
    internal = internal_of(function)
    return ConfigurationError(
        message(
            f"{internal.moved()}, and Loopwright cannot train this way without it.",
            expected="a version where Loopwright can reach it",
            received=internal.if_moved,
            do="install a version that this Loopwright was tested with, or train on one device "
            "without gradient accumulation; python -m loopwright.compat lists what has moved",
        )
    )


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
    owner = _resolve(path)
    return owner is not None and (hasattr(owner, attribute) or attribute in set(_mentioned(owner)))


def _resolve(path: str) -> Any:
    """Return the object of a dotted path through modules and classes; None if there is none."""
    first, *rest = path.split(".")
    owner: Any = module(first)
    for depth, part in enumerate(rest, start=2):
        inner = getattr(owner, part, None)
        owner = inner if inner is not None else module(".".join(path.split(".")[:depth]))
        if owner is None:
            return None
    return owner


def _mentioned(owner: Any) -> Iterator[str]:
    """Yield the attribute names in the code of a function, or of a class and its bases."""
    holders = [vars(kind) for kind in getattr(owner, "__mro__", ())] or [{"": owner}]
    for value in (value for holder in holders for value in holder.values()):
        function = getattr(value, "fget", None) or getattr(value, "__wrapped__", value)
        code = getattr(function, "__code__", None)
        if code is not None:
            yield from _names_in(code)


def _names_in(code: CodeType) -> Iterator[str]:
    yield from (*code.co_names, *(name for name in code.co_consts if isinstance(name, str)))
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names_in(inner)
