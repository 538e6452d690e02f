"""Draw the imports between the rooms of the package as SVG, layered by the lint order.

The picture is read from the source when the site is built, and never committed.
"""

import ast
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

_ROW, _GAP, _TOP = 28, 10, 16
_ARCS, _BOX, _WIDTH = 330, 120, 1060
_STYLE = """
.rooms { max-width: 100%; height: auto; font: 13px system-ui, sans-serif; }
.rooms text { fill: currentColor; }
.rooms .about { opacity: 0.7; font-size: 12px; }
.rooms rect { fill: hsl(var(--hue) 60% 50% / 0.15); stroke: hsl(var(--hue) 60% 45%); }
.rooms path { fill: none; stroke: hsl(var(--hue) 60% 45%); opacity: 0.4; }
.rooms:hover path { opacity: 0.1; }
.rooms g:hover path { opacity: 1; }
"""

Imports = Mapping[tuple[str, str], int]


def layers(pyproject: Path) -> list[list[str]]:
    """Return the rooms of each layer that import-linter enforces, highest first."""
    contracts = tomllib.loads(pyproject.read_text())["tool"]["importlinter"]["contracts"]
    (found,) = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    return [layer.split(" | ") for layer in found]


def imports(package: Path, homes: Mapping[str, str]) -> Imports:
    """Count the files of one room that import another; `homes` are the modules of public names.

    Imports for type checkers only do not count, as in import-linter.
    """
    files = {file: _room(package, file) for file in package.rglob("*.py")}
    rooms = {*files.values()} - {"__init__"}
    found = Counter[tuple[str, str]]()
    for file, room in files.items():
        if room in rooms:
            names = set(_imported(ast.parse(file.read_text()), package.name, homes))
            found.update((room, name) for name in names & rooms - {room})
    return found


def _room(package: Path, file: Path) -> str:
    return file.relative_to(package).parts[0].removesuffix(".py")


def _imported(tree: ast.Module, package: str, homes: Mapping[str, str]) -> Iterator[str]:
    """Yield the rooms that a module imports, including public names: `loopwright.Task`."""
    public = set[str]()
    for node in _run_nodes(tree):
        if isinstance(node, ast.ImportFrom) and node.module == package:
            yield from (homes.get(alias.name, alias.name).partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{package}."):
            yield str(node.module).split(".")[1]
        elif isinstance(node, ast.Import):
            modules = {alias.asname or alias.name: alias.name.split(".") for alias in node.names}
            yield from (parts[1] for parts in modules.values() if parts[0] == package and parts[1:])
            public |= {name for name, parts in modules.items() if parts == [package]}
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in public:
            yield homes.get(node.attr, node.attr).partition(".")[0]


def _run_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield every node in source order except the blocks for type checkers."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)):
            yield from _run_nodes(child)


def summaries(package: Path, rooms: Sequence[str]) -> dict[str, str]:
    """Return the first line of the docstring of each room."""
    files = {room: package / room / "__init__.py" for room in rooms}
    files |= {room: package / f"{room}.py" for room in rooms if not files[room].exists()}
    texts = {room: ast.get_docstring(ast.parse(file.read_text())) for room, file in files.items()}
    return {room: (text or "").partition("\n")[0] for room, text in texts.items()}


def svg(order: Sequence[Sequence[str]], counts: Imports, about: Mapping[str, str]) -> str:
    """Return the graph on one line: a row per room, and an arc for each pair of rooms."""
    heights = dict(_heights(order))
    rooms, bottom = list(heights), max(heights.values())
    parts = [f'<svg class="rooms" viewBox="0 0 {_WIDTH} {bottom + _ROW}" role="img">']
    parts += ["<title>Imports between rooms</title>", f"<style>{' '.join(_STYLE.split())}</style>"]
    parts.append(
        '<defs><marker id="import" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" markerUnits="userSpaceOnUse" orient="auto">'
        '<path d="M0 0 8 4 0 8" style="fill: none; stroke: context-stroke; opacity: 1"/>'
        "</marker></defs>"
    )
    for number, room in enumerate(rooms):
        y = heights[room]
        parts.append(f'<g style="--hue: {round(360 * number / len(rooms))}">')
        for goal in rooms[number + 1 :]:
            if count := counts.get((room, goal)):
                parts.append(_arc(room, goal, count, y, heights[goal], bottom - _TOP))
        parts.append(f'<rect x="{_ARCS}" y="{y - 12}" width="{_BOX}" height="24" rx="5"/>')
        parts.append(f'<text x="{_ARCS + 10}" y="{y + 4}">{escape(room)}</text>')
        text = escape(about.get(room, "").replace("`", ""))
        parts.append(f'<text class="about" x="{_ARCS + _BOX + 12}" y="{y + 4}">{text}</text></g>')
    return "".join([*parts, "</svg>"])


def _heights(order: Sequence[Sequence[str]]) -> Iterator[tuple[str, int]]:
    """Yield each room with the middle of its row; layers are further apart than their rooms."""
    y = _TOP
    for layer in order:
        for room in layer:
            yield room, y
            y += _ROW
        y += _GAP


def _arc(room: str, goal: str, count: int, start: int, end: int, depth: float) -> str:
    """Return a curve whose width grows with its height; `depth` is the height of all rows."""
    # A cubic curve goes three quarters of the way to its control points.
    x = round(_ARCS - (20 + (_ARCS - 30) * (end - start) / depth) / 0.75)
    files = f"{count} file{'s' if count > 1 else ''}"
    return (
        f'<path d="M{_ARCS} {start} C{x} {start} {x} {end} {_ARCS} {end}" '
        f'stroke-width="{min(1 + count / 3, 5):.1f}" marker-end="url(#import)">'
        f"<title>{escape(room)} imports {escape(goal)} in {files}</title></path>"
    )
