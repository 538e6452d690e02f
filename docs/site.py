"""Builds the site from the pages, the source and a notebook that was run.

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


def build(site: Path, tutorial: notebook.Executed) -> None:
    """Writes the whole site to `site`."""
    made = {**reference.made(ROOT / "src" / "loopwright"), "tutorial.md": tutorial.markdown}
    with tempfile.TemporaryDirectory(prefix="loopwright-docs-") as directory:
        work = Path(directory)
        shutil.copy(ROOT / "docs" / "zensical.toml", work)
        files = {**tutorial.files, "site.css": (ROOT / "docs" / "site.css").read_bytes()}
        pages.gather(ROOT, work / "pages", made, files, reference.anchors())
        generate(work)
        shutil.rmtree(site, ignore_errors=True)
        shutil.copytree(work / "site", site)


def generate(work: Path) -> None:
    """Makes HTML of a directory with a `zensical.toml`; links and anchors are checked."""
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    result = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise SystemExit(f"The site was not built.\n{result.stdout}{result.stderr}")
