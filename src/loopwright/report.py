"""The report of a run: one page that needs nothing else, made from the files of its directory.

The page is a template that escapes whatever it is given: the files may come from somebody else.
"""

import base64
import functools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jinja2

from loopwright import disk
from loopwright.chart import chart
from loopwright.record import Record, mapping, number, read_record

_COLORS = ("#1f77b4", "#e07a1f", "#2a9d5c", "#c23b4b", "#8a63c9", "#8c6d4f", "#7a8791")


def write_report(run_dir: Path) -> Path:
    """Writes `report.html` into a run directory."""
    page = render(run_dir)
    disk.write_whole(run_dir, "report.html", page.encode(errors="replace"))
    return run_dir / "report.html"


def render(run_dir: Path) -> str:
    """The page, from what lies in the directory; what is missing is left out."""
    record = read_record(run_dir)
    plan = record.json("plan.json")
    drawn = (chart(metric, lines, "step") for metric, lines in curves(record.events).items())
    return _template().render(
        name=run_dir.resolve().name,
        heading=_heading(record),
        charts=[each for each in drawn if each],
        inexact=record.inexact,
        scores=_scores(record),
        shares=_shares(record),
        advice=str(record.finished.get("advice", "")),
        plans=_plans(plan),
        notes=[str(note) for note in _listed(plan.get("notes"))],
        figures=_figures(run_dir),
        texts=[("Model", record.text("model.txt")), ("Config", record.text("config.yaml"))],
        environment=_rows(record.json("environment.json")),
    )


@functools.cache
def _template() -> jinja2.Template:
    loader = jinja2.PackageLoader("loopwright", ".")
    made = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    return made.get_template("report.html.jinja")


def curves(events: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Lines by metric and name: training and learning rates at the ends of epochs, validation."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}

    def add(metric: str, line: str, step: Any, value: Any) -> None:
        x, y = number(step), number(value)
        if x is not None and y is not None:
            found.setdefault(metric, {}).setdefault(line, []).append((x, y))

    for event in events:
        step, metrics = event.get("step"), mapping(event.get("metrics"))
        if event["event"] == "epoch_ended":
            for name, value in metrics.items():
                group, _, rest = name.partition("/")
                add(group, rest or "train", step, value)
            for name, value in mapping(event.get("learning_rates")).items():
                owner, _, _ = name.rpartition("_learning_rate")
                add("learning rate", owner or "train", step, value)
        elif event["event"] == "validated":
            for name, value in metrics.items():
                add(name, "validation", step, value)
    return {metric: _train_first(lines) for metric, lines in found.items()}


def _train_first(lines: dict[str, Any]) -> dict[str, Any]:
    return {name: lines[name] for name in sorted(lines, key=lambda name: name != "train")}


def _heading(record: Record) -> str:
    status = record.status
    known = [str(status.get("status", "unknown")), f"{number(status.get('step')) or 0:,.0f} steps"]
    seconds = number(record.finished.get("seconds"))
    if seconds is not None:
        known.append(f"{seconds:,.1f} s")
    return " · ".join(known)


def _scores(record: Record) -> list[tuple[str, str]]:
    rows: dict[str, Any] = {}
    if record.best is not None:
        metric, score, step = record.best
        rows[f"best checkpoint by {metric}"] = f"step {step:,}: {score:.6g}"
    rows["checkpoints"] = ", ".join(f"{entry.step:,}" for entry in record.checkpoints) or "none"
    return _rows({**rows, **record.last_epoch})


def _shares(record: Record) -> list[dict[str, str]]:
    return [
        {
            "name": name,
            "percent": f"{share:.1%}",
            "width": f"{100 * share:.2f}",
            "color": _COLORS[at % len(_COLORS)],
        }
        for at, (name, share) in enumerate(record.shares)
    ]


def _plans(plan: Mapping[str, Any]) -> list[tuple[str, str]]:
    changes = [mapping(change) for change in _listed(plan.get("changes"))[-12:]]
    rows = [(number(change.get("step")), mapping(change.get("plan"))) for change in changes]
    return [
        (f"after step {step:,.0f}", ", ".join(f"{part}={v}" for part, v in parts.items() if v))
        for step, parts in rows
        if step is not None
    ]


def _figures(run_dir: Path) -> list[dict[str, str]]:
    names = [name for name in disk.names(run_dir, "figures") if name.endswith(".png")]
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
