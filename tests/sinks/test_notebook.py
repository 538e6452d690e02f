"""Progress in a notebook: one output that is replaced, with the curves of the whole run."""

import html
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from tests.sinks.kernel import Kernel, html_of, kernel, text_of

from loopwright.events import EpochEnded, Validated
from loopwright.fit.history import History
from loopwright.sinks import curves, figures, notebook

EVENTS = """
import sys, time
from loopwright.events import *
from loopwright.sinks.terminal import console

def send(show, first, last, pause=0.0, ends=True, name="loss"):
    show(Started(10 * first, last, 10, 10 * last, resumed_steps=10 * first))
    for number in range(first, last):
        step = 10 * (number + 1)
        show(EpochStarted(number, step - 10))
        show(Trained(step - 5, number, 5, 5, 0.1, {name: 1 / step}))
        time.sleep(pause)
        show(Trained(step, number, 10, 5, 0.1, {name: 1 / step}))
        show(Validated(step, number, 0.1, {name: 2 / step}))
        show(EpochEnded(number, step, 10, 0.2, {name: 1 / step}, {name: 2 / step}))
    if ends:
        show(Finished(10 * last, 1.0, "complete", {"step": 1.0}))
"""


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """A kernel that has not imported TensorFlow."""
    with kernel(tmp_path_factory.mktemp("notebook")) as started:
        assert text_of(started.run(EVENTS)) == ""
        yield started


def charts_in(page: str) -> list[Any]:
    return [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", page)]


def points(chart: Any) -> list[int]:
    """How many points each line of a chart has."""
    lines = chart.iter("{http://www.w3.org/2000/svg}polyline")
    return [len(line.get("points").split()) for line in lines]


def test_a_cell_has_one_output_that_is_replaced_and_stays(cells: Kernel):
    timed = "began = time.monotonic(); {}; print(time.monotonic() - began)"
    outputs = cells.run(timed.format("send(console(), 0, 6, pause=0.15)"))
    (page,), seconds = html_of(outputs), float(text_of(outputs))
    assert 2 <= cells.updates <= 4 * seconds + 2, "at most four times a second, and at the end"
    assert "done: 60 steps in 1.0 s" in page
    (chart,) = charts_in(page)
    assert points(chart) == [6, 6]
    plain = outputs[0]["data"]["text/plain"]
    assert "epoch 6/6 · 10 steps · 0.20 s · 50 steps/s · loss 0.01667" in plain
    assert plain.endswith("done: 60 steps in 1.0 s · time: step 100%")
    assert "script" not in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")


def test_a_cell_that_is_run_again_draws_the_whole_run_without_duplicates(cells: Kernel):
    outputs = cells.run(
        """
before = {"loss": {"train": [(10.0, 0.1), (20.0, 0.05), (30.0, 0.04)],
                   "validation": [(10.0, 0.2), (20.0, 0.1), (30.0, 0.06)]}}
send(console("auto", curves_before=lambda: before), 2, 5)
"""
    )
    (page,) = html_of(outputs)
    (chart,) = charts_in(page)
    assert points(chart) == [5, 5], "two epochs before, three of this call; step 30 once"
    assert "resuming from step 20" in page


def test_other_verbosities_and_an_interrupted_run_look_as_asked(cells: Kernel):
    assert cells.run("send(console(0), 0, 2)") == []
    outputs = cells.run("send(console(2), 0, 2)")
    assert html_of(outputs) == []
    assert len(text_of(outputs).splitlines()) == 3
    outputs = cells.run(
        "show = console(1); send(show, 0, 2, ends=False); show(Finished(20, 1.0, 'interrupted'))"
    )
    assert "interrupted after 20 steps" in html_of(outputs)[0]
    loaded = cells.run("print({'tensorflow', 'keras', 'numpy'} & set(sys.modules))")
    assert text_of(loaded) == "set()\n"


# --- what it is made of ---

HOSTILE = '<img src=x onerror="alert(1)">&"\x1b[2J'


class Tags(HTMLParser):
    """The names of the elements of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.attributes: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.found.append(tag)
        self.attributes += [name for name, _ in attrs]


def hostile_history() -> History:
    history = History()
    for number in range(2):
        history(Validated(10 * number + 10, number, 1.0, {HOSTILE: 0.5}))
        history(EpochEnded(number, 10 * number + 10, 10, 1.0, {HOSTILE: 0.5 - number / 10}))
    return history


def test_names_are_text_and_never_markup():
    page = hostile_history()._repr_html_()
    assert html.escape('<img src=x onerror="alert(1)">') in page
    assert "\x1b" not in page
    panel = notebook.metrics_table({HOSTILE: {"train": [(1.0, 2.0)]}}, "step", {HOSTILE: 1.0})
    for made in (page, panel, figures.svg_chart(HOSTILE, {HOSTILE: [(1.0, 2.0)]}, HOSTILE)):
        tags = Tags(made)
        assert not {"img", "script"} & set(tags.found)
        assert not [name for name in tags.attributes if name.startswith("on")]


def test_a_history_is_a_table_of_its_metrics_and_curves():
    history = History()
    for number in range(12):
        step = 10 * (number + 1)
        history(Validated(step, number, 1.0, {"loss": abs(number - 7) + 1}))
        history(EpochEnded(number, step, 10, 1.0, {"loss": 12.0 - number, "shape": [1, 2]}))
    page = history._repr_html_()
    assert "12 epochs" in page
    assert "best val_loss 1.000 at epoch 8" in page
    assert re.findall(r"<td[^>]*>([^<]*)</td>", page)[:4] == [
        "loss",
        "1.000",
        "5.000",
        "1.000 at epoch 8",
    ]
    assert [points(chart) for chart in charts_in(page)] == [[12, 12]]
    assert "0 epochs" in History()._repr_html_()


@pytest.mark.parametrize(
    "line",
    [
        [],
        [(1.0, 5.0)],
        [(1.0, 5.0), (1.0, 5.0)],
        [(1.0, float("nan")), (2.0, float("inf"))],
        [(0.0, -1e299), (1e14, 1e299)],
        [(1.0, 0.0), (2.0, 1e-300)],
    ],
)
def test_a_chart_of_odd_numbers_is_well_formed(line: Any):
    for chart in charts_in(figures.svg_charts({"loss": {"train": line}}, "step", 1.0)):
        text = ElementTree.tostring(chart, encoding="unicode")
        assert "nan" not in text
        assert "inf" not in text


def test_many_epochs_are_drawn_with_few_points():
    line = [(float(n), float(n % 7)) for n in range(20_000)]
    page = figures.svg_charts({f"metric {n}": {"train": line} for n in range(30)}, "step")
    assert len(page) < 100_000
    assert "and 22 more metrics" in page


def test_a_resumed_run_is_drawn_from_its_journal(tmp_path: Path):
    lines = [f'{{"event": "epoch_ended", "step": {n}, "metrics": {{"loss": 1}}}}\n' for n in (5, 9)]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    drawn = curves.until(curves.before(tmp_path, []), 8)
    assert drawn == {"loss": {"train": [(5.0, 1.0)]}}
    assert curves.before(tmp_path / "none", []) == {}
    in_memory = curves.before(None, [hostile_history(), hostile_history()])
    assert [len(line) for line in in_memory[HOSTILE].values()] == [2, 2]
    curves.add_event(drawn, EpochEnded(1, 10, 5, 1.0, {"loss": 2.0, "table": [1.0, 2.0]}))
    assert drawn["loss"]["train"] == [(5.0, 1.0), (10.0, 2.0)]
