"""The report of a run: one page, whole by itself."""

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.resume.program import train

import loopwright as lw
from loopwright.sinks import report


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: Any) -> Path:
    where = tmp_path_factory.mktemp("report") / "noisy <run>"
    train(where, "arrays", "auto", epochs=3)
    figures = where / "figures"
    figures.mkdir()
    (figures / "samples.png").write_bytes(b"\x89PNG not really")
    (where / "config.yaml").write_text("task: noisy # <b>\n")
    return where


def journal(run_dir: Path, events: Iterable[Mapping[str, Any]]) -> Path:
    """A run directory with these events."""
    text = "".join(json.dumps(event) + "\n" for event in events)
    (run_dir / "metrics.jsonl").write_text(text)
    return run_dir


def ended(step: int, **metrics: Any) -> dict[str, Any]:
    return {"event": "epoch_ended", "step": step, "metrics": metrics}


def data_of(page: str) -> dict[str, Any]:
    """What the page draws its curves from."""
    (found,) = re.findall(r'<script type="application/json" id="curves">(.*?)</script>', page)
    return json.loads(found)


def lines_of(page: str) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """The points of a page by chart and line."""
    return {
        chart["title"]: {
            line["name"]: list(zip(line["x"], line["y"], strict=True)) for line in chart["lines"]
        }
        for chart in data_of(page)["charts"]
    }


def section(page: str, title: str) -> str:
    """The words below a heading, without markup."""
    (found,) = re.findall(f"<h2>{title}</h2>(.*?)(?=<h2>|<script|</body>)", page, re.DOTALL)
    return " ".join(html.unescape(re.sub("<[^>]*>", " ", found)).split())


def test_the_page_needs_nothing_but_itself_and_takes_names_as_text(run_dir: Path):
    page = report.write_report(run_dir).read_text()
    assert not re.search(r'(src|href)="?https?:', page)
    assert 'src="data:image/png;base64,' in page
    assert "Copyright (c) 2022 Leon Sorokin" in page  # of the library that draws it
    assert "The above copyright notice and this permission notice shall be included" in page
    assert "noisy &lt;run&gt;" in page  # what a person named is text
    assert "<b>" not in page


def test_the_browser_may_run_two_scripts_one_style_and_nothing_else(run_dir: Path):
    page = report.render(run_dir)
    (policy,) = re.findall('Content-Security-Policy" content="([^"]*)"', page)
    rules = dict(rule.strip().split(" ", 1) for rule in html.unescape(policy).split(";"))

    def hashes(texts: list[str]) -> list[str]:
        digests = [hashlib.sha256(text.encode()).digest() for text in texts]
        return [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests]

    scripts = re.findall("<script>(.*?)</script>", page, re.DOTALL)
    styles = re.findall("<style>(.*?)</style>", page, re.DOTALL)
    assert rules == {
        "default-src": "'none'",
        "script-src": " ".join(hashes(scripts)),
        "style-src": " ".join(hashes(styles)),
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    assert (len(scripts), len(styles)) == (2, 1)
    assert "style=" not in page.partition("<body>")[2].partition("<script")[0]


def test_it_shows_the_curves_the_scores_the_time_the_plan_and_where_it_ran(run_dir: Path):
    page = report.render(run_dir)
    for words in ("loss over steps", "Where the time went", "Plan", "Environment", "tensorflow"):
        assert words in page
    assert "best checkpoint by val_loss" in page
    assert "completed · 39 steps" in page
    assert "checkpoint" not in section(page, "Scores of the last epoch")
    assert re.search("kept at steps .*39$", section(page, "Checkpoints"))


def test_curves_are_those_of_the_history(run_dir: Path):
    history = json.loads((run_dir / "history.json").read_text())
    lines = lines_of(report.render(run_dir))
    assert [value for _, value in lines["loss"]["train"]] == pytest.approx(history["loss"])
    assert [value for _, value in lines["loss"]["validation"]] == pytest.approx(history["val_loss"])
    assert [step for step, _ in lines["loss"]["train"]] == [13, 26, 39]


def test_the_best_checkpoint_is_marked_in_the_chart_of_its_metric(run_dir: Path):
    page = report.render(run_dir)
    best = data_of(page)["best"]
    assert best["chart"] == "loss"
    assert dict(lines_of(page)["loss"]["validation"])[best["step"]] == pytest.approx(best["score"])
    text = f"best checkpoint by val_loss: {best['score']:.6g} at epoch {best['step'] // 13}, step"
    assert best["label"] == f"{text} {best['step']}"
    assert best["label"] in page.partition("<script")[0]


def test_the_time_bar_has_a_legend_in_its_colours(run_dir: Path):
    page = report.render(run_dir)
    (bar, key) = re.findall(
        r'<svg class="share".*?</svg>|<ul class="key">.*?</ul>', page, re.DOTALL
    )
    colors = re.findall('class="(color-.)"', bar)
    assert len(colors) > 2
    assert re.findall('class="(color-.)"', key) == colors
    widths = [float(width) for width in re.findall(' width="([^"]*)"', bar)]
    assert sum(widths) == pytest.approx(100, abs=0.1)
    assert key.count("%") == len(colors)


def test_plan_trials_are_folded_into_one_line(tmp_path: Path):
    graph, xla = {"step": "graph", "loop": "graph"}, {"step": "xla", "loop": "graph"}
    fused = {"step": "xla", "loop": "fused"}
    order = [(0, graph, 0), (10, xla, 1), (20, graph, 0), (30, xla, 1), (40, graph, 0)]
    order += [(50, fused, 1), (60, graph, 0), (70, fused, 1), (80, fused, 0)]
    changes = [{"step": n, "plan": plan, "trial": bool(trial)} for n, plan, trial in order]
    journal(tmp_path, [{"event": "started", "step": 0}])
    (tmp_path / "plan.json").write_text(json.dumps({"changes": changes}))
    page = report.render(tmp_path)
    unfolded = re.sub("<details><summary>(.*?)</summary>.*?</details>", r"\1", page)
    assert section(unfolded, "Plan") == (
        "after step 0 step=graph, loop=graph "
        "after step 10 measured 2 other plans "
        "after step 80 step=xla, loop=fused"
    )
    assert page.count("<li>after step") == 4
    changes[-1] = {"step": 80, "plan": graph}
    (tmp_path / "plan.json").write_text(json.dumps({"changes": changes}))
    assert section(report.render(tmp_path), "Plan").endswith("after step 80 step=graph, loop=graph")


def test_a_run_that_still_goes_on_has_a_report_too(tmp_path: Path):
    journal(tmp_path, [{"event": "started", "step": 0}, ended(5, loss=1.0)])
    whole = (tmp_path / "metrics.jsonl").read_text()
    for half in ('{"event": "val', '{"event": "epoch_ended", "step": 9, "metr', '{"eve'):
        (tmp_path / "metrics.jsonl").write_text(whole + half)
        assert lines_of(report.render(tmp_path)) == {"loss": {"train": [(5, 1.0)]}}
    (tmp_path / "metrics.jsonl").write_text(whole.rstrip("\n"))
    assert lines_of(report.render(tmp_path)) == {"loss": {"train": [(5, 1.0)]}}


def test_a_line_that_is_not_json_does_not_hide_the_lines_after_it(tmp_path: Path):
    first, second = (json.dumps(ended(step, loss=1.0 / step)) for step in (1, 2))
    other_spacing = json.dumps(ended(3, loss=1.0), separators=(",", ":"))
    text = f"{first}\n\0\0\0\n{second}\n{other_spacing}\n"
    (tmp_path / "metrics.jsonl").write_text(text)
    assert lines_of(report.render(tmp_path)) == {"loss": {"train": [(1, 1.0), (2, 0.5), (3, 1.0)]}}


def test_a_directory_without_a_run_is_refused_in_words(tmp_path: Path):
    with pytest.raises(lw.ConfigurationError, match="nothing to report on"):
        report.render(tmp_path)


# --- long runs ---


def test_of_a_long_journal_the_page_shows_a_part_and_says_so(tmp_path: Path):
    count = 60_000
    scores = (
        '"metrics": {"loss": %s, "a": 0.25, "b": 0.5, "c": 0.125}, "learning_rates": {"rate": 0.1}'
    )
    line = (
        '{"event": "epoch_ended", "time": 1763000000.0, "epoch": %d, "step": %d, ' + scores + "}\n"
    )
    text = "".join(line % (epoch, epoch + 1, epoch * 0.5) for epoch in range(count))
    (tmp_path / "metrics.jsonl").write_text(
        text + '{"event": "finished", "step": 7, "seconds": 1}\n'
    )
    page = report.render(tmp_path)
    assert "The curves show 1 of every 8 of the 60,000 epochs." in page
    points = lines_of(page)["loss"]["train"]
    assert 400 <= len(points) <= 800
    assert points[0] == (1, 0.0)
    assert points[-1] == (count, (count - 1) * 0.5)
    assert all(value == (step - 1) * 0.5 for step, value in points)
    assert "loss 29999.5" in section(page, "Scores of the last epoch")


def test_a_spike_of_one_epoch_in_a_thousand_is_drawn(tmp_path: Path):
    events = [ended(step, loss=50.0 if step == 1321 else 0.5) for step in range(3000)]
    (points,) = lines_of(report.render(journal(tmp_path, events)))["loss"].values()
    assert len(points) <= 800
    assert (1321, 50.0) in points
    assert [step for step, _ in points] == sorted({step for step, _ in points})


def test_what_is_not_finite_is_left_out_and_nothing_gives_no_chart(tmp_path: Path):
    losses = {0: 1.0, 1: "Infinity", 2: 3.0, 10**17: 4.0, 3: 1e305}
    events = [ended(step, loss=loss, lost="NaN") for step, loss in losses.items()]
    page = report.render(journal(tmp_path, events))
    assert lines_of(page) == {"loss": {"train": [(0, 1.0), (2, 3.0)]}}
    page = report.render(journal(tmp_path, [{"event": "started", "step": 0}]))
    assert "Curves" not in page
    assert "<script" not in page
