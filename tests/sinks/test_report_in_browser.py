"""What people look at and click in a report, in a real browser.

The screenshots stay in `build/screenshots`, to be looked at.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread
from tests.chromium import PATH as BROWSER
from tests.chromium import Chromium
from tests.resume.program import train

from loopwright.sinks.report import write_report

SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"

pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs chromium: apt-get install chromium")


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: Any) -> Path:
    where = tmp_path_factory.mktemp("seen") / "runs" / "noisy"
    train(where, "arrays", "graph")
    return where


def count(pixels: np.ndarray, colour: tuple[int, int, int]) -> int:
    return int((np.abs(pixels - np.array(colour)).sum(-1) < 30).sum())


COLORS = [(31, 119, 180), (224, 122, 31), (42, 157, 92), (194, 59, 75), (138, 99, 201)]
COLORS += [(140, 109, 79), (212, 95, 165), (122, 135, 145), (163, 161, 38), (31, 169, 181)]
NOTHING = "\u2013"  # where a line has no point
MARK_LIGHT, MARK_DARK = (107, 63, 160), (201, 166, 245)


@pytest.fixture(scope="module")
def page() -> Iterator[Chromium]:
    with Chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def decades(tmp_path_factory: Any) -> str:
    """A report: a loss of 1, 0.1, 0.01, ... at steps 10, 20, ... 110; ten lines of one point."""
    run = tmp_path_factory.mktemp("decades")
    lines = [{"event": "started", "step": 0}]
    for epoch in range(11):
        metrics = {"loss": 10.0**-epoch, "accuracy": epoch / 10, "minus": -1.0 - epoch}
        if epoch == 5:
            metrics |= {f"point/of_a_layer_with_a_long_name_{n}": float(n) for n in range(10)}
        if epoch == 0:
            lines.append({"event": "validated", "step": 9, "metrics": {"accuracy": 0.25}})
        step = 10 * (epoch + 1)
        lines.append({"event": "epoch_ended", "step": step, "epoch": epoch, "metrics": metrics})
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return write_report(run).as_uri()


def place(page: Chromium, selector: str, at: int = 0) -> tuple[float, float, float, float]:
    """Left, top, width and height of an element, after scrolling to it."""
    element = f"document.querySelectorAll({selector!r})[{at}]"
    page.evaluate(f"{element}.scrollIntoView({{block: 'center'}})")
    page.settle()
    box = page.evaluate(f"{element}.getBoundingClientRect().toJSON()")
    return box["left"], box["top"], box["width"], box["height"]


def legend(page: Chromium, chart: int) -> dict[str, str]:
    """What the legend of a chart says, by name."""
    rows = f"[...document.querySelectorAll('.u-legend')[{chart}].querySelectorAll('tr')]"
    texts = "r => [r.querySelector('.u-label').textContent, r.querySelector('td').textContent]"
    return dict(page.evaluate(f"{rows}.map({texts})"))


def hover(page: Chromium, chart: int, across: float) -> None:
    left, top, width, height = place(page, ".u-over", chart)
    page.move(left + across * width, top + height / 2)


def is_zoomed(page: Chromium) -> list[bool]:
    return page.evaluate("[...document.querySelectorAll('.chart button')].map(b => !b.hidden)")


def seen(page: Chromium, name: str) -> np.ndarray:
    page.screenshot(SCREENSHOTS / f"{name}.png")
    return (imread(SCREENSHOTS / f"{name}.png")[..., :3] * 255).astype(int)


def inside(page: Chromium, pixels: np.ndarray, selector: str) -> list[np.ndarray]:
    """The pixels of elements, in a picture of the whole page."""
    boxes = page.evaluate(
        f"[...document.querySelectorAll({selector!r})].map(e => e.getBoundingClientRect())"
        ".map(b => [b.left, b.top + scrollY, b.right, b.bottom + scrollY].map(Math.round))"
    )
    return [pixels[top:bottom, left:right] for left, top, right, bottom in boxes]


def test_the_mouse_over_a_curve_shows_the_numbers_there_in_every_chart(
    page: Chromium, decades: str
):
    page.open(decades)
    assert legend(page, 0) == {"step": "last", "train": "1e-10"}
    hover(page, 0, 0.5)
    assert legend(page, 0) == {"step": "60", "train": "0.00001"}
    assert legend(page, 1) == {"step": "60", "train": "0.5", "validation": NOTHING}
    hover(page, 1, 0.02)
    assert legend(page, 1) == {"step": "9", "train": "0 (step 10)", "validation": "0.25"}
    page.move(1, 1)
    assert legend(page, 1) == {"step": "last", "train": "1", "validation": "0.25"}
    assert page.messages == []


def test_dragging_zooms_every_chart_and_a_double_click_or_the_button_zooms_out(
    page: Chromium, decades: str
):
    page.open(decades)
    left, top, width, height = place(page, ".u-over")
    start, end = (left + 0.25 * width, top + 50), (left + 0.75 * width, top + 50)
    for zoom_out in ("double click", "button"):
        assert not any(is_zoomed(page))
        page.drag(start, end)
        assert all(is_zoomed(page))
        hover(page, 1, 0.01)
        assert legend(page, 1) == {"step": "40", "train": "0.3", "validation": NOTHING}
        hover(page, 0, 0.5)
        assert legend(page, 0)["step"] == "60"
        if zoom_out == "double click":
            page.click(left + width / 2, top + height / 2, times=2)
        else:
            x, y, across, down = place(page, ".chart button", 1)
            page.click(x + across / 2, y + down / 2)
            left, top, width, height = place(page, ".u-over")
    assert not any(is_zoomed(page))
    hover(page, 0, 0.01)
    assert legend(page, 1)["step"] == "9"


def test_a_logarithmic_axis_spreads_the_decades_and_says_what_it_cannot_show(
    page: Chromium, decades: str
):
    def height_of_the_middle() -> float:
        hover(page, 0, 0.5)
        point = page.evaluate("document.querySelector('.u-cursor-pt').getBoundingClientRect().y")
        _, top, _, height = place(page, ".u-over")
        return 1 - (point - top) / height

    page.open(decades)
    assert height_of_the_middle() < 0.15  # 0.00001 between 0 and 1
    for chart in (0, 1):
        left, top, width, height = place(page, ".chart input", chart)
        page.click(left + width / 2, top + height / 2)
    assert 0.4 < height_of_the_middle() < 0.6
    seen(page, "report-log")
    notes = page.evaluate("[...document.querySelectorAll('.note')].map(n => n.textContent)")
    assert notes[:2] == ["", "values of 0 or less, not shown on a log scale: 1"]
    disabled = page.evaluate("[...document.querySelectorAll('.chart input')].map(i => i.disabled)")
    assert disabled == [False, False, True, False]  # no value of "minus" is above 0
    assert page.messages == []


def test_a_click_on_a_name_hides_its_line_also_on_the_logarithmic_axis(
    page: Chromium, decades: str
):
    page.open(decades)
    name = ".u-legend .u-series:nth-child(2) .u-label"
    for selector in (name, ".chart input"):
        left, top, width, height = place(page, selector)
        page.click(left + width / 2, top + height / 2)
        pixels = inside(page, seen(page, "report-hidden"), ".u-wrap canvas")[0]
        assert count(pixels, COLORS[0]) == 0


@pytest.mark.parametrize("width", [1400, 400])
def test_ten_lines_of_one_point_are_seen_and_nothing_is_cut_off(
    page: Chromium, decades: str, width: int
):
    page.open(decades, width=width)
    pixels = seen(page, f"report-points-{width}")
    plots = inside(page, pixels, ".u-wrap canvas")
    assert all(count(plots[3], color) >= 8 for color in COLORS)
    for plot in plots:
        edges = np.concatenate([plot[:, :2], plot[:, -2:]], axis=1)
        assert count(edges, (255, 255, 255)) == edges.shape[0] * edges.shape[1]
    overflow = (
        "[...document.querySelectorAll('.chart')].some(c => [...c.querySelectorAll('*')].some("
        "e => e.getBoundingClientRect().right > c.getBoundingClientRect().right + 1))"
    )
    assert not page.evaluate(overflow)
    assert page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize(
    ("name", "width", "dark"),
    [("light", 1400, False), ("dark", 1400, True), ("phone", 400, False)],
)
def test_the_report_shows_its_curves_and_the_best_in_the_light_in_the_dark_and_on_a_phone(
    page: Chromium, run_dir: Path, name: str, width: int, dark: bool
):
    page.open((run_dir / "report.html").as_uri(), width=width, dark=dark)
    pixels = seen(page, f"report-{name}")
    assert max(pixels[5, 5]) < 40 if dark else min(pixels[5, 5]) == 255
    loss, *others = inside(page, pixels, ".u-wrap canvas")
    assert count(loss, COLORS[0]) > 100  # training
    assert count(loss, COLORS[1]) > 100  # validation
    mark = MARK_DARK if dark else MARK_LIGHT
    dashes = [count(plot, mark) for plot in (loss, *others)]
    assert min(dashes) > 50
    assert dashes[0] > max(dashes[1:])  # a ring around the best score, too
    assert page.messages == []
