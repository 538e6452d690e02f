"""The table of tested callbacks in `docs/callbacks.md`; `python -m docs.callback_table` writes it.

Each row is a case of `tests/fit/real_callbacks.py`, which trains with it by Keras and Loopwright.
"""

from pathlib import Path

from tests.fit.real_callbacks import CASES

from docs import tables

PAGE = Path(__file__).parent / "callbacks.md"
_HEAD = "| package | callback | the same as with Keras `fit` |\n|---|---|---|\n"


def rows() -> str:
    """Return the rows of the table, made from the tested cases."""
    found = [f"| {c.package} | `{c.call}` | {c.compared} |\n" for c in CASES.values()]
    return "".join(found)


def rewritten(page: str) -> str:
    """Return the text of a page with its table of callbacks as it should be."""
    return tables.rewritten(page, _HEAD, rows())


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text()))
