"""README: figures come from the repository, commands exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_every_measured_figure_is_the_one_that_make_bench_wrote():
    measured = (ROOT / "benchmarks" / "results" / "speed.md").read_text().strip()
    assert measured in README


def test_every_make_target_named_in_the_readme_exists():
    makefile = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"make ([a-z-]+)", README))
    assert {"train", "test", "bench"} <= named
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in named)


def test_every_link_in_the_top_pages_leads_to_a_file():
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_architecture_page_names_every_module():
    page = (ROOT / "ARCHITECTURE.md").read_text()
    source = ROOT / "src" / "loopwright"
    modules = [path.name for path in source.glob("*.py") if path.name != "__init__.py"]
    folders = [f"{path.parent.name}/" for path in source.glob("*/__init__.py")]
    missing = [name for name in modules + folders if name not in page]
    assert missing == []


def test_each_walk_leads_from_module_to_module():
    """Each function on a list exists, and a module named above it calls or takes it."""
    source = ROOT / "src" / "loopwright"
    page = (ROOT / "ARCHITECTURE.md").read_text().partition("## Walks")[2].partition("\n## ")[0]
    walks = page.split("\n### ")[1:]
    assert len(walks) == 5
    for walk in walks:
        above = ""
        for line in re.findall(r"(?m)^\d+\. .*(?:\n   .*)*", walk):
            modules = re.findall(r"`([\w/]+\.py)`", line)
            (name,) = re.findall(r"^\d+\. `[\w/]+\.py` `(\w+)`", line)
            text, *others = [(source / module).read_text() for module in modules]
            callers = above + "".join(others)
            assert re.search(rf"(def|class) {name}\b", text), f"{modules[0]} has no {name}"
            assert not above or re.search(rf"\b{name}[()]", callers), f"nothing above uses {name}"
            above = text + callers
