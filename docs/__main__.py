"""Builds the site: `python -m docs`, or `python -m docs DIRECTORY`.

Pages are gathered in a directory of their own, since some come from elsewhere in the repository or
are made here. A broken link fails the build, and then the site that was there before stays.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from docs import notebook, pages, reference

ROOT = Path(__file__).parents[1]


def build(site: Path, executed: notebook.Executed) -> None:
    """Writes the whole site to `site`."""
    with tempfile.TemporaryDirectory(prefix="loopwright-docs-") as directory:
        work = Path(directory)
        shutil.copy(ROOT / "docs" / "zensical.toml", work)
        made = {
            **reference.made(ROOT / "src" / "loopwright"),
            "tutorial.md": executed.markdown,
        }
        pages.gather(ROOT, work / "pages", made, reference.anchors())
        executed.write_files(work / "pages")
        generate(work)
        shutil.rmtree(site, ignore_errors=True)
        shutil.copytree(work / "site", site)


def generate(work: Path) -> None:
    """Makes HTML of a directory with a `zensical.toml`; links and anchors are checked."""
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    result = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise SystemExit(f"The site was not built.\n{result.stdout}{result.stderr}")


if __name__ == "__main__":
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "site"
    build(out, notebook.execute(ROOT / "notebooks" / "tutorial.py"))
    print(f"{out / 'index.html'}")
