"""Count lines, docstring lines, tokens and files of the source, by room: `python -m tools.sizes`.

Fewer lines come from deleting, not from squeezing: tokens must fall with them.
"""

import ast
import io
import operator
import sys
import tokenize
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

_SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Size:
    """The size of some source."""

    files: int = 0
    lines: int = 0
    docstring_lines: int = 0
    tokens: int = 0

    def __add__(self, other: "Size") -> "Size":
        return Size(*map(operator.add, vars(self).values(), vars(other).values()))


def size_of(source: str) -> Size:
    r"""Return the size of one file.

    >>> size_of("'An idea.'\n\nx = 1  # why\n")
    Size(files=1, lines=3, docstring_lines=1, tokens=4)
    """
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, _DOCUMENTED)]
    texts = [node.body[0] for node in nodes if ast.get_docstring(node, clean=False) is not None]
    docstring_lines = sum((text.end_lineno or 0) - text.lineno + 1 for text in texts)
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    count = sum(token.type not in _SILENT for token in tokens) - 1  # without the end marker
    return Size(1, len(source.splitlines()), docstring_lines, count)


def sizes_by_room(package: Path) -> dict[str, Size]:
    """Return the size of each room of a package; files beside the rooms are "."."""
    sizes = defaultdict[str, Size](Size)
    for path in sorted([*package.rglob("*.py"), *package.rglob("*.pyi")]):
        parts = path.relative_to(package).parts
        sizes[parts[0] if len(parts) > 1 else "."] += size_of(path.read_text(encoding="utf-8"))
    return dict(sizes)


def main(package: Path) -> None:
    """Print a table of the rooms and their sum."""
    sizes = sizes_by_room(package)
    print(f"{'room':14}{'files':>7}{'lines':>9}{'docstrings':>12}{'tokens':>10}")
    for room, size in [*sizes.items(), ("all", sum(sizes.values(), Size()))]:
        print(f"{room:14}{size.files:7,}{size.lines:9,}{size.docstring_lines:12,}{size.tokens:10,}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "src/loopwright"))
