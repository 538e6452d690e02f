"""A person's own functions, experiments and sinks: in modules of the project directory."""

import contextlib
import importlib
import importlib.machinery
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from loopwright.errors import ConfigurationError, message


def function(named: str, project: Path) -> Callable[..., Any]:
    """The function behind `module:function`; the module lies in the project directory.

    Nothing is imported from anywhere else, whatever the name is.
    """
    module_name, _, name = named.partition(":")
    project = project.resolve()
    top = module_name.partition(".")[0]
    spec = importlib.machinery.PathFinder.find_spec(top, [str(project)])
    if spec is None:
        raise _missing(named, project, f"{project} has no module {top!r}")
    sys.path.insert(0, str(project))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise
        raise _missing(named, project, str(error)) from None
    finally:
        sys.path.remove(str(project))
    # The name may belong to a module that was imported long before, from elsewhere.
    if not Path(module.__file__ or "/").resolve().is_relative_to(project):
        raise _missing(named, project, f"{module_name!r} is the name of another module")
    found = getattr(module, name, None)
    if not callable(found):
        raise _missing(named, project, f"{module_name} has no function {name!r}")
    home = _imported_from(found)
    if home is not None and not _is_inside(home, project):
        raise _missing(named, project, f"{name!r} is imported there from {home}")
    return found


@contextlib.contextmanager
def importable(project: Path) -> Iterator[None]:
    """Lets functions of the project import its other modules when they are called.

    Last on the import path, a module of the project hides no other.
    """
    place = str(project.resolve())
    sys.path.append(place)
    try:
        yield
    finally:
        sys.path.reverse()
        sys.path.remove(place)
        sys.path.reverse()


def _imported_from(found: Any) -> str | None:
    """The module that defines a function or class; None for what a person has made of them.

    A module of the project may contain `from os import system`: that is not a task, loss or sink.
    """
    if not inspect.isroutine(found) and not isinstance(found, type):
        return None
    home = str(found.__module__)
    # The inner function of somebody's decorator has another home, and is not found there.
    is_there = getattr(sys.modules.get(home), found.__name__, None) is found
    return home if is_there else None


def _is_inside(module_name: str, project: Path) -> bool:
    top = module_name.partition(".")[0]
    # An environment may lie in the project directory, but its packages are not found from there.
    if importlib.machinery.PathFinder.find_spec(top, [str(project)]) is None:
        return False
    file = getattr(sys.modules.get(module_name), "__file__", None)
    return file is not None and Path(file).resolve().is_relative_to(project)


def _missing(named: str, project: Path, received: str) -> ConfigurationError:
    return ConfigurationError(
        message(
            f"{named} was not found.",
            expected=f"MODULE:FUNCTION, the module a file in {project}",
            received=received,
            do="start from the directory of your project, and check both names",
        )
    )
