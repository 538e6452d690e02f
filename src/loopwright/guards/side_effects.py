"""Python statements of a step with an effect outside of it: they run once, while tracing."""

import ast
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from loopwright.errors import message
from loopwright.guards.source import Reached, reached
from loopwright.step_warnings import declare, warn
from loopwright.task.task import Task, owner

_PYTHON_SIDE_EFFECT = declare(
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
    functions = reached(step, owner(task))
    files = {each.file for each in functions if each.owner is owner(task)}
    for here in functions:
        for node in _statements(here.node.body) if here.file in files else ():
            kind, attribute = _kind(node, here)
            is_number = attribute and isinstance(vars(here.owner).get(attribute), int | float)
            if attribute and not (is_number and is_written(here.owner, attribute)):
                continue
            if kind:
                what, instead = _KINDS[kind]
                text = message(
                    f"{title} {what} ({here.place(node)}): Python runs once, while the step is "
                    "traced.",
                    expected="TensorFlow operations for what should happen in each step",
                    received="a Python statement with an effect outside the step",
                    do=f'{instead}; or run Python in each step with plan="eager"',
                )
                warn(_PYTHON_SIDE_EFFECT, text)
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
