"""Build the site from the pages, the source and an executed notebook.

Pages are collected in a temporary directory, because some come from other directories or are
generated here. A broken link fails the build and leaves the previous site unchanged.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import loopwright as lw
from docs import import_graph, notebook, pages, reference

ROOT = Path(__file__).parents[1]


def build(site: Path, tutorial: notebook.Executed) -> None:
    """Write the whole site to `site`."""
    made = {**reference.made(ROOT / "src" / "loopwright"), "tutorial.md": tutorial.markdown}
    with tempfile.TemporaryDirectory(prefix="loopwright-docs-") as directory:
        work = Path(directory)
        shutil.copy(ROOT / "docs" / "zensical.toml", work)
        files = {**tutorial.files, "site.css": (ROOT / "docs" / "site.css").read_bytes()}
        sections = {"ARCHITECTURE.md": import_section() + loop_section()}
        pages.gather(ROOT, work / "pages", made, files, reference.anchors(), sections)
        generate(work)
        shutil.rmtree(site, ignore_errors=True)
        shutil.copytree(work / "site", site)


def import_section() -> str:
    """Return a section with the graph of imports between rooms."""
    package = ROOT / "src" / "loopwright"
    order = import_graph.layers(ROOT / "pyproject.toml")
    about = import_graph.summaries(package, [room for layer in order for room in layer])
    picture = import_graph.svg(order, import_graph.imports(package, lw._HOME_OF), about)
    return (
        f"\n## Import graph\n\n<div>{picture}</div>\n\n"
        "Every line is an import of a lower room; the more files import it, the wider the line. "
        "Point at a room to see its imports only.\n"
    )


def loop_section() -> str:
    """Return a section with the source of the loop."""
    source = (ROOT / "src" / "loopwright" / "loop" / "train.py").read_text()
    return f"\n## The loop\n\n`src/loopwright/loop/train.py`:\n\n```python\n{source}```\n"


def generate(work: Path) -> None:
    """Generate HTML from a directory with a `zensical.toml`; check links and anchors."""
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    result = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise SystemExit(f"The site was not built.\n{result.stdout}{result.stderr}")
