"""Python statements of a step with an effect outside of it: they run once, while tracing."""

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopwright.compat.error_messages import own_lines
from loopwright.compat.random_calls import Line
from loopwright.errors import message
from loopwright.step_warnings import declare, warn
from loopwright.task.task import Task, owner

_PYTHON_SIDE_EFFECT = declare(
    "python-side-effect",
    "`print`, `append` or a Python counter in a compiled step runs once, while tracing",
)

_LOGGING = frozenset(["debug", "info", "warning", "error", "exception"])
_SYMBOLS = frozenset(["dtype", "name", "shape"])
"""Attributes of a tensor that are known while tracing."""


@dataclass(frozen=True)
class _SideEffect:
    """A statement that runs once, and where it is."""

    kind: str
    """`print`, `append` or `count`."""
    place: str


def check_side_effects(title: str, task: Task, step: Any) -> None:
    """Warn of Python statements in a step that is compiled: they run while it is traced."""
    source = owner(task)
    numbers = [name for name, value in vars(source).items() if isinstance(value, int | float)]

    def methods(name: str, inherited: bool) -> list[Line]:
        found = [vars(kind)[name] for kind in type(source).__mro__ if name in vars(kind)]
        chosen = found[1:] if inherited else found[:1]
        return [line for function in chosen for line in own_lines(function)]

    for effect in _side_effects(own_lines(step), numbers, methods)[:1]:
        what, instead = _KINDS[effect.kind]
        text = message(
            f"{title} {what}{effect.place}: Python runs once, while the step is traced.",
            expected="TensorFlow operations for what should happen in each step",
            received="a Python statement with an effect outside the step",
            do=f'{instead}; or run Python in each step with plan="eager"',
        )
        warn(_PYTHON_SIDE_EFFECT, text)


_KINDS = {
    "print": ("prints with Python", "use tf.print(...)"),
    "append": (
        "appends a symbolic tensor to a list",
        "return the value by name, and read it from the history or in a callback",
    ),
    "count": ("counts with a Python number", "count with self.step or a tf.Variable"),
}


def _side_effects(
    lines: Iterable[Line],
    numbers: Iterable[str],
    methods: Callable[[str, bool], Iterable[Line]],
) -> list[_SideEffect]:
    """Return the side effects of the functions that begin in these lines, and of those they call.

    `numbers` are the attributes of `self` that hold a Python number; `methods(name, inherited)`
    gives the lines where a method of `self`, or of `super()`, begins. Functions are followed
    inside their file. Code under `if tf.executing_eagerly():` and inner functions, which
    TensorFlow may call in each step, are left out.
    """
    known, found, seen = frozenset(numbers), list[_SideEffect](), set[Line]()
    pending = list(lines)
    while pending:
        line = pending.pop(0)
        if line in seen:
            continue
        seen.add(line)
        for function, code, functions in _functions_at(line):
            own = _own_names(function)
            for node in _statements(function.body):
                kind = _kind(node, own, known)
                if kind:
                    place = f'file "{Path(line.file).name}", line {node.lineno}'
                    text = code[node.lineno - 1].strip()
                    found.append(_SideEffect(kind, f" ({place}: {text})"))
                match node:
                    case ast.Call(func=ast.Name(id=name)) if name in functions:
                        pending.append(Line(line.file, functions[name]))
                    case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name)):
                        pending += methods(name, False)
                    case ast.Call(
                        func=ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name)
                    ):
                        pending += methods(name, True)
    return list(dict.fromkeys(found))


def _functions_at(line: Line) -> Iterator[tuple[ast.FunctionDef, list[str], dict[str, int]]]:
    """The functions that begin in a line, the lines of the file, and where its functions begin."""
    try:
        source = Path(line.file).read_text(encoding="utf-8")
        tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError):
        return
    outer = {node.name: _begins(node) for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and _begins(node) == line.number:
            yield node, source.splitlines(), outer


def _begins(function: ast.FunctionDef) -> int:
    """The line in which its code object begins: that of its first decorator."""
    return min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])


def _statements(body: Iterable[ast.AST]) -> Iterator[ast.expr | ast.stmt]:
    """Every node that runs while the step is traced."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            continue
        if isinstance(node, ast.If) and "executing_eagerly" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.expr | ast.stmt):
            yield node
        yield from _statements(ast.iter_child_nodes(node))


def _own_names(function: ast.FunctionDef) -> frozenset[str]:
    """The arguments and variables of a function."""
    arguments = [a.arg for a in ast.walk(function.args) if isinstance(a, ast.arg)]
    stored = [
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]
    shared = [
        name
        for node in ast.walk(function)
        if isinstance(node, ast.Global | ast.Nonlocal)
        for name in node.names
    ]
    return frozenset([*arguments, *stored]) - frozenset(shared)


def _kind(node: ast.AST, own: frozenset[str], numbers: frozenset[str]) -> str:
    match node:
        case ast.Call(func=ast.Name(id="print")):
            return "print"
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr)) if (
            name in ("logging", "logger", "log") and attr in _LOGGING
        ):
            return "print"
        case ast.Call(func=ast.Attribute(value=target, attr="append"), args=[value]):
            is_outside = isinstance(target, ast.Attribute) or (
                isinstance(target, ast.Name) and target.id not in own
            )
            return "append" if is_outside and _holds_tensor(value, own) else ""
        case ast.AugAssign(target=ast.Attribute(value=ast.Name(id="self"), attr=attr)):
            return "count" if attr in numbers else ""
        case ast.AugAssign(target=ast.Name(id=name)) if name not in own:
            return "count"
        case _:
            return ""


def _holds_tensor(value: ast.expr, own: frozenset[str]) -> bool:
    """Whether an expression is a variable of the step, or computed from one: a symbolic tensor."""
    match value:
        case ast.Attribute(attr=name) if name in _SYMBOLS:
            return False
        case ast.Call(func=ast.Name(id="len" | "type")):
            return False
    if isinstance(value, ast.Name):
        return value.id in own and value.id != "self"
    return any(
        _holds_tensor(e, own) for e in ast.iter_child_nodes(value) if isinstance(e, ast.expr)
    )
