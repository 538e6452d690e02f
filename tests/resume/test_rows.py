"""The table of faults in the documentation names tests that exist."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "reliability.md"


def rows() -> list[tuple[str, str, list[str]]]:
    """Number, file and tests of each row."""
    found = list[tuple[str, str, list[str]]]()
    section = PAGE.read_text().partition("## Tests by fault")[2].partition("\n## ")[0]
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and ".py" in cells[2]:
            names = re.findall(r"`(test_\w+)`", cells[3])
            found.append((cells[0], cells[2].strip("`"), names))
    return found


def test_every_row_names_tests_that_exist():
    missing = list[str]()
    for _, file, names in rows():
        assert names, file
        text = (TESTS / file).read_text()
        missing += [f"{file}: {name}" for name in names if f"def {name}(" not in text]
    assert missing == []


def test_no_row_that_was_promised_is_left_out():
    promised = {*range(1, 21), *range(22, 26)}
    assert {int(number) for number, _, _ in rows() if number} == promised
