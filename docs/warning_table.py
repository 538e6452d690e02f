"""The table of warning ids in `docs/debugging.md`: `python -m docs.warning_table` rewrites it.

Each module that gives a step warning declares its id and its row (`step_warnings.declare`).
"""

from pathlib import Path

import loopwright.trainer  # noqa: F401  (imports every module that declares a warning)
from loopwright import step_warnings

PAGE = Path(__file__).parent / "debugging.md"
_HEAD = "| id | warns that |\n|---|---|\n"


def table() -> str:
    """Return the table, made from the declared ids."""
    rows = step_warnings.documented().items()
    return _HEAD + "".join(f"| `{id}` | {warns_that} |\n" for id, warns_that in rows)


def rewritten(page: str) -> str:
    """Return the text of a page with its table of warning ids as it should be."""
    before, after = page.split(_HEAD)
    rows = after.splitlines(keepends=True)
    rest = next(index for index, line in enumerate(rows) if not line.startswith("|"))
    return before + table() + "".join(rows[rest:])


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text()))
