"""The source of a step: the functions of the user that it calls, and their side effects.

Names are resolved to the objects that they stand for. Nothing is called, and no property is read.
"""

import ast
import builtins
import functools
import inspect
import linecache
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any, final

import keras
import numpy as np

from loopwright.compat.keras_internals import layers_in
from loopwright.compat.lines import is_own
from loopwright.guards.guard import report, warning
from loopwright.task.task import Task, owner

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


def reached(step: Any, task: Task) -> list[Reached]:
    """Return the user's functions that a step of a task may call, itself included.

    The source of a step of Loopwright or Keras is not followed: it may call whatever the task, or
    the Keras model whose step it is, holds.
    """
    own = owner(task)
    found, pending = list[Reached](), [step]
    seen = dict[tuple[int, int], Any]()
    while pending:
        for function, holder in _functions(pending.pop(0)):
            if (id(function), id(holder)) in seen:
                continue
            seen[id(function), id(holder)] = function, holder  # kept, so that ids stay theirs
            if holder is own and function.__name__.endswith("_step") and not _is_users(function):
                pending += [own, *vars(own).values()]
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
    if isinstance(found, staticmethod):
        return found.__func__
    if isinstance(found, classmethod):
        return MethodType(found.__func__, type(base))
    return MethodType(found, base) if isinstance(found, FunctionType) else found


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


# -- statements with an effect outside of the step: they run once, while tracing ------------------

_PYTHON_SIDE_EFFECT = warning(
    "python-side-effect",
    "`print`, `append` or a Python counter in a compiled step runs once, while tracing",
)
_LOGGING = frozenset(["debug", "info", "warning", "error", "exception"])
_SYMBOLS = frozenset(["dtype", "name", "shape"])
"""Attributes of a tensor that are known while tracing."""


def check_side_effects(
    title: str, task: Task, step: Any, is_written: Callable[[Any, str], bool]
) -> None:
    """Warn of Python statements in a step that is compiled: they run while it is traced.

    `is_written(holder, name)` returns whether each trace changes an attribute. Functions are
    followed inside the files of the step's methods.
    """
    functions = reached(step, task)
    files = {each.file for each in functions if each.owner is owner(task)}
    for here in functions:
        for node in _statements(here.node.body) if here.file in files else ():
            kind, attribute = _kind(node, here)
            is_number = attribute and isinstance(vars(here.owner).get(attribute), int | float)
            if attribute and not (is_number and is_written(here.owner, attribute)):
                continue
            if kind:
                what, instead = _KINDS[kind]
                finding = _PYTHON_SIDE_EFFECT(
                    f"{title} {what} ({here.place(node)}): Python runs once, while the step is "
                    "traced.",
                    expected="TensorFlow operations for what should happen in each step",
                    received="a Python statement with an effect outside the step",
                    do=f'{instead}; or run Python in each step with plan="eager"',
                )
                report(finding)
                return


_KINDS = {
    "print": ("prints with Python", "use tf.print(...)"),
    "append": (
        "appends a symbolic tensor to a list",
        "return the value by name, and read it from the history or in a callback",
    ),
    "count": ("counts with a Python number", "count with self.step or a tf.Variable"),
}


def _statements(body: ast.expr | Iterable[ast.AST]) -> Iterator[ast.expr | ast.stmt]:
    """Yield every node that runs while the step is traced.

    Code under `if tf.executing_eagerly():` and inner functions, which TensorFlow may call in each
    step, are left out.
    """
    for node in [body] if isinstance(body, ast.expr) else body:
        if isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            continue
        if isinstance(node, ast.If) and "executing_eagerly" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.expr | ast.stmt):
            yield node
        yield from _statements(ast.iter_child_nodes(node))


def _kind(node: ast.AST, here: Reached) -> tuple[str, str]:
    """Return the kind of a side effect, and the attribute it changes; empty if there is none."""
    own = here.variables
    match node:
        case ast.Call(func=ast.Name(id="print")):
            return "print", ""
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr)) if (
            name in ("logging", "logger", "log") and attr in _LOGGING
        ):
            return "print", ""
        case ast.Call(func=ast.Attribute(value=target, attr="append"), args=[value]):
            is_outside = isinstance(target, ast.Attribute) or (
                isinstance(target, ast.Name) and target.id not in own
            )
            is_tensor = _holds_tensor(value, own - {here.first})
            return ("append" if is_outside and is_tensor else ""), ""
        case (
            ast.AugAssign(target=ast.Attribute(value=ast.Name(id=name), attr=attr))
            | ast.Assign(targets=[ast.Attribute(value=ast.Name(id=name), attr=attr)])
        ) if name == here.first:
            return "count", attr
        case ast.AugAssign(target=ast.Name(id=name)) if name not in own:
            return "count", ""
        case _:
            return "", ""


def _holds_tensor(value: ast.expr, own: frozenset[str]) -> bool:
    """Return whether an expression is a variable of the step, or computed from one: a tensor."""
    match value:
        case ast.Attribute(attr=name) if name in _SYMBOLS:
            return False
        case ast.Call(func=ast.Name(id="len" | "type")):
            return False
        case ast.Name(id=name):
            return name in own
        case _:
            inner = [e for e in ast.iter_child_nodes(value) if isinstance(e, ast.expr)]
            return any(_holds_tensor(each, own) for each in inner)
