"""Internals are named where they are used, are installed, and are listed by `make compat`."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import loopwright
from loopwright.compat import __main__ as printed
from loopwright.compat import internals
from loopwright.compat.internals import INTERNALS

PACKAGE = Path(loopwright.__file__).parent
ROOMS = [PACKAGE / "compat", PACKAGE / "rewrites"]
NOT_FOREIGN = {("os", "_exit"), ("sys", "_getframe"), ("trainer", "_parts"), ("trainer", "_run")}
NAMED_TUPLE = ("_fields", "_replace")


def syntax(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name not in NAMED_TUPLE


def own_names(tree: ast.Module) -> set[str]:
    """Private names that a module gives to its own objects."""
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            own |= {node.attr} if node.value.id in ("self", "cls") else set()
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            own.add(node.target.id)
    return own


def foreign_names(tree: ast.AST, own: set[str]) -> Iterator[str]:
    """Private names on objects of others: `x._name`, `getattr(x, "_name")`, private modules."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=holder), attr=name) if (
                holder in ("self", "cls") or (holder, name) in NOT_FOREIGN
            ):
                pass
            case ast.Attribute(attr="__internal__"):
                yield "__internal__"
            case ast.Attribute(attr=name) if is_private(name) and name not in own:
                yield name
            case ast.Call(
                func=ast.Name(id="getattr" | "hasattr" | "setattr" | "delattr"),
                args=[_, ast.Constant(value=str(name)), *_],
            ) if is_private(name) and name not in own:
                yield name
            case ast.ImportFrom(module=str(name)) if name.startswith(
                ("keras.src", "tensorflow.python")
            ):
                yield name
            case ast.Import(names=names):
                modules = (alias.name for alias in names)
                yield from (m for m in modules if m.startswith(("keras.src", "tensorflow.python")))


def matched_messages(tree: ast.AST) -> Iterator[str]:
    """Regular expressions and literals that are looked for in the text of an error."""

    def is_text(node: ast.AST) -> bool:
        return isinstance(node, ast.Call) and ast.unparse(node).startswith(("str(error", "str(e)"))

    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="search" | "match" | "fullmatch"), args=args) if (
                any(map(is_text, args))
            ):
                yield ast.unparse(node)
            case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[text]) if is_text(text):
                yield ast.unparse(node)


def outside() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path.parent not in ROOMS]


def test_no_other_room_uses_a_private_name_of_keras_or_tensorflow():
    found = {}
    for path in outside():
        tree = syntax(path)
        names = list(foreign_names(tree, own_names(tree)))
        if names:
            found[str(path.relative_to(PACKAGE))] = names
    assert found == {}


def test_no_other_room_matches_on_the_text_of_an_error():
    found = {str(path): list(matched_messages(syntax(path))) for path in outside()}
    assert {path: texts for path, texts in found.items() if texts} == {}


def test_every_function_that_touches_an_internal_says_so():
    missing = []
    for path in sorted(path for room in ROOMS for path in room.glob("*.py")):
        tree = syntax(path)
        own = own_names(tree) - {"_call_flat"}
        for function in (node for node in tree.body if isinstance(node, ast.FunctionDef)):
            patches = "replaced(" in ast.unparse(function) and path.stem != "internals"
            says_so = any("uses(" in ast.unparse(each) for each in function.decorator_list)
            if (patches or list(foreign_names(function, own))) and not says_so:
                missing.append(f"{path.stem}.{function.name}")
    assert missing == []


def test_the_installed_versions_have_every_internal(capsys: pytest.CaptureFixture[str]):
    assert printed.main() == 0
    text = capsys.readouterr().out
    assert "\n  moved" not in text
    assert text.startswith("Internals of TensorFlow ")
    assert (
        """
keras_optimizers.trained_by
  present keras.Optimizer._trainable_variables
  if moved: fails
"""
        in text
    )
    assert text.endswith("0 have moved, 0 without a fallback\n")
    assert len(INTERNALS) == text.count("if moved: ")


@pytest.mark.parametrize(
    ("name", "code"), [("Optimizer._trainable_variables", 1), ("Model._loss_tracker", 0)]
)
def test_only_what_has_no_fallback_is_a_failure(
    name: str, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    is_present = internals.is_present
    monkeypatch.setattr(
        internals,
        "is_present",
        lambda each: each != f"keras.{name}" and is_present(each),
    )
    assert printed.main() == code
    assert f"moved   keras.{name}" in capsys.readouterr().out
