"""The report of a run: one self-contained page, made from the files of its directory.

The template escapes every value: the files may come from an untrusted source.
"""

import base64
import contextlib
import functools
import hashlib
import json
import pkgutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import jinja2

from loopwright import disk, runs
from loopwright.dispatch import RunFile, attempted
from loopwright.errors import printable
from loopwright.events import Event
from loopwright.plans import record as plan_record
from loopwright.runs import RunRecord, mapping, number
from loopwright.sinks.curves import best_mark, charts

_COLORS = 10  # one for each part of the time
_MOST_CHECKPOINTS = 12
_MOST_PLANS = 12
_MOST_FIGURE_BYTES = 4 * disk.MOST_BYTES


@final
class ReportFile(RunFile):
    """Writes the report when a training ends."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir

    def __call__(self, event: Event) -> None:
        """Do nothing: everything that the report shows is in other files."""

    def close(self) -> None:
        """Write the report."""
        with attempted("The report"):
            write_report(self._run_dir)


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
        "charts": charts({"": record.journal}),
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
            text = plan_record.settings_in_words(change)
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


_EXPORTS = "export"
_MOST_EXPORTS = 12


def export_rows(run_dir: Path) -> list[dict[str, Any]]:
    """Return the rows of the table of exports, the newest last; a symlink is left out."""
    names, record, rows = disk.names(run_dir, _EXPORTS), RunRecord(run_dir), list[Any]()
    versions = [f"{name}/loopwright.json" for name in names if name.isdigit()]
    for name in (*versions, *(name for name in names if name.endswith(".json"))):
        with contextlib.suppress(disk.UnsafeFileError):
            path = f"{_EXPORTS}/{name}"
            status = disk.status(run_dir, path)
            if status is not None:
                rows.append((status.st_mtime_ns, path, _export_row(path, record.json(path))))
    return [row for _, _, row in sorted(rows, key=lambda row: row[:2]) if row][-_MOST_EXPORTS:]


def _export_row(name: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row; empty if the file is not the comparison of an export."""
    difference, step = number(content.get("largest_difference")), number(content.get("step"))
    if difference is None or not isinstance(content.get("format"), str):
        return {}
    kinds = [
        content.get("format"),
        content.get("quantize"),
        "averaged" if content.get("averaged") else "",
    ]
    path = name.removesuffix("/loopwright.json").removesuffix(".json")
    return {
        "file": printable(path),
        "holds": printable(str(content.get("holds") or "")[:300]),
        "kind": printable(", ".join(str(kind) for kind in kinds if kind)),
        "step": "" if step is None else f"{step:,.0f}",
        "size": _size(number(content.get("bytes"))),
        "difference": f"{difference:.2g}",
        "runtime": printable(str(content.get("runtime") or "")[:80]),
    }


def _size(count: float | None) -> str:
    """Return a size in words.

    >>> _size(4680.0), _size(2.5e6), _size(None)
    ('4.7 kB', '2.5 MB', '')
    """
    if count is None:
        return ""
    unit, name = (1e6, "MB") if count >= 1e6 else (1e3, "kB")
    return f"{count / unit:,.1f} {name}"


_UPLOT = "vendored/uplot/"


def rendered(template: str, *, library: str = "", **fields: Any) -> str:
    """Return a page of this package, with its scripts and its style by hash; fields are escaped.

    `library` is the code of plotly, for a page with its figures instead of curves. It sets styles
    as attributes and compiles shaders: the policy allows both then, and still no other script.
    """
    style = _packaged("report.css")
    if library:
        code = [library, _packaged("study.js")]
        more, styles, images = " 'unsafe-eval'", "'unsafe-inline'", "data: blob:"
    else:
        style = _packaged(f"{_UPLOT}uPlot.min.css") + style
        # uPlot's licence must be in every copy, and each page contains a copy.
        licence, plot = _packaged(f"{_UPLOT}LICENSE"), _packaged(f"{_UPLOT}uPlot.iife.min.js")
        code = [f"/*\n{licence}\n*/\n{plot}", _packaged("report.js")]
        more, styles, images = "", _hash(style), "data:"
    policy = (
        f"default-src 'none'; script-src {' '.join(map(_hash, code))}{more}; style-src {styles}; "
        f"img-src {images}; base-uri 'none'; form-action 'none'"
    )
    page = _templates().get_template(template)
    return page.render(policy=policy, code=code, style=style, **fields)


@functools.cache
def _templates() -> jinja2.Environment:
    loader = jinja2.PackageLoader("loopwright.sinks", ".")
    return jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)


@functools.cache
def _packaged(name: str) -> str:
    content = pkgutil.get_data("loopwright.sinks", name)
    if content is None:
        raise FileNotFoundError(name)
    return content.decode()


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
