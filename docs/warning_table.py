"""The table of warning ids in `docs/debugging.md`: `python -m docs.warning_table` rewrites it.

Each module that gives a step warning declares its id and its row (`step_warnings.declare`).
"""

from pathlib import Path

import loopwright.trainer  # noqa: F401  (imports every module that declares a warning)
from docs import tables
from loopwright import step_warnings

PAGE = Path(__file__).parent / "debugging.md"
_HEAD = "| id | warns that |\n|---|---|\n"


def rows() -> str:
    """Return the rows of the table, made from the declared ids."""
    found = step_warnings.documented().items()
    return "".join(f"| `{id}` | {warns_that} |\n" for id, warns_that in found)


def rewritten(page: str) -> str:
    """Return the text of a page with its table of warning ids as it should be."""
    return tables.rewritten(page, _HEAD, rows())


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text()))
