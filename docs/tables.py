"""Tables of pages that are made from code: the heading stays, the rows are written again."""


def rewritten(page: str, head: str, rows: str) -> str:
    """Return the text of a page with these rows below the heading of a table."""
    before, after = page.split(head)
    lines = after.splitlines(keepends=True)
    rest = next((at for at, line in enumerate(lines) if not line.startswith("|")), len(lines))
    return before + head + rows + "".join(lines[rest:])
