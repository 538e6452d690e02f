"""The source of a step: the functions of the user that it calls, and what they draw.

Names are resolved to the objects that they stand for. Nothing is called, and no property is read.
"""

import ast
import builtins
import contextlib
import functools
import inspect
import linecache
import pickle
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, FunctionType, MethodType, ModuleType
from typing import Any, final

import keras
import numpy as np

from loopwright.compat.keras_internals import layers_in
from loopwright.compat.lines import is_own, is_users_frame

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


# -- random numbers and clocks: Python reads them once, while the step is traced -------------------

_UNREPEATABLE = frozenset(
    [
        *("time.time", "time.time_ns", "time.perf_counter", "time.perf_counter_ns"),
        *("time.monotonic", "time.monotonic_ns", "time.process_time", "time.thread_time"),
        *("datetime.now", "datetime.utcnow", "datetime.today", "uuid.uuid1", "uuid.uuid4"),
        *("secrets.choice", "secrets.randbelow", "secrets.token_bytes", "secrets.token_hex"),
        "posix.urandom",
    ]
)
"""Functions by module and name that return something else each time."""


@dataclass(frozen=True)
class Draw:
    """A call whose value changes each time, and where it is."""

    name: str
    place: str
    callee: Any
    """A function, or a method of a generator."""

    @property
    def is_clock(self) -> bool:
        """Return whether it reads a clock, not a random number."""
        return self.name.startswith(("time.", "datetime."))

    @property
    def generator(self) -> Any:
        """The generator that it draws from; None if it has no state that can be compared."""
        own = getattr(self.callee, "__self__", None)
        return own if isinstance(own, GENERATORS) else None

    def __str__(self) -> str:
        return f"{self.name} ({self.place})"


def possible_draws(step: Any, owner: Any) -> list[Draw]:
    """Return such calls in the user's functions that a step may call."""
    found = [
        Draw(ast.unparse(call.func), here.place(call), callee)
        for here in reached(step, owner)
        for call, callees in here.called()
        for callee in callees
        if _draws(callee)
    ]
    return list({str(draw): draw for draw in found}.values())


def _draws(callee: Any) -> bool:
    own = getattr(callee, "__self__", None)
    if isinstance(own, GENERATORS):
        return not isinstance(own, random.SystemRandom)
    module = getattr(own, "__module__", None) or getattr(callee, "__module__", None)
    return f"{module}.{getattr(callee, '__name__', '')}" in _UNREPEATABLE


@contextlib.contextmanager
def made(possible: Sequence[Draw]) -> Iterator[list[Draw]]:
    """Collect those of the draws that are made inside.

    A generator shows it by its state, also one that is not written in Python.
    """
    before = [_state(draw) for draw in possible]
    others = [draw.callee for draw in possible if draw.generator is None]
    codes = {getattr(callee, "__code__", None): callee for callee in others}
    called, found = list[Any](), list[Draw]()

    def look(frame: FrameType, event: str, builtin: Any) -> None:
        if event == "c_call" and builtin in others and is_users_frame(frame):
            called.append(builtin)
        elif event == "call" and frame.f_code in codes and is_users_frame(frame.f_back):
            called.append(codes[frame.f_code])

    watches = bool(others) and sys.getprofile() is None  # a profiler of the user goes first
    if watches:
        sys.setprofile(look)
    try:
        yield found
    finally:
        if watches:
            sys.setprofile(None)
    for draw, state in zip(possible, before, strict=True):
        is_made = draw.callee in called if draw.generator is None else _state(draw) != state
        found += [draw] * is_made


def _state(draw: Draw) -> bytes:
    return b"" if draw.generator is None else pickle.dumps(draw.generator)
