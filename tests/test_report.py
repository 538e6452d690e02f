"""The report of a run: one page, whole by itself."""

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from tests.resume.program import train

import loopwright as lw
from loopwright import chart, report


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: Any) -> Path:
    where = tmp_path_factory.mktemp("report") / "noisy <run>"
    train(where, "arrays", "auto", epochs=3)
    figures = where / "figures"
    figures.mkdir()
    (figures / "samples.png").write_bytes(b"\x89PNG not really")
    (where / "config.yaml").write_text("recipe: noisy # <b>\n")
    return where


def test_the_page_needs_nothing_but_itself(run_dir: Path):
    page = report.write_report(run_dir).read_text()
    assert not re.search(r'(src|href)="?https?:', page)
    assert "<script" not in page
    assert 'src="data:image/png;base64,' in page


def test_it_shows_the_curves_the_scores_the_time_the_plan_and_where_it_ran(run_dir: Path):
    page = report.render(run_dir)
    for words in ("loss over steps", "Where the time went", "Plan", "Environment", "tensorflow"):
        assert words in page
    assert "best checkpoint by val_loss" in page
    assert "completed · 39 steps" in page


def test_what_a_person_named_is_text_and_not_markup(run_dir: Path):
    page = report.render(run_dir)
    assert "noisy &lt;run&gt;" in page
    assert "<b>" not in page


def test_curves_are_those_of_the_history(run_dir: Path):
    events = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    history = json.loads((run_dir / "history.json").read_text())
    lines = report.curves(events)
    assert [value for _, value in lines["loss"]["train"]] == history["loss"]
    assert [value for _, value in lines["loss"]["validation"]] == history["val_loss"]
    assert [step for step, _ in lines["loss"]["train"]] == [13, 26, 39]


def test_a_run_that_still_goes_on_has_a_report_too(tmp_path: Path):
    lines = [
        {"event": "started", "step": 0},
        {"event": "epoch_ended", "step": 5, "epoch": 0, "metrics": {"loss": 1.0}, "validation": {}},
    ]
    text = "\n".join(map(json.dumps, lines)) + '\n{"event": "val'
    (tmp_path / "metrics.jsonl").write_text(text)
    assert "loss over steps" in report.render(tmp_path)


def test_a_directory_without_a_run_is_refused_in_words(tmp_path: Path):
    with pytest.raises(lw.ConfigurationError, match="nothing to report on"):
        report.render(tmp_path)


# --- charts ---


def test_a_chart_is_well_formed_and_every_point_lies_inside():
    lines = {"train": [(step, 1e3 / (1 + step)) for step in range(5000)], "<b>": [(7, 0.1)]}
    drawn = ElementTree.fromstring(chart.chart("loss & more", lines, "step"))
    points = drawn.find("polyline")
    assert points is not None
    pairs = [tuple(map(float, pair.split(","))) for pair in points.attrib["points"].split()]
    assert 300 <= len(pairs) <= 601
    assert all(0 <= x <= 640 and 0 <= y <= 300 for x, y in pairs)
    assert drawn.find("circle") is not None


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (-3.7, 12.1), (5, 5), (0, 0), (1e-7, 3e-7), (0, 1e9), (-2, -1)]
)
def test_ticks_span_the_range_in_a_few_round_numbers(low: float, high: float):
    found = chart.ticks(low, high)
    assert found[0] <= low
    assert found[-1] >= high
    assert 3 <= len(found) <= 9
    assert found == sorted(set(found))


def test_what_is_not_finite_is_left_out_and_nothing_gives_no_chart():
    assert chart.chart("loss", {"train": [(0, float("nan"))]}, "step") == ""
    drawn = chart.chart("loss", {"train": [(0, 1.0), (1, float("inf")), (2, 3.0)]}, "step")
    assert "nan" not in drawn
    assert "inf" not in drawn
