"""The source of a step: its functions, and those of the user that they call.

Names are resolved to the objects that they stand for. Nothing is called, and no property is read.
"""

import ast
import builtins
import functools
import inspect
import linecache
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any, final

import keras
import numpy as np

from loopwright.compat.error_messages import is_own
from loopwright.compat.keras_internals import layers_in

Function = ast.FunctionDef | ast.Lambda
GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)


@final
class Unknown:
    """What a name stands for that is known only while the step runs."""


@dataclass(frozen=True)
class Reached:
    """A function of the user that a step may call, and its source."""

    function: FunctionType
    owner: Any
    """The object whose method it is; `Unknown` for a plain function."""
    node: Function

    @property
    def first(self) -> str:
        """The name of the argument that holds `owner`: `self`; empty for a plain function."""
        arguments = [*self.node.args.posonlyargs, *self.node.args.args]
        return arguments[0].arg if arguments and self.owner is not Unknown else ""

    @property
    def file(self) -> str:
        """The file that it is written in."""
        return self.function.__code__.co_filename

    @property
    def variables(self) -> frozenset[str]:
        """The names of its arguments and variables."""
        code = self.function.__code__
        return frozenset([*code.co_varnames, *code.co_cellvars])

    def place(self, node: ast.expr | ast.stmt) -> str:
        """Return file, number and text of the line in which a node begins."""
        text = linecache.getline(self.file, node.lineno).strip()
        return f'file "{Path(self.file).name}", line {node.lineno}: {text}'

    def called(self) -> Iterator[tuple[ast.Call, list[Any]]]:
        """Yield each call in the function, and the objects that it may call."""
        names = self._names()
        for node in ast.walk(self.node):
            match node:
                case ast.Call(func=ast.Attribute(ast.Call(func=ast.Name(id="super")), attr)):
                    kinds = [kind for kind in type(self.owner).__mro__ if attr in vars(kind)]
                    yield node, [_bound(vars(kind)[attr], self.owner) for kind in kinds]
                case ast.Call(func=func):
                    yield node, [_resolved(func, names)]
                case _:
                    pass

    def _names(self) -> dict[str, Any]:
        function: Any = self.function
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        outer = {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}
        own = dict.fromkeys(self.variables, Unknown)
        names = {**vars(builtins), **function.__globals__, **outer, **own, self.first: self.owner}
        for node in ast.walk(self.node):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    names[name] = _resolved(value, names)
                case _:
                    pass
        return names


def reached(step: Any, owner: Any) -> list[Reached]:
    """Return the user's functions that a step may call, itself included.

    `owner` is the task, or the Keras model whose step it is. The source of a step of Loopwright or
    Keras is not followed: it may call whatever `owner` holds.
    """
    found, pending = list[Reached](), [step]
    seen = dict[tuple[int, int], Any]()
    while pending:
        for function, holder in _functions(pending.pop(0)):
            if (id(function), id(holder)) in seen:
                continue
            seen[id(function), id(holder)] = function, holder  # kept, so that ids stay theirs
            if holder is owner and function.__name__.endswith("_step") and not _is_users(function):
                pending += [owner, *vars(owner).values()]
            for node in _nodes_of(function) if _is_users(function) else ():
                here = Reached(function, holder, node)
                found.append(here)
                pending += [callee for _, callees in here.called() for callee in callees]
    return found


def _functions(callee: Any) -> Iterable[tuple[Any, Any]]:
    """Return the Python functions that run when an object is called, each with its owner."""
    callee = callee.func if isinstance(callee, functools.partial) else callee
    callee = inspect.unwrap(getattr(callee, "python_function", callee))
    if isinstance(callee, MethodType):
        return [(inspect.unwrap(callee.__func__), callee.__self__)]
    if isinstance(callee, FunctionType):
        return [(callee, Unknown)]
    if isinstance(callee, type | ModuleType):
        return []
    inside = layers_in(callee) if isinstance(callee, keras.Layer) else [callee]
    pairs = [(getattr(type(each), n, None), each) for each in inside for n in ("call", "__call__")]
    return [(inspect.unwrap(f), each) for f, each in pairs if isinstance(f, FunctionType)]


def _is_users(function: Any) -> bool:
    code = getattr(function, "__code__", None)
    return code is not None and is_own(code.co_filename, code.co_firstlineno)


@functools.lru_cache(maxsize=32)
def _functions_in(text: str) -> list[Function]:
    try:
        return [node for node in ast.walk(ast.parse(text)) if isinstance(node, Function)]
    except (SyntaxError, ValueError):
        return []


def _nodes_of(function: FunctionType) -> list[Function]:
    """Return the source of a function: those that begin in its line; several lambdas may."""
    code = function.__code__
    nodes = _functions_in("".join(linecache.getlines(code.co_filename)))
    here = [node for node in nodes if _begins(node) == code.co_firstlineno]
    return [node for node in here if getattr(node, "name", "<lambda>") == code.co_name]


def _begins(node: Function) -> int:
    """Return the line in which its code object begins: that of its first decorator."""
    decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _resolved(node: ast.expr, names: dict[str, Any]) -> Any:
    match node:
        case ast.Name(id=name):
            return names.get(name, Unknown)
        case ast.Attribute(value=value, attr=attr):
            return _attribute(_resolved(value, names), attr)
        case _:
            return Unknown


def _attribute(base: Any, name: str) -> Any:
    if isinstance(base, (ModuleType, type, *GENERATORS)):
        return getattr(base, name, Unknown)
    found = inspect.getattr_static(base, name, Unknown)
    return found if name in getattr(base, "__dict__", {}) else _bound(found, base)


def _bound(found: Any, base: Any) -> Any:
    """Return what a class holds as an instance of it has it."""
    if isinstance(found, staticmethod | classmethod):
        return (
            found.__func__
            if isinstance(found, staticmethod)
            else MethodType(found.__func__, type(base))
        )
    return MethodType(found, base) if isinstance(found, FunctionType) else found


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
