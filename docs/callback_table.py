"""The table of tested callbacks in `docs/callbacks.md`; `python -m docs.callback_table` writes it.

Each row is a case of `tests/sinks/real_callbacks.py`, which trains with it by Keras and Loopwright.
"""

from pathlib import Path

from tests.sinks.real_callbacks import CASES

PAGE = Path(__file__).parent / "callbacks.md"
_HEAD = "| package | callback | the same as with Keras `fit` |\n|---|---|---|\n"


def table() -> str:
    """Return the table, made from the tested cases."""
    rows = [f"| {c.package} | `{c.call}` | {c.compared} |\n" for c in CASES.values()]
    return _HEAD + "".join(rows)


def rewritten(page: str) -> str:
    """Return the text of a page with its table of callbacks as it should be."""
    before, after = page.split(_HEAD)
    rows = after.splitlines(keepends=True)
    rest = next(index for index, line in enumerate(rows) if not line.startswith("|"))
    return before + table() + "".join(rows[rest:])


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text()))
