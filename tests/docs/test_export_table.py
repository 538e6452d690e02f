"""The table of what converts is what happens."""

import subprocess
import sys
from pathlib import Path

import pytest

from docs import export_table

pytest.importorskip("ai_edge_litert")
pytest.importorskip("tf2onnx")
ROOT = Path(__file__).parents[2]


def test_the_table_has_a_row_for_every_example_every_component_and_every_special_case():
    rows = export_table.rows_of(export_table.PAGE.read_text())
    labels = [row.split(" | ")[0].removeprefix("| ") for row in rows]
    assert labels == list(export_table.cases())


@pytest.mark.parametrize("label", export_table.cases())
def test_a_row_of_the_table_is_what_happens(label: str):
    # In a process of its own: converters change the process that they run in.
    command = [sys.executable, "-m", "docs.export_table", label]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    rows = export_table.rows_of(export_table.PAGE.read_text())
    assert done.stdout.splitlines(keepends=True)[-1] in rows
