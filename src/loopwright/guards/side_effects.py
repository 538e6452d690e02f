"""Python statements of a step that have an effect outside of it: they run once, while tracing."""

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from loopwright.compat.random_calls import Line

_LOGGING = frozenset(["debug", "info", "warning", "error", "exception"])
_SYMBOLS = frozenset(["dtype", "name", "shape"])
"""Attributes of a tensor that are known while tracing."""


@dataclass(frozen=True)
class SideEffect:
    """A statement that runs once, and where it is."""

    kind: str
    """`print`, `append` or `count`."""
    place: str


def side_effects(
    lines: Iterable[Line],
    numbers: Iterable[str] = (),
    methods: Callable[[str, bool], Iterable[Line]] = lambda name, inherited: (),
) -> list[SideEffect]:
    """Return the side effects of the functions that begin in these lines, and of those they call.

    `numbers` are the attributes of `self` that hold a Python number; `methods(name, inherited)`
    tells where a method of `self`, or of `super()`, begins. Functions are followed inside their
    file. Code under `if tf.executing_eagerly():` and inner functions, which TensorFlow may call in
    each step, are left out.
    """
    known, found, seen = frozenset(numbers), list[SideEffect](), set[Line]()
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
                    found.append(SideEffect(kind, f" ({place}: {text})"))
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
