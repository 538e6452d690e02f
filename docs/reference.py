"""Write the API reference: every public name with its signature and docstring.

The reference is read from the source, not from the imported package: this needs no TensorFlow, and
shows signatures as written.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import loopwright as lw
from loopwright import sinks

_SECTIONS = {
    "training": ["Trainer", "Task", "Supervised", "Mean", "Scheduled", "History", "Rehearsal"],
    "data": ["Arrays", "Shares", "Stream"],
    "plans": ["Plan", "PlanHistory"],
    "runs": [
        *("Every", "KeepLatest", "KeepBest", "Preempted", "Experiment", "first_difference"),
        *("tune", "Tuned", "Trial"),
    ],
    "events": [
        "Event",
        "Sink",
        "Started",
        "RunFacts",
        "Noted",
        "EpochStarted",
        "Trained",
        "GradientsWatched",
        "PlanChosen",
        "BatchSkipped",
        "Validated",
        "EpochEnded",
        "ImagesDrawn",
        "Saved",
        "Finished",
    ],
    "errors": [
        "LoopwrightError",
        "ConfigurationError",
        "DataError",
        "StepError",
        "MissingStepError",
        "NotFiniteError",
        "CheckpointError",
        "WorkerLostError",
        "LoopwrightWarning",
        "StepWarning",
        "RetraceWarning",
    ],
    "testing": ["check_gradients"],
}
_WIDTH = 88

Definition = ast.ClassDef | ast.FunctionDef | ast.Assign


def made(package: Path) -> dict[str, str]:
    """Return the pages by their paths on the site; raise if a public name is on none."""
    listed = [name for names in _SECTIONS.values() for name in names] + lw._MODULES
    if sorted(listed) != sorted(lw.__all__):
        raise ValueError(f"not in the reference: {sorted(set(lw.__all__) ^ set(listed))}")
    texts = {
        f"reference/{section}.md": [f"# {section.capitalize()}", *_named(package, names)]
        for section, names in _SECTIONS.items()
    }
    texts["reference/testing.md"] += _module(package / "testing.py", "lw.testing.")
    texts["reference/events.md"] += [
        part
        for name, file in sinks._HOMES.items()
        for part in _entry(*_found(package / "sinks" / f"{file}.py", name), "lw.sinks.")
    ]
    texts["reference/components.md"] = ["# Components", *_components(package / "components")]
    return {place: "\n\n".join(parts) + "\n" for place, parts in texts.items()}


def anchors() -> dict[str, str]:
    """Return the path and anchor of each public name on the site."""
    return {
        name: f"reference/{section}.md#{name.lower()}"
        for section, names in _SECTIONS.items()
        for name in names
    }


def _named(package: Path, names: list[str]) -> Iterator[str]:
    for name in names:
        file = package / f"{lw._HOME_OF[name].replace('.', '/')}.py"
        yield from _entry(*_found(file, name), "lw.")


def _found(file: Path, name: str) -> tuple[Definition, str]:
    """Return the definition of a name and its source."""
    for node, source in _definitions(file):
        if _name(node) == name:
            return node, source
    raise LookupError(f"{name} is not defined in {file}")


def _definitions(file: Path) -> Iterator[tuple[Definition, str]]:
    source = file.read_text()
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.Assign):
            yield node, ast.get_source_segment(source, node) or ""


def _name(node: Definition) -> str:
    return ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else node.name


def _module(file: Path, prefix: str) -> Iterator[str]:
    """Yield the entries of every public function and class of a module."""
    for node, source in _definitions(file):
        if not isinstance(node, ast.Assign) and not node.name.startswith("_"):
            yield from _entry(node, source, prefix)


def _components(package: Path) -> Iterator[str]:
    exported = {
        alias.name
        for node in ast.parse((package / "__init__.py").read_text()).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for file in sorted(package.glob("[a-z]*.py")):
        is_exported = file.stem in exported
        prefix = f"components.{file.stem}." if is_exported else "components."
        for node, source in _definitions(file):
            if isinstance(node, ast.Assign) or node.name.startswith("_"):
                continue
            if is_exported or node.name in exported:
                yield from _entry(node, source, prefix)


def _entry(node: Definition, source: str, prefix: str) -> Iterator[str]:
    yield f"## {_name(node)}"
    if isinstance(node, ast.Assign):
        yield _fence(source)
        return
    yield _fence(prefix + _signature(node).replace("'", '"'))
    yield _documented(node)
    if isinstance(node, ast.ClassDef):
        yield from _fields(node)
        yield from _methods(node)


def _signature(node: ast.ClassDef | ast.FunctionDef) -> str:
    if isinstance(node, ast.FunctionDef):
        annotation = _unquoted(node.returns)
        returns = f" -> {ast.unparse(annotation)}" if annotation else ""
        return _call(node.name, _arguments(node.args), returns)
    constructors = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
    if constructors:
        return _call(node.name, _arguments(constructors[0].args), "")
    if _is_value(node):
        return _call(node.name, [ast.unparse(field) for field, _ in _annotated(node)], "")
    return node.name


def _call(name: str, arguments: list[str], returns: str) -> str:
    line = f"{name}({', '.join(arguments)}){returns}"
    if len(line) <= _WIDTH:
        return line
    return f"{name}(\n" + "".join(f"    {argument},\n" for argument in arguments) + f"){returns}"


def _arguments(arguments: ast.arguments) -> list[str]:
    """Return each argument as written, without `self`."""
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + arguments.defaults
    given = [_argument(a, d) for a, d in zip(positional, defaults, strict=True)]
    if positional and positional[0].arg in ("self", "cls"):
        del given[0]
    if arguments.vararg:
        given.append("*" + ast.unparse(arguments.vararg))
    elif arguments.kwonlyargs:
        given.append("*")
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    given += [_argument(argument, default) for argument, default in named]
    return given + (["**" + ast.unparse(arguments.kwarg)] if arguments.kwarg else [])


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    written = ast.arg(argument.arg, _unquoted(argument.annotation))
    return ast.unparse(written) + (f" = {ast.unparse(default)}" if default else "")


def _unquoted(annotation: ast.expr | None) -> ast.expr | None:
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return ast.parse(annotation.value, mode="eval").body
    return annotation


def _is_value(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)


def _annotated(node: ast.ClassDef) -> Iterator[tuple[ast.AnnAssign, str]]:
    """Yield the public fields of a class, each with the docstring that follows it."""
    for position, field in enumerate(node.body):
        if isinstance(field, ast.AnnAssign) and not ast.unparse(field.target).startswith("_"):
            yield field, _text_of(node.body[position + 1 : position + 2])


def _text_of(following: list[ast.stmt]) -> str:
    for statement in following:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            return " ".join(str(statement.value.value).split())
    return ""


def _fields(node: ast.ClassDef) -> Iterator[str]:
    documented = [(ast.unparse(field.target), text) for field, text in _annotated(node) if text]
    if documented:
        yield "\n".join(f"- **`{name}`**: {text}" for name, text in documented)


def _methods(node: ast.ClassDef) -> Iterator[str]:
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and not method.name.startswith("_"):
            is_property = "property" in map(ast.unparse, method.decorator_list)
            yield f"### {node.name}.{method.name}"
            annotation = _unquoted(method.returns)
            what = f"{method.name}: {ast.unparse(annotation)}" if annotation else method.name
            yield _fence((what if is_property else _signature(method)).replace("'", '"'))
            yield _documented(method)


def _documented(node: ast.ClassDef | ast.FunctionDef) -> str:
    """Return the docstring with its examples as code blocks."""
    lines: list[str] = []
    is_example = False
    for line in (ast.get_docstring(node) or "").splitlines():
        if line.startswith(">>>") and not is_example:
            lines.append("```pycon")
            is_example = True
        elif is_example and not line:
            lines.append("```")
            is_example = False
        lines.append(line)
    return "\n".join([*lines, "```"] if is_example else lines)


def _fence(code: str) -> str:
    return f"```python\n{code}\n```"
