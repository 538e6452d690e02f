"""The table of what converts is what happens."""

import pytest

from docs import export_table

pytest.importorskip("ai_edge_litert")
pytest.importorskip("tf2onnx")


def test_the_table_has_a_row_for_every_recipe_every_component_and_every_special_case():
    rows = export_table.rows_of(export_table.PAGE.read_text())
    labels = [row.split(" | ")[0].removeprefix("| ") for row in rows]
    assert labels == list(export_table.cases())


@pytest.mark.parametrize("label", export_table.cases())
def test_a_row_of_the_table_is_what_happens(label: str):
    rows = export_table.rows_of(export_table.PAGE.read_text())
    assert export_table.row(label, export_table.cases()[label]) in rows
