"""Run the notebook and build the site: `python -m docs [DIRECTORY]`."""

import sys
from pathlib import Path

from docs import notebook, site

if __name__ == "__main__":
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else site.ROOT / "site"
    site.build(directory, notebook.execute(site.ROOT / "notebooks" / "tutorial.py"))
    print(f"open {directory / 'index.html'}")
    # A browser does not let a file read the index of the search.
    print(f"with search: python -m http.server --bind 127.0.0.1 --directory {directory}")
