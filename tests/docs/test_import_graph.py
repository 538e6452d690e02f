"""The import graph: rooms and imports as they are in the source."""

import xml.etree.ElementTree as ET
from pathlib import Path

import loopwright as lw
from docs import import_graph

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "loopwright"


def package(directory: Path, **modules: str) -> Path:
    """A package with these modules; `a__b` is `a/b.py`."""
    for name, source in modules.items():
        file = directory / "pack" / f"{name.replace('__', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
    return directory / "pack"


def test_every_way_to_import_another_room_counts_once_per_file(tmp_path: Path):
    found = import_graph.imports(
        package(
            tmp_path,
            top__one="from pack.low.deep import x\nimport pack.low\nfrom pack.top import two\n",
            top__two="def f():\n    from pack import low, version\n",
            top__three="import pack as p\nimport other\np.Name\np.version\nother.low\n",
            low__deep="x = 1\n",
            home="class Name: ...\n",
        ),
        {"Name": "home.deeper"},
    )
    assert found == {("top", "low"): 2, ("top", "home"): 1}


def test_imports_for_type_checkers_do_not_count(tmp_path: Path):
    source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pack.up import x\n"
    assert import_graph.imports(package(tmp_path, low=source, up="x = 1\n"), {}) == {}


def test_the_graph_holds_every_room_and_every_import_downwards():
    order = import_graph.layers(ROOT / "pyproject.toml")
    rooms = [room for layer in order for room in layer]
    found = import_graph.imports(PACKAGE, lw._HOME_OF)
    assert found["trainer", "fit"] == 1
    assert found["digits", "trainer"] >= 1  # through `import loopwright as lw`
    assert all(rooms.index(room) < rooms.index(goal) for room, goal in found)

    picture = ET.fromstring(import_graph.svg(order, found, import_graph.summaries(PACKAGE, rooms)))
    groups = picture.findall("g")
    assert [group.findtext("text") for group in groups] == rooms
    drawn = [title.text for group in groups for title in group.iterfind("path/title")]
    assert len(drawn) == len(found)
    assert all(" imports " in str(title) for title in drawn)
