"""Calls in a user's source whose value changes each time: random numbers and the clock."""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_MODULES = re.compile(
    r"^(?:np|numpy)\.random\.\w+|^random\.\w+|^(?:time|datetime|uuid|secrets)\.[\w.]+|^os\.urandom"
)
_GENERATOR = re.compile(r"(?:^|\.)_*\w*(?:rng|random_state|generator)\w*\.(\w+)$", re.IGNORECASE)
_METHODS = frozenset(
    [
        *("beta", "binomial", "choice", "exponential", "gamma", "integers", "normal"),
        *("permutation", "permuted", "poisson", "rand", "randint", "randn", "random"),
        *("random_sample", "sample", "shuffle", "standard_normal", "uniform"),
    ]
)


@dataclass(frozen=True)
class Line:
    """A line of a user's file."""

    file: str
    number: int


@dataclass(frozen=True)
class DrawingCall:
    """A call whose value changes each time, and where it is."""

    name: str
    place: str

    def __str__(self) -> str:
        return f"{self.name} ({self.place})"


def drawing_calls(lines: Iterable[Line]) -> list[DrawingCall]:
    """Return such calls in the functions around these lines, and in functions they call by name.

    Only functions of the same file are followed: the names are for a message, not for a proof.
    """
    by_file: dict[str, set[int]] = {}
    for line in lines:
        by_file.setdefault(line.file, set()).add(line.number)
    found = [call for file, numbers in by_file.items() for call in _in_file(file, numbers)]
    return list(dict.fromkeys(found))


def _in_file(file: str, numbers: set[int]) -> Iterator[DrawingCall]:
    try:
        source = Path(file).read_text(encoding="utf-8")
        tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError):
        return
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    pending = [f for f in functions if any(f.lineno <= n <= (f.end_lineno or 0) for n in numbers)]
    pending = pending or [f for f in functions if f.lineno in numbers]
    seen: set[int] = set()
    code = source.splitlines()
    while pending:
        function = pending.pop(0)
        if id(function) in seen:
            continue
        seen.add(id(function))
        for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
            name = _dotted(call.func)
            if _draws(name):
                text = code[call.lineno - 1].strip()
                yield DrawingCall(name, f'file "{Path(file).name}", line {call.lineno}: {text}')
            pending += [f for f in functions if f.name == name.rpartition(".")[2]]


def _dotted(node: ast.expr) -> str:
    """Return the dotted name of a called expression, `np.random.normal`; empty if it has none."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return ""


def _draws(name: str) -> bool:
    """Return whether the value of a call of this name changes each time.

    >>> [_draws(name) for name in ("np.random.normal", "self.rng.choice", "tf.random.normal")]
    [True, True, False]
    """
    method = _GENERATOR.search(name)
    is_keras = name.startswith(("keras.", "tf.", "tensorflow."))
    return bool(_MODULES.search(name)) or (
        not is_keras and method is not None and method[1] in _METHODS
    )
