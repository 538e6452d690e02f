"""The report of a run: one self-contained page, made from the files of its directory.

The template escapes every value: the files may come from an untrusted source.
"""

import base64
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loopwright import disk, runs
from loopwright.checkpoints.retention import Best
from loopwright.plans import settings
from loopwright.runs import RunRecord, Sample, mapping, number
from loopwright.sinks.export_table import export_rows
from loopwright.sinks.page import rendered

Points = Sequence[tuple[float, float]]
Lines = dict[str, list[tuple[float, float]]]

_MOST_POINTS = 800
_MOST = 1e300  # above this, the length of an axis overflows
_MOST_STEPS = 1e15  # above this, consecutive steps may be the same float, and an axis has no ticks


def charts(journal: Mapping[str, Sample]) -> list[dict[str, Any]]:
    """Return the charts of a run as JSON values: a title, and lines of `x` and `y`.

    Values that are not finite are left out, and so are lines without a value.
    """
    drawn = [
        {"title": title, "lines": [_line(name, points) for name, points in lines.items()]}
        for title, lines in curves(journal).items()
    ]
    return [chart for chart in drawn if chart["lines"]]


def compared_charts(journals: Mapping[str, Mapping[str, Sample]]) -> list[dict[str, Any]]:
    """Return the charts of several runs by name: a color for each run, dashes for validation."""
    found: dict[str, list[dict[str, Any]]] = {}
    for color, (run, journal) in enumerate(journals.items()):
        for title, lines in curves(journal).items():
            for name, points in lines.items():
                label = run if len(lines) == 1 or name == "train" else f"{run} {name}"
                style = {"color": color, "dash": 0 if name == "train" or len(lines) == 1 else 1}
                found.setdefault(title, []).append({**_line(label, points), **style})
    return [{"title": title, "lines": lines} for title, lines in found.items()]


def curves(journal: Mapping[str, Sample]) -> dict[str, Lines]:
    """Return lines by metric and name: training and learning rates per epoch, validation."""
    found: dict[str, dict[str, dict[float, float]]] = {}

    def add(metric: str, line: str, step: Any, value: Any) -> None:
        x, y = number(step), number(value)
        if x is not None and y is not None and abs(x) < _MOST_STEPS and abs(y) < _MOST:
            found.setdefault(metric, {}).setdefault(line, {})[x] = y

    for event in _events(journal, "epoch_ended"):
        step = event.get("step")
        for name, value in mapping(event.get("metrics")).items():
            group, _, rest = name.partition("/")
            add(group, rest or "train", step, value)
        for name, value in mapping(event.get("learning_rates")).items():
            owner, _, _ = name.rpartition("_learning_rate")
            add("learning rate", owner or "train", step, value)
    for event in _events(journal, "validated"):
        for name, value in mapping(event.get("metrics")).items():
            add(name, "validation", event.get("step"), value)
    return {metric: _in_order(lines) for metric, lines in found.items()}


def best_mark(best: Best | None, journal: Mapping[str, Sample]) -> dict[str, Any] | None:
    """Return the mark of the best checkpoint in charts; None if there is none.

    `chart` is the title of the chart that shows the metric, `label` the text above the charts.
    """
    if best is None or not math.isfinite(best.score) or abs(best.score) >= _MOST:
        return None
    metric, score, step = best
    ended = {each.get("step"): each.get("epoch") for each in _events(journal, "epoch_ended")}
    epoch = number(ended.get(step))
    place = f"step {step:,}" if epoch is None else f"epoch {epoch + 1:,.0f}, step {step:,}"
    return {
        "chart": metric.removeprefix("val_").partition("/")[0],
        "label": f"best checkpoint by {metric}: {score:.6g} at {place}",
        "step": step,
        "score": score,
    }


def thinned(points: Points, most: int = _MOST_POINTS) -> Points:
    """Return at most `most` points: the lowest and the highest value of each part of a line.

    >>> line = [(step, 0.0) for step in range(100_000)]
    >>> line[777] = (777, 5.0)
    >>> few = thinned(line)
    >>> len(few) <= 800, max(few, key=lambda point: point[1]), few[0], few[-1]
    (True, (777, 5.0), (0, 0.0), (99999, 0.0))
    """
    if len(points) <= most:
        return points
    inner, parts = points[1:-1], most // 2 - 1
    kept = [points[0]]
    for part in range(parts):
        here = range(part * len(inner) // parts, (part + 1) * len(inner) // parts)
        low = min(here, key=lambda at: inner[at][1])
        high = max(here, key=lambda at: inner[at][1])
        kept += [inner[at] for at in sorted({low, high})]
    return [*kept, points[-1]]


def _line(name: str, points: Points) -> dict[str, Any]:
    drawn = thinned(points)
    # Nine digits distinguish all float32 values.
    y = [float(f"{y:.9g}") for _, y in drawn]
    return {"name": name, "x": [int(x) if x.is_integer() else x for x, _ in drawn], "y": y}


def _events(journal: Mapping[str, Sample], kind: str) -> list[dict[str, Any]]:
    sample = journal.get(kind)
    return sample.events if sample else []


def _in_order(lines: Mapping[str, Mapping[float, float]]) -> Lines:
    """Return lines with training first, and their points in order."""
    names = sorted(lines, key=lambda name: name != "train")
    return {name: sorted(lines[name].items()) for name in names}


_COLORS = 10  # one for each part of the time
_MOST_CHECKPOINTS = 12
_MOST_PLANS = 12
_MOST_FIGURE_BYTES = 4 * disk.MOST_BYTES


def write_report(run_dir: Path) -> Path:
    """Write `report.html` into a run directory."""
    page = render(run_dir)
    disk.write_whole(run_dir, "report.html", page.encode(errors="replace"))
    return run_dir / "report.html"


def render(run_dir: Path) -> str:
    """Return the page; a missing file leaves its section out."""
    record = runs.open(run_dir)
    plan = record.json("plan.json")
    drawn = {
        "x": "step",
        "best": best_mark(record.best, record.journal),
        "charts": charts(record.journal),
    }
    return rendered(
        "report.html.jinja",
        name=run_dir.resolve().name,
        heading=_heading(record),
        origin=record.origin,
        curves=drawn,
        sampled=_sampled(record),
        scores=_rows(record.last_epoch),
        checkpoints=_checkpoints(record),
        inexact=record.inexact,
        shares=_shares(record),
        advice=str(record.finished.get("advice", "")),
        plans=_plans(_listed(plan.get("changes"))),
        settings=_settings(_listed(plan.get("settings"))),
        notes=[str(note) for note in _listed(plan.get("notes"))],
        exports=export_rows(run_dir),
        figures=_figures(run_dir),
        texts=[("Model", record.text("model.txt")), ("Config", record.text("config.yaml"))],
        environment=_rows(record.json("environment.json")),
    )


def _heading(record: RunRecord) -> str:
    status = record.status
    known = [str(status.get("status", "unknown")), f"{number(status.get('step')) or 0:,.0f} steps"]
    seconds = number(record.finished.get("seconds"))
    if seconds is not None:
        known.append(f"{seconds:,.1f} s")
    return " · ".join(known)


def _sampled(record: RunRecord) -> list[str]:
    """Return which part of a long journal the curves show."""
    words = {"epoch_ended": "epochs", "validated": "validations"}
    samples = [(word, record.journal.get(kind)) for kind, word in words.items()]
    return [
        f"The curves show 1 of every {sample.every:,} of the {sample.count:,} {word}."
        for word, sample in samples
        if sample is not None and sample.every > 1
    ]


def _checkpoints(record: RunRecord) -> list[tuple[str, str]]:
    rows = list[tuple[str, str]]()
    if record.best is not None:
        metric, score, step = record.best
        rows.append((f"best checkpoint by {metric}", f"step {step:,}: {score:.6g}"))
    steps = [f"{entry.step:,}" for entry in record.checkpoints]
    if len(steps) > _MOST_CHECKPOINTS:
        steps = [f"{len(steps):,} checkpoints, the newest", *steps[-_MOST_CHECKPOINTS:]]
    return [*rows, ("kept at steps", ", ".join(steps))] if steps else rows


def _shares(record: RunRecord) -> list[dict[str, str]]:
    rows, start = list[dict[str, str]](), 0.0
    for at, (name, share) in enumerate(record.shares):
        place = {"start": f"{100 * start:.2f}", "width": f"{100 * share:.2f}"}
        rows.append({"name": name, "percent": f"{share:.1%}", "color": str(at % _COLORS), **place})
        start += share
    return rows


def _plans(changes: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the rows of the table of plans; consecutive trials are one row."""
    rows = list[dict[str, Any]]()
    for change in map(mapping, changes):
        step, plan = number(change.get("step")), _plan(change)
        if step is None:
            continue
        place = f"after step {step:,.0f}"
        if change.get("trial") is not True:
            rows.append({"place": place, "text": plan, "trials": []})
            continue
        # Between two trials, the current plan runs.
        if len(rows) > 2 and rows[-2]["trials"] and rows[-1]["text"] == rows[-3]["text"]:
            rows.pop()
        if not rows or not rows[-1]["trials"]:
            rows.append({"place": place, "text": "", "trials": []})
        trials = [*rows[-1]["trials"], (place, plan)]
        count = len({plan for _, plan in trials})
        text = f"measured {count} other plan{'' if count == 1 else 's'}"
        rows[-1] |= {"trials": trials, "text": text}
    return rows[-_MOST_PLANS:]


def _settings(changes: Sequence[Any]) -> list[tuple[str, str]]:
    """Return the rows of the table of process settings."""
    rows = list[tuple[str, str]]()
    for change in map(mapping, changes):
        try:
            text = settings.parsed({k: v for k, v in change.items() if k != "step"}).in_words
        except (ValueError, TypeError):
            text = "unknown"
        rows.append((f"after step {number(change.get('step')) or 0:,.0f}", text))
    return rows


def _plan(change: Mapping[str, Any]) -> str:
    return ", ".join(f"{part}={v}" for part, v in mapping(change.get("plan")).items() if v)


def _figures(run_dir: Path) -> list[dict[str, str]]:
    names = [name for name in disk.names(run_dir, "figures") if name.endswith(".png")]
    statuses = [disk.status(run_dir, f"figures/{name}") for name in names]
    if sum(found.st_size for found in statuses if found) > _MOST_FIGURE_BYTES:
        raise disk.unsafe(run_dir, "figures", f"more than {_MOST_FIGURE_BYTES:,} bytes of images")
    return [
        {
            "name": name.removesuffix(".png"),
            "data": base64.b64encode(disk.read(run_dir, f"figures/{name}")).decode(),
        }
        for name in names
    ]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _rows(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(str(name), _cell(value)) for name, value in values.items()]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value)
