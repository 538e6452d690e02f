"""The site: built from the pages, the source and the notebook, whole and on its own."""

import ast
import re
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

import loopwright as lw
from docs import notebook, pages, reference, site

ROOT = Path(__file__).parents[2]
CONFIG = tomllib.loads((ROOT / "docs" / "zensical.toml").read_text())["project"]


@pytest.fixture(scope="module")
def tutorial() -> notebook.Executed:
    pytest.importorskip("jupytext")
    return notebook.execute(ROOT / "notebooks" / "tutorial.py")


@pytest.fixture(scope="module")
def built(tutorial: notebook.Executed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("zensical")
    directory = tmp_path_factory.mktemp("docs") / "site"
    site.build(directory, tutorial)
    return directory


# --- the notebook ---


def shown(tutorial: notebook.Executed) -> list[Any]:
    return [output for cell in tutorial.content.cells for output in cell.get("outputs", [])]


def test_the_tutorial_runs_and_shows_what_it_says(tutorial: notebook.Executed):
    printed = "".join(output.get("text", "") for output in shown(tutorial))
    pages = [output.get("data", {}).get("text/html", "") for output in shown(tutorial)]
    first, *_ = [page for page in pages if page]
    assert "done: 376 steps" in first
    assert first.count("<svg") == 2, "curves of the loss and the accuracy"
    assert not [output for output in shown(tutorial) if output.get("name") == "stderr"]
    assert "broadcasting to (n, n)" in printed
    assert "power failure\nthe same numbers: True\n" in printed
    before, after, real = ast.literal_eval(shown(tutorial)[-1].data["text/plain"])
    assert before < 0.1 < 0.3 < after <= real


def test_a_cell_that_raises_is_not_passed_over(tmp_path: Path):
    pytest.importorskip("jupytext")
    path = tmp_path / "broken.py"
    path.write_text("# %%\nx = 1\n\n# %%\n1 / (x - 1)\n")
    with pytest.raises(notebook.NotebookError, match=r"(?s)broken\.py was not.*ZeroDivisionError"):
        notebook.execute(path)


def test_a_page_of_a_notebook_shows_code_prints_and_values(tmp_path: Path):
    pytest.importorskip("jupytext")
    path = tmp_path / "small.py"
    path.write_text("# %% [markdown]\n# # Title\n\n# %%\nprint('said')\n40 + 2\n")
    with path.open("a") as file:
        file.write("\n# %%\nfrom IPython.display import HTML\nHTML('<b>1</b>\\n\\n<i>2</i>')\n")
    code = "```python\nprint('said')\n40 + 2\n```"
    page = notebook.execute(path).markdown
    assert page.startswith(f"# Title\n\n{code}\n\n```text\nsaid\n```\n\n```text\n42\n```\n")
    assert '\n\n<div class="cell-output"><b>1</b> <i>2</i></div>\n' in page


# --- what it is made of ---


def listed(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from listed(part)


def test_every_page_has_a_place_in_the_navigation():
    written = {pages.place_of(ROOT, page) for page in pages.written(ROOT)}
    made = {*reference.made(ROOT / "src" / "loopwright"), "tutorial.md"}
    assert sorted(listed(CONFIG["nav"])) == sorted(written | made)


def test_links_are_led_to_places_on_the_site_or_fail(tmp_path: Path):
    for page in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        (tmp_path / page).write_text("# Page\n")
    (tmp_path / "train.py").write_text("def train(): ...\n")
    (tmp_path / "README.md").write_text(
        "```python notest\n[a](b.md)\n```\n`[in](code.md)`, [loop](train.py), `lw.A(1)`\n"
    )
    references, sections = {"A": "reference/letters.md#a"}, {"ARCHITECTURE.md": "[end](train.py)"}
    pages.gather(tmp_path, tmp_path / "pages", {}, {}, references, sections)
    assert (tmp_path / "pages" / "index.md").read_text() == (
        "```python\n[a](b.md)\n```\n`[in](code.md)`, "
        "[loop](source/train.py.md), [`lw.A(1)`](reference/letters.md#a)\n"
    )
    appended = (tmp_path / "pages" / "architecture.md").read_text()
    assert appended == "# Page\n[end](source/train.py.md)\n"
    (tmp_path / "README.md").write_text("[gone](docs/gone.md)\n")
    with pytest.raises(pages.BrokenLinkError, match=r"README\.md links to docs/gone\.md: no"):
        pages.gather(tmp_path, tmp_path / "pages", {}, {}, {}, {})


def test_code_in_a_table_is_shown_without_the_backslash_that_github_needs(tmp_path: Path):
    for page in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        (tmp_path / page).write_text("| a |\n|---|\n| `min\\|max` |\n\n`a\\|b`\n")
    pages.gather(tmp_path, tmp_path / "pages", {}, {}, {}, {})
    shown = (tmp_path / "pages" / "index.md").read_text()
    assert shown == "| a |\n|---|\n| `min|max` |\n\n`a\\|b`\n"


@pytest.mark.parametrize("target", ["other.md#nowhere", "nowhere.md"])
def test_a_link_to_a_heading_or_page_that_is_not_there_fails(tmp_path: Path, target: str):
    pytest.importorskip("zensical")
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "index.md").write_text(f"# Start\n\n[other]({target})\n")
    (tmp_path / "pages" / "other.md").write_text("# Other\n")
    (tmp_path / "zensical.toml").write_text('[project]\nsite_name = "x"\ndocs_dir = "pages"\n')
    with pytest.raises(SystemExit, match="does not exist"):
        site.generate(tmp_path)


# --- what comes out ---


class Elements(HTMLParser):
    """Every element of a page with its attributes."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}))

    def names(self) -> set[str]:
        return {attributes["id"] for _, attributes in self.found if "id" in attributes}


def test_the_browser_fetches_nothing_from_elsewhere(built: Path):
    for page in built.rglob("*.html"):
        for tag, attributes in Elements(page).found:
            if tag != "a":
                fetched = [attributes.get(name, "") for name in ("src", "href", "srcset")]
                assert not any("//" in url for url in fetched), f"{page.name}: {tag} {fetched}"
    for sheet in built.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", sheet.read_text()), sheet.name


def test_every_link_of_the_site_leads_somewhere(built: Path):
    elements = {page: Elements(page) for page in built.rglob("*.html") if page.name != "404.html"}
    names = {page: found.names() for page, found in elements.items()}
    links = 0
    for page, found in elements.items():
        for _, attributes in found.found:
            url = attributes.get("href") or attributes.get("src") or ""
            if not url or url.startswith(("http:", "https:", "data:", "mailto:")):
                continue
            links += 1
            path, _, anchor = unquote(url).partition("#")
            target = (page.parent / path.partition("?")[0]).resolve() if path else page
            assert target.exists(), f"{page.relative_to(built)}: {url}"
            if anchor and target in names:
                assert anchor in names[target] | {"__top"}, f"{page.relative_to(built)}: {url}"
    assert links > 1000


def text_of(page: Path) -> str:
    return re.sub(r"<[^>]+>", "", page.read_text())


def test_the_architecture_page_shows_the_import_graph_and_the_loop(built: Path):
    source = (ROOT / "src" / "loopwright" / "loop" / "train.py").read_text()
    line = next(line for line in source.splitlines() if line.startswith("def "))
    text = text_of(built / "architecture.html")
    assert line in text
    assert "trainer imports fit in 1 file" in text
    assert ("svg", "rooms") in [
        (tag, attributes.get("class"))
        for tag, attributes in Elements(built / "architecture.html").found
    ]


def test_every_public_name_is_in_the_reference_and_linked_from_pages(built: Path):
    for name, place in reference.anchors().items():
        page, _, anchor = place.partition("#")
        assert anchor in Elements(built / page.replace(".md", ".html")).names(), name
    assert {*reference.anchors(), *lw._MODULES} == {*lw.__all__}
    assert 'href="reference/events.html#validated"' in (built / "callbacks.html").read_text()


def test_examples_lead_to_their_source_and_the_tutorial_to_its_notebook(built: Path):
    assert "class GAN" in text_of(built / "source" / "examples" / "gan.py.html")
    assert (built / "tutorial.ipynb").stat().st_size > 10_000
    pictures = list(built.glob("tutorial-*.png"))
    assert len(pictures) == 2
    page = (built / "tutorial.html").read_text()
    assert all(picture.name in page for picture in pictures)
    assert page.count('class="cell-output"') >= 2
    assert "<polyline" in page
