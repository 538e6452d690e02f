"""What a tracker is told about a run besides its numbers, and the id of the tracked run.

`trackers/mlflow-1a2b3c4d.json` holds a random id of the run for one tracker. It is on disk before
the tracker hears of the run: a process that is killed while it creates the tracked run finds it
again by this id.
"""

import contextlib
import hashlib
import json
import posixpath
import re
import secrets
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, final

from loopwright import disk
from loopwright.config import file
from loopwright.errors import ConfigurationError, message
from loopwright.events import RunFacts
from loopwright.plans import plan_history
from loopwright.runs import RunRecord, mapping
from loopwright.sinks.report import render
from loopwright.sinks.tracked_rows import JOURNAL

HOME: Final = "trackers"
ARTIFACTS: Final = ("report", "figures", "checkpoints", "export")
_REPORT = "report.html"
_KEY = "[0-9a-f]{32}"


@final
@dataclass(frozen=True)
class Facts:
    """What is known about a run: parameters, tags, signatures of its models."""

    parameters: Mapping[str, str]
    tags: Mapping[str, str]
    signatures: Mapping[str, Any]


@final
class Artifact(NamedTuple):
    """A file of a run, copied to where a tracker may read it."""

    name: str
    """Its path in the run directory."""
    path: Path


@final
class TrackedRun:
    """A run as one tracker knows it; without a directory its id is lost with the process."""

    def __init__(self, directory: Path | None, tracker: str, address: Mapping[str, str]) -> None:
        self.directory, self._tracker, self._address = directory, tracker, dict(address)
        text = json.dumps([tracker, self._address], sort_keys=True)
        self._file = f"{HOME}/{tracker}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.json"
        self._content = self._read()

    @property
    def name(self) -> str:
        """The name under which a tracker lists the run, if the user gives none."""
        return "run" if self.directory is None else self.directory.resolve().name

    @property
    def key(self) -> str:
        """The random id by which the tracked run is found; on disk when this returns."""
        if "key" not in self._content:
            self._write(key=secrets.token_hex(16), tracker=self._tracker, address=self._address)
        return self._content["key"]

    @property
    def tracked_id(self) -> str | None:
        """The id that the tracker gave to the run; None if that is not known."""
        return self._content.get("run_id")

    def note_id(self, tracked_id: str) -> None:
        """Write the id that the tracker gave to the run."""
        if tracked_id != self.tracked_id:
            self._write(run_id=tracked_id)

    def note_facts(self, facts: RunFacts | None) -> None:
        """Write the hyperparameters and signatures of this start, for `loopwright sync`."""
        if facts is not None and self.key:  # the key is the first to be written
            known = {name: str(value) for name, value in facts.hyperparameters.items()}
            self._write(hyperparameters=known, signatures=dict(facts.signatures))

    def note_wanted(self, artifacts: Sequence[str], *, running: bool) -> None:
        """Write what the sink was asked for, for `loopwright sync`."""
        wanted = {"artifacts": list(artifacts), "running": running}
        if self._content.get("wanted") != wanted:
            self._write(wanted=wanted)

    @property
    def wanted(self) -> tuple[list[str], bool]:
        """The artifacts that are to be sent, and whether running values are."""
        wanted = mapping(self._content.get("wanted"))
        artifacts = wanted.get("artifacts")
        listed = artifacts if isinstance(artifacts, list) else []
        return [kind for kind in ARTIFACTS if kind in listed], wanted.get("running") is True

    def facts(self, environment: Mapping[str, Any] | None = None) -> Facts:
        """Return what is known: the flattened config, or else the hyperparameters."""
        parameters = mapping(self._content.get("hyperparameters"))
        tags = {"loopwright.run_id": self.key}
        if self.directory is not None:
            config = file.saved_in(self.directory)
            if config is not None:
                content = file.to_dict(config)
                content.pop("sinks", None)  # addresses may hold passwords
                parameters = flattened(content)
            environment = environment or RunRecord(self.directory).json("environment.json")
            tags |= {"loopwright.run": self.name, **_plan(self.directory)}
        tags |= _origin(environment or {})
        signatures = mapping(self._content.get("signatures"))
        return Facts({k: str(v) for k, v in parameters.items()}, tags, signatures)

    @contextlib.contextmanager
    def artifacts(self, kinds: Sequence[str]) -> Iterator[list[Artifact]]:
        """Copy the files of these kinds that the tracker does not have; they are deleted after.

        A tracker would follow symlinks in a run directory; the copies hold none.
        """
        with tempfile.TemporaryDirectory(prefix="loopwright-") as place:
            found = list[Artifact]()
            for name, state in self._states(kinds).items():
                if mapping(self._content.get("files")).get(name) == state:
                    continue
                self._copy(name, Path(place))
                found.append(Artifact(name, Path(place, name)))
            yield found

    def _copy(self, name: str, place: Path) -> None:
        directory = self.directory or Path()
        if name == _REPORT:  # that of a run which is about to end is not written yet
            disk.write_whole(place, name, render(directory).encode(errors="replace"))
        else:
            disk.make_directory(place, posixpath.dirname(name))
            disk.copy(directory, name, place, name)

    def note_artifacts(self, sent: Sequence[Artifact]) -> None:
        """Note that the tracker has these files."""
        states = self._states(ARTIFACTS)
        new = {each.name: states[each.name] for each in sent if each.name in states}
        if new:
            self._write(files={**mapping(self._content.get("files")), **new})

    def _states(self, kinds: Sequence[str]) -> dict[str, list[int]]:
        """Return the size and the time of change of every file of these kinds."""
        directory, states = self.directory, dict[str, list[int]]()
        if directory is None:
            return states
        for kind in kinds:
            for name in [JOURNAL] if kind == "report" else disk.files_below(directory, kind):
                found = disk.status(directory, name)
                if found is not None:
                    states[name] = [found.st_size, found.st_mtime_ns]
        if JOURNAL in states:  # what the report is made of
            figures = len(disk.files_below(directory, "figures"))
            states[_REPORT] = [*states.pop(JOURNAL), figures]
        return states

    def _read(self) -> dict[str, Any]:
        if self.directory is None or disk.status(self.directory, self._file) is None:
            return {}
        content = RunRecord(self.directory).json(self._file)
        tracked_id = content.get("run_id", "")
        is_valid = re.fullmatch(_KEY, str(content.get("key"))) is not None
        if not is_valid or not re.fullmatch(r"[\w-]{0,64}", str(tracked_id), re.ASCII):
            raise ConfigurationError(
                message(
                    f"{self.directory / self._file} is damaged.",
                    expected="the id of a tracked run, as Loopwright writes it",
                    received=f"key {content.get('key')!r:.40}, run_id {tracked_id!r:.40}",
                    do="delete the file: a new tracked run gets every point of this run",
                )
            )
        return content

    def _write(self, **changes: Any) -> None:
        self._content = {**self._content, **changes}
        if self.directory is not None:
            disk.make_directory(self.directory, HOME)
            text = json.dumps(self._content, indent=2) + "\n"
            disk.write_whole(self.directory, self._file, text.encode(), durable=True)


def addresses(run_dir: Path, tracker: str) -> list[dict[str, str]]:
    """Return where this tracker has runs of a run directory, as its files say."""
    found = list[dict[str, str]]()
    for name in disk.names(run_dir, HOME):
        if re.fullmatch(rf"{tracker}-[0-9a-f]{{8}}\.json", name):
            address = mapping(RunRecord(run_dir).json(f"{HOME}/{name}").get("address"))
            found.append({str(key): str(value) for key, value in address.items()})
    return found


def flattened(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values by their path.

    >>> flattened({"fit": {"epochs": 3}, "keep": [{"latest": 2}], "callbacks": []})
    {'fit.epochs': 3, 'keep.0.latest': 2, 'callbacks': []}
    """
    found = dict[str, Any]()
    for key, value in content.items():
        inner = value
        if isinstance(value, list) and any(isinstance(each, Mapping) for each in value):
            inner = {str(index): each for index, each in enumerate(value)}
        if isinstance(inner, Mapping) and inner:
            found |= flattened(inner, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def _plan(run_dir: Path) -> dict[str, str]:
    """Return the plan that ran the last steps of a run, as a tag."""
    plans = plan_history.recorded(run_dir)
    chosen = None if plans is None else plans.in_force
    return {} if chosen is None else {"loopwright.plan": str(chosen).strip("'")}


def _origin(environment: Mapping[str, Any]) -> dict[str, str]:
    """Return the revision of the code, the machine and the command of a run, as tags."""
    git, devices = mapping(environment.get("git")), environment.get("devices")
    found = dict[str, str]()
    if git.get("revision"):
        is_changed = " with changes" if git.get("is_changed") else ""
        found["loopwright.git_revision"] = f"{git['revision']}{is_changed}"
    if environment.get("processor"):
        listed = ", ".join(map(str, devices)) if isinstance(devices, list) else ""
        cores = environment.get("cores")
        found["loopwright.machine"] = f"{environment['processor']}, {cores} cores, {listed}"
    versions = ("loopwright", "tensorflow", "keras", "python")
    found |= {f"loopwright.version.{n}": str(environment[n]) for n in versions if n in environment}
    return found
