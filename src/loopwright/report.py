"""The report of a run: one page that needs nothing else, made from the files of its directory."""

import base64
import html
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from loopwright.chart import chart
from loopwright.disk import write_whole
from loopwright.record import Record, read_record

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2125; --page: #fff; --soft: #5d6770; --rule: #d9dee3; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ec; --page: #15181b; --soft: #9aa5b0; --rule: #333a41; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page);
  max-width: 1120px; margin: 0 auto; padding: 1.2rem; }
h1 { font-size: 1.5rem; margin: 0 0 .2rem; } h2 { font-size: 1.1rem; margin: 1.8rem 0 .5rem; }
.soft { color: var(--soft); } .charts { display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(420px, 100%), 1fr)); }
svg, img { width: 100%; height: auto; } svg text { fill: var(--ink); font-size: 12px; }
svg .title { font-size: 15px; font-weight: 600; } svg .tick { fill: var(--soft); }
svg .grid { stroke: var(--rule); fill: none; }
svg polyline, svg [class^=line] { fill: none; stroke-width: 2; }
svg .dot { stroke: none !important; }
.line-0 { stroke: #1f77b4; } .line-1 { stroke: #e07a1f; } .line-2 { stroke: #2a9d5c; }
.line-3 { stroke: #c23b4b; } .line-4 { stroke: #8a63c9; } .line-5 { stroke: #8c6d4f; }
.dot.line-0 { fill: #1f77b4; } .dot.line-1 { fill: #e07a1f; } .dot.line-2 { fill: #2a9d5c; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; }
th { width: 38%; }
th, td { text-align: left; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--rule);
  vertical-align: top; overflow-wrap: anywhere; }
pre { overflow-x: auto; font-size: .85rem; border: 1px solid var(--rule); padding: .7rem; }
.share { display: flex; height: 1.1rem; border-radius: 3px; overflow: hidden; }
@media print { body { max-width: none; } h2 { break-after: avoid; } svg { break-inside: avoid; } }
"""
_COLORS = ("#1f77b4", "#e07a1f", "#2a9d5c", "#c23b4b", "#8a63c9", "#8c6d4f", "#7a8791")


def write_report(run_dir: Path) -> Path:
    """Writes `report.html` into a run directory."""
    page = render(run_dir)
    path = run_dir / "report.html"
    write_whole(path, page.encode())
    return path


def render(run_dir: Path) -> str:
    """The page, from what lies in the directory; what is missing is left out."""
    record = read_record(run_dir)
    sections = [
        _heading(record),
        _curves(record.events),
        _scores(record),
        _time(record),
        _plan(record.json("plan.json")),
        _figures(run_dir),
        _text("Model", run_dir / "model.txt"),
        _text("Config", run_dir / "config.yaml"),
        _table("Environment", record.json("environment.json")),
    ]
    title = html.escape(run_dir.resolve().name)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body>"
        f"{''.join(sections)}</body></html>\n"
    )


def curves(events: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Lines by metric and name: training and learning rates at the ends of epochs, validation."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}

    def add(metric: str, line: str, step: int, value: Any) -> None:
        if isinstance(value, int | float):
            found.setdefault(metric, {}).setdefault(line, []).append((step, float(value)))

    for event in events:
        if event["event"] == "epoch_ended":
            for name, value in event["metrics"].items():
                group, _, rest = name.partition("/")
                add(group, rest or "train", event["step"], value)
            for name, value in event.get("learning_rates", {}).items():
                owner, _, _ = name.rpartition("_learning_rate")
                add("learning rate", owner or "train", event["step"], value)
        elif event["event"] == "validated":
            for name, value in event["metrics"].items():
                add(name, "validation", event["step"], value)
    return {metric: _train_first(lines) for metric, lines in found.items()}


def _train_first(lines: dict[str, Any]) -> dict[str, Any]:
    return {name: lines[name] for name in sorted(lines, key=lambda name: name != "train")}


def _heading(record: Record) -> str:
    status = record.status
    known = [str(status.get("status", "unknown")), f"{status.get('step', 0):,} steps"]
    if record.finished:
        known.append(f"{record.finished['seconds']:,.1f} s")
    name = html.escape(record.directory.resolve().name)
    return f"<h1>{name}</h1><p class=soft>{' · '.join(known)}</p>"


def _curves(events: list[dict[str, Any]]) -> str:
    drawn = [chart(metric, lines, "step") for metric, lines in curves(events).items()]
    return f'<h2>Curves</h2><div class="charts">{"".join(drawn)}</div>' if any(drawn) else ""


def _scores(record: Record) -> str:
    rows: dict[str, Any] = {}
    if record.best is not None:
        metric, score, step = record.best
        rows[f"best checkpoint by {metric}"] = f"step {step:,}: {score:.6g}"
    rows["checkpoints"] = ", ".join(f"{entry.step:,}" for entry in record.checkpoints) or "none"
    return _table("Scores of the last epoch", {**rows, **record.last_epoch})


def _time(record: Record) -> str:
    if not record.shares:
        return ""
    bar = "".join(
        f'<span style="width:{100 * share:.2f}%;background:{_COLORS[i % len(_COLORS)]}"></span>'
        for i, (_, share) in enumerate(record.shares)
    )
    words = " · ".join(f"{html.escape(name)} {share:.1%}" for name, share in record.shares)
    advice = html.escape(str(record.finished.get("advice", "")))
    return (
        f'<h2>Where the time went</h2><div class="share">{bar}</div><p>{words}</p><p>{advice}</p>'
    )


def _plan(plans: Mapping[str, Any]) -> str:
    changes = plans.get("changes", [])
    rows = {
        f"after step {change['step']:,}": ", ".join(
            f"{part}={value}" for part, value in change["plan"].items() if value
        )
        for change in changes[-12:]
    }
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in plans.get("notes", []))
    return _table("Plan", rows) + (f"<ul class=soft>{notes}</ul>" if notes else "")


def _figures(run_dir: Path) -> str:
    shown = [
        f'<figure><img alt="{html.escape(path.stem)}" src="data:image/png;base64,'
        f'{base64.b64encode(path.read_bytes()).decode()}"></figure>'
        for path in sorted((run_dir / "figures").glob("*.png"))
    ]
    return f'<h2>Figures</h2><div class="charts">{"".join(shown)}</div>' if shown else ""


def _text(title: str, path: Path) -> str:
    if not path.is_file():
        return ""
    return f"<h2>{title}</h2><pre>{html.escape(path.read_text(encoding='utf-8'))}</pre>"


def _table(title: str, rows: Mapping[str, Any]) -> str:
    if not rows:
        return ""
    cells = "".join(
        f"<tr><th>{html.escape(str(name))}</th><td>{html.escape(_cell(value))}</td></tr>"
        for name, value in rows.items()
    )
    return f"<h2>{title}</h2><table>{cells}</table>"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value)
