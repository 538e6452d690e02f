"""Which internals of Keras and TensorFlow are installed, and a warning if one is gone.

Imports neither library before it is asked.
"""

import importlib
from collections.abc import Iterator
from types import CodeType, ModuleType
from typing import Any

from loopwright import step_warnings
from loopwright.compat.internal import Internal
from loopwright.compat.internals import INTERNALS
from loopwright.errors import ConfigurationError, message


def missing(internal: Internal) -> list[str]:
    """Return the names that the installed versions do not have."""
    return [name for name in internal.names if not is_present(name)]


def is_present(name: str) -> bool:
    """Return whether a dotted name exists; an instance's attribute, if its class mentions it.

    >>> is_present("pathlib.Path.read_text"), is_present("pathlib.Path.read_all")
    (True, False)
    """
    path, _, attribute = name.rpartition(".")
    owner = _resolved(path)
    return owner is not None and (hasattr(owner, attribute) or attribute in set(_mentioned(owner)))


def module(name: str) -> ModuleType | None:
    """Return a private module of TensorFlow or Keras; None if it has moved.

    >>> module("tensorflow.python.no_such_module")
    """
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def warn_moved(used_by: str) -> None:
    """Warn, once in a process, that an internal has moved and what follows."""
    if used_by not in _warned:
        _warned.add(used_by)
        internal = BY_FUNCTION[used_by]
        step_warnings.warn_at_call(f"{_moved(internal)}: {internal.if_moved}")


def refusal(used_by: str) -> ConfigurationError:
    """Return the error for an internal without which numbers would be wrong."""
    internal = BY_FUNCTION[used_by]
    return ConfigurationError(
        message(
            f"{_moved(internal)}, and Loopwright cannot train this way without it.",
            expected=f"a version where Loopwright can reach it, to {internal.why}",
            received=internal.if_moved,
            do="install a version that this Loopwright was tested with, or train on one device "
            "without gradient accumulation; python -m loopwright.compat lists what has moved",
        )
    )


def _moved(internal: Internal) -> str:
    name = next(iter(missing(internal) or internal.names))
    library = importlib.import_module(name.partition(".")[0])
    title = {"keras": "Keras", "tensorflow": "TensorFlow"}[library.__name__]
    return f"{title} {library.__version__} has moved {name.rpartition('.')[2]}"


def _resolved(path: str) -> Any:
    """Return the object of a dotted path through modules and classes; None if there is none."""
    first, *rest = path.split(".")
    found: Any = module(first)
    for depth, part in enumerate(rest, start=2):
        inner = getattr(found, part, None)
        found = inner if inner is not None else module(".".join(path.split(".")[:depth]))
        if found is None:
            return None
    return found


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


_warned = set[str]()

BY_FUNCTION = {internal.used_by: internal for internal in INTERNALS}
