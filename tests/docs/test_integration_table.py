"""The table of other tools names packages that an extra installs, and tests that exist."""

import ast
from pathlib import Path

import pytest
from docs.integration_table import PAGE, ROOT, ROWS, Row

from docs import integration_table


def test_the_page_has_the_table():
    page = PAGE.read_text()
    assert integration_table.rewritten(page) == page, "run: python -m docs.integration_table"


@pytest.mark.parametrize("row", ROWS, ids=[row.package for row in ROWS])
def test_each_row_has_a_version_a_page_and_a_test(row: Row):
    assert integration_table.oldest_version(row)
    assert (ROOT / "docs" / row.page).exists()
    file, _, name = row.test.partition("::")
    tree = ast.parse(Path(ROOT, "tests", file).read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
