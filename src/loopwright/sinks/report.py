"""The report of a run: one page that needs nothing else, made from the files of its directory.

The page is a template that escapes whatever it is given: the files may come from somebody else.
"""

import base64
import functools
import hashlib
import json
import math
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

import jinja2

from loopwright import disk
from loopwright.checkpoints.manifest import Checkpoint
from loopwright.checkpoints.retention import Best, KeepBest, best_of, is_readable, kept_best
from loopwright.checkpoints.store import Store
from loopwright.config.file import saved_in
from loopwright.errors import CheckpointError, ConfigurationError, message
from loopwright.exactness import Inexact
from loopwright.sinks.curves import best_mark, charts
from loopwright.sinks.journal_sample import Sample, read_sample


@final
@dataclass(frozen=True)
class Record:
    """A run as its files tell of it; what is missing is empty."""

    directory: Path
    journal: Mapping[str, Sample]
    """Events by kind; of a long journal a sample."""

    @cached_property
    def status(self) -> dict[str, Any]:
        """Where the run is: `status`, `step`, `time`."""
        return self.json("status.json")

    @cached_property
    def inexact(self) -> str:
        """Why the run cannot be resumed exactly, in a sentence; empty if it can."""
        reasons = self.status.get("not_exactly_resumable")
        listed = reasons if isinstance(reasons, list) else []
        texts = [text for text in listed if isinstance(text, str)]
        return str(Inexact(tuple(texts))) if texts else ""

    @cached_property
    def finished(self) -> dict[str, Any]:
        """How the last leg ended."""
        return self._last("finished")

    @cached_property
    def last_epoch(self) -> dict[str, Any]:
        """The numbers of the last epoch, under the names that Keras gives them."""
        ended = self._last("epoch_ended")
        scores = {f"val_{name}": value for name, value in mapping(ended.get("validation")).items()}
        return {**mapping(ended.get("metrics")), **scores}

    @cached_property
    def checkpoints(self) -> list[Checkpoint]:
        """The checkpoints that are whole, the oldest first."""
        try:
            found = Store(self.directory / "checkpoints").all()
        except disk.UnsafeFileError:
            raise
        except CheckpointError:
            return []
        return [c for c in found if not c.damage and is_readable(c.content)]

    @cached_property
    def best(self) -> Best | None:
        """The checkpoint that `restore("best")` gives."""
        return best_of(self.checkpoints, rules_of(self.directory, self.checkpoints)[0])

    @cached_property
    def shares(self) -> list[tuple[str, float]]:
        """Where the time of the last leg went, the largest share first."""
        named = {name: number(spent) for name, spent in mapping(self.finished.get("spent")).items()}
        spent = {name: seconds for name, seconds in named.items() if seconds and seconds > 0}
        total = sum(spent.values())
        shares = [(name, seconds / total) for name, seconds in spent.items()]
        return sorted(shares, key=lambda share: -share[1])

    def json(self, name: str) -> dict[str, Any]:
        """The content of a file; nothing if there is none, or half of one."""
        text = self.text(name)
        try:
            return mapping(json.loads(text))
        except (ValueError, RecursionError):
            return {}

    def text(self, name: str) -> str:
        """The text of a file; empty if there is none."""
        try:
            return disk.read(self.directory, name).decode(errors="replace")
        except OSError:
            return ""

    def _last(self, event: str) -> dict[str, Any]:
        sample = self.journal.get(event)
        return sample.events[-1] if sample else {}


def rules_of(directory: Path, checkpoints: Sequence[Checkpoint]) -> list[KeepBest]:
    """The rules by which a run calls checkpoints the best: recorded, of its config, or default."""
    rules = kept_best(checkpoints)
    if rules is None:
        try:
            config = saved_in(directory)
        except disk.UnsafeFileError:
            raise
        except ConfigurationError:
            config = None
        asked = [] if config is None else config.keep
        rules = [KeepBest(k.best, k.count, k.mode) for k in asked if k.best]
    return rules or [KeepBest()]


def read_record(run_dir: Path) -> Record:
    """The record of a run; refused in words if there is none."""
    journal = read_sample(run_dir)
    if not journal:
        raise ConfigurationError(
            message(
                "There is nothing to report on.",
                expected="a run directory with a metrics.jsonl",
                received=str(run_dir),
                do="check the path, or train first",
            )
        )
    return Record(run_dir, journal)


# The files may have been written by somebody else: no field has to be what it should be.


def mapping(value: Any) -> dict[str, Any]:
    """The value if it is a dict, and an empty one otherwise."""
    return value if isinstance(value, dict) else {}


def number(value: Any) -> float | None:
    """The value if it is a finite number, and None otherwise.

    >>> number(3), number("3"), number(True), number(10**400)
    (3.0, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # of an int
        return None


_COLORS = 10  # one for each part of the time
_UPLOT = "vendored/uplot/"
_MOST_STEPS = 12
_MOST_PLANS = 12


def write_report(run_dir: Path) -> Path:
    """Writes `report.html` into a run directory."""
    page = render(run_dir)
    disk.write_whole(run_dir, "report.html", page.encode(errors="replace"))
    return run_dir / "report.html"


def render(run_dir: Path) -> str:
    """The page, from what lies in the directory; what is missing is left out."""
    record = read_record(run_dir)
    plan = record.json("plan.json")
    style = _packaged(f"{_UPLOT}uPlot.min.css") + _packaged("report.css")
    # uPlot's licence asks to be part of every copy, and each report holds one.
    library = f"/*\n{_packaged(f'{_UPLOT}LICENSE')}\n*/\n{_packaged(f'{_UPLOT}uPlot.iife.min.js')}"
    code = [library, _packaged("report.js")]
    drawn = {
        "x": "step",
        "best": best_mark(record.best, record.journal),
        "charts": charts(record.journal),
    }
    return _template().render(
        name=run_dir.resolve().name,
        heading=_heading(record),
        policy=_policy(code, style),
        code=code,
        style=style,
        curves=drawn,
        sampled=_sampled(record),
        scores=_rows(record.last_epoch),
        checkpoints=_checkpoints(record),
        inexact=record.inexact,
        shares=_shares(record),
        advice=str(record.finished.get("advice", "")),
        plans=_plans(_listed(plan.get("changes"))),
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


@functools.cache
def _packaged(name: str) -> str:
    content = pkgutil.get_data("loopwright", name)
    if content is None:
        raise FileNotFoundError(name)
    return content.decode()


def _policy(code: Sequence[str], style: str) -> str:
    """What the browser may do with the page: run and apply what this package wrote, by its hash."""
    scripts = " ".join(map(_hash, code))
    return (
        f"default-src 'none'; script-src {scripts}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _heading(record: Record) -> str:
    status = record.status
    known = [str(status.get("status", "unknown")), f"{number(status.get('step')) or 0:,.0f} steps"]
    seconds = number(record.finished.get("seconds"))
    if seconds is not None:
        known.append(f"{seconds:,.1f} s")
    return " · ".join(known)


def _sampled(record: Record) -> list[str]:
    """Which part of a long journal the curves are made of."""
    words = {"epoch_ended": "epochs", "validated": "validations"}
    samples = [(word, record.journal.get(kind)) for kind, word in words.items()]
    return [
        f"The curves show 1 of every {sample.every:,} of the {sample.count:,} {word}."
        for word, sample in samples
        if sample is not None and sample.every > 1
    ]


def _checkpoints(record: Record) -> list[tuple[str, str]]:
    rows = list[tuple[str, str]]()
    if record.best is not None:
        metric, score, step = record.best
        rows.append((f"best checkpoint by {metric}", f"step {step:,}: {score:.6g}"))
    steps = [f"{entry.step:,}" for entry in record.checkpoints]
    if len(steps) > _MOST_STEPS:
        steps = [f"{len(steps):,} checkpoints, the last ones", *steps[-_MOST_STEPS:]]
    return [*rows, ("kept at steps", ", ".join(steps))] if steps else rows


def _shares(record: Record) -> list[dict[str, str]]:
    rows, start = list[dict[str, str]](), 0.0
    for at, (name, share) in enumerate(record.shares):
        place = {"start": f"{100 * start:.2f}", "width": f"{100 * share:.2f}"}
        rows.append({"name": name, "percent": f"{share:.1%}", "color": str(at % _COLORS), **place})
        start += share
    return rows


def _plans(changes: Sequence[Any]) -> list[dict[str, Any]]:
    """The rows of the table of plans; a row has many trials, or none."""
    rows = list[dict[str, Any]]()
    for change in map(mapping, changes):
        step, plan = number(change.get("step")), _plan(change)
        if step is None:
            continue
        place = f"after step {step:,.0f}"
        if change.get("trial") is not True:
            rows.append({"place": place, "text": plan, "trials": []})
            continue
        # Between two trials, the plan in force has its turns.
        if len(rows) > 2 and rows[-2]["trials"] and rows[-1]["text"] == rows[-3]["text"]:
            rows.pop()
        if not rows or not rows[-1]["trials"]:
            rows.append({"place": place, "text": "", "trials": []})
        trials = [*rows[-1]["trials"], (place, plan)]
        count = len({plan for _, plan in trials})
        text = f"measured {count} other plan{'' if count == 1 else 's'}"
        rows[-1] |= {"trials": trials, "text": text}
    return rows[-_MOST_PLANS:]


def _plan(change: Mapping[str, Any]) -> str:
    return ", ".join(f"{part}={v}" for part, v in mapping(change.get("plan")).items() if v)


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
