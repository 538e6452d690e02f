"""MLflow as a tracker: `lw.sinks.MLflow(...)`, and `sinks: [mlflow]` in configs."""

import hashlib
import logging
import os
import posixpath
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, final
from urllib.parse import urlsplit, urlunsplit

from loopwright import disk, extras, untrusted
from loopwright.errors import ConfigurationError, first_line
from loopwright.sinks.outbox import Facts, Row, Status, TrackedRun, Tracker

_KEY = "loopwright.run_id"
_SQLITE: Final = "sqlite:///"
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
_SERVICES = ("databricks", "databricks-uc", "uc")  # addresses without a scheme
_STAGED = ".loopwright-mlflow.tmp-"
_STATUS = {"completed": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
_LONGEST_NAME, _LONGEST_PARAMETER, _LONGEST_TAG = 250, 6000, 8000
_PROBE_SECONDS = 5.0


def MLflow(
    tracking_uri: str | None = None,
    *,
    experiment: str | None = None,
    run_name: str | None = None,
    artifacts: Sequence[str] = (),
    running: bool = False,
    wait_seconds: float = 10.0,
) -> Tracker:
    """Return a sink that brings a run to MLflow: each point once, also after kills and resumes.

    `tracking_uri` and `experiment` are by default those of MLflow: `MLFLOW_TRACKING_URI`,
    `MLFLOW_EXPERIMENT_NAME`. `run_name` is by default the name of the run directory. `artifacts`
    are files to send at the end: "report", "figures", "checkpoints", "export". `running=True` also
    sends the running values of the epoch, once a second, as `batch_loss`. At the end of a run
    training waits for MLflow at most `wait_seconds`.
    """
    service = MLflowService(tracking_uri, experiment, run_name)
    return Tracker(service, artifacts=artifacts, running=running, wait_seconds=wait_seconds)


@final
class MLflowService:
    """A tracking server, a database or a directory of MLflow."""

    tracker = "mlflow"

    def __init__(
        self, tracking_uri: str | None, experiment: str | None, run_name: str | None
    ) -> None:
        self._mlflow = extras.imported("mlflow", "The sink MLflow", instead="leave the sink out")
        self._uri = _make_absolute(tracking_uri or self._mlflow.get_tracking_uri())
        self._experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default"
        self._run_name, self._run_id = run_name, ""
        shown = _hide_password(self._uri)
        self.address: Mapping[str, str] = {"tracking_uri": shown, "experiment": self._experiment}
        self._client: Any = None
        self._known = set[tuple[str, int]]()
        try:
            if urlsplit(self._uri).scheme.partition("+")[0] in _DATABASES:
                _require_database(self._uri)
            else:
                self._client = self._mlflow.MlflowClient(self._uri)
        except disk.UnsafeFileError:
            raise
        except Exception as error:
            raise ConfigurationError(
                "MLflow does not accept this tracking_uri.",
                expected="http://HOST:PORT, sqlite:///FILE, or another address of MLflow",
                received=f"{shown}: {first_line(error)[:300]}",
                do="correct tracking_uri, or MLFLOW_TRACKING_URI",
            ) from None

    def open(self, run: TrackedRun, *, is_training: bool) -> None:
        """Find the tracked run, or create it, and ask which points it has."""
        if self._uri.startswith(("http://", "https://")):
            import requests

            # MLflow itself would try for minutes.
            requests.get(f"{self._uri.rstrip('/')}/health", timeout=_PROBE_SECONDS)
        if self._client is None:
            if self._uri.startswith(_SQLITE):
                _create_database(Path(self._uri.removeprefix(_SQLITE)))
            self._client = self._mlflow.MlflowClient(self._uri)
        client = self._client
        self._run_id = run.content.get("run_id") or self._find_or_create(run)
        run.note(run_id=self._run_id)
        tracked = client.get_run(self._run_id)
        name, stage = tracked.info.run_name, tracked.info.lifecycle_stage
        if stage == "deleted" or run.key not in (name, tracked.data.tags.get(_KEY)):
            raise ConfigurationError(
                f"the tracked run {self._run_id} was deleted in MLflow, or belongs to another run; "
                f"restore it there, or delete {run.directory}/trackers to start a new tracked run"
            )
        if name == run.key:
            client.update_run(self._run_id, name=self._run_name or run.name)
        if is_training and tracked.info.status != "RUNNING":
            client.update_run(self._run_id, status="RUNNING")
        self._known = {
            (name, point.step)
            for name in tracked.data.metrics
            for point in client.get_metric_history(self._run_id, name)
        }

    def describe(self, facts: Facts) -> None:
        """Log parameters, tags and signatures; a parameter that changed becomes a tag."""
        from mlflow.entities import Param, RunTag

        known = self._client.get_run(self._run_id).data
        given = {valid_name(n): value[:_LONGEST_PARAMETER] for n, value in facts.parameters.items()}
        new = [Param(name, value) for name, value in given.items() if name not in known.params]
        tags = dict(facts.tags)
        if "loopwright.git.revision" in tags:
            tags["mlflow.source.git.commit"] = tags["loopwright.git.revision"]
        for name, value in given.items():
            if known.params.get(name, value) != value:
                tags[f"loopwright.changed.{name}"[:_LONGEST_NAME]] = value
        for some in _in_batches(new, 100):
            self._client.log_batch(self._run_id, params=some)
        listed = [RunTag(name, value[:_LONGEST_TAG]) for name, value in tags.items()]
        for some in _in_batches([t for t in listed if known.tags.get(t.key) != t.value], 100):
            self._client.log_batch(self._run_id, tags=some)
        if facts.signatures:
            self._client.log_dict(self._run_id, dict(facts.signatures), "signature.json")

    def send(self, rows: Sequence[Row]) -> None:
        """Log the points that MLflow does not have; it would keep both of two with other times."""
        from mlflow.entities import Metric

        points = [
            Metric(valid_name(name), value, int(row.seconds * 1000), row.step)
            for row in rows
            for name, value in row.values.items()
        ]
        for some in _in_batches([p for p in points if (p.key, p.step) not in self._known], 1000):
            self._client.log_batch(self._run_id, metrics=some)
            self._known.update((point.key, point.step) for point in some)

    def upload(self, files: Mapping[str, Path]) -> None:
        """Log files under their paths in the run directory."""
        for name, path in files.items():
            self._client.log_artifact(self._run_id, str(path), posixpath.dirname(name) or None)

    def close(self, status: Status) -> None:
        """Set the status and the end of the tracked run."""
        self._client.set_terminated(self._run_id, _STATUS[status])

    def _find_or_create(self, run: TrackedRun) -> str:
        """Return the id of the run that a killed process created, or of a new one.

        A run has its key as its name until its id is noted: a directory as a store writes the tags
        of a new run after its name.
        """
        experiment = self._client.get_experiment_by_name(self._experiment)
        if experiment is None:
            place = self._client.create_experiment(self._experiment)
        else:
            place = experiment.experiment_id
        for tracked in self._client.search_runs([place], f"attributes.run_name = '{run.key}'"):
            return tracked.info.run_id
        return self._client.create_run(place, tags={_KEY: run.key}, run_name=run.key).info.run_id


def _require_database(uri: str) -> None:
    """Raise if packages or the directory of its file are missing, or the file is unsafe."""
    if not extras.is_installed("sqlalchemy"):
        raise ImportError(
            "a database needs the complete MLflow, and this is mlflow-skinny: pip install mlflow, "
            "or start `mlflow server` elsewhere and pass its http address"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its models, which are made by this import
        import mlflow.store.tracking.sqlalchemy_store  # noqa: F401
        from sqlalchemy.engine import make_url

        url = make_url(uri)
    # MLflow logs a traceback for each lock; the warning of the tracker says it in a line.
    logging.getLogger("mlflow.store.db.utils").addFilter(_is_of_another_thread)
    if url.get_backend_name() == "sqlite" and url.database:
        path = Path(url.database)
        untrusted.require_sqlite(path)
        if not os.access(path.parent, os.W_OK):
            raise OSError(f"{path.parent} is not a directory that can be written to")


def _create_database(path: Path) -> None:
    """Create the tables of a new sqlite file under another name, then rename the file.

    A process that is killed while MLflow creates tables would leave a file that no process can
    use any more.
    """
    with disk.directory(path.parent) as home:
        if disk.status(path.parent, path.name) is not None:
            return
        from mlflow import MlflowClient

        disk.lock(home, wait=True)  # another run may create the same file
        disk.delete_abandoned(path.parent, _STAGED)
        if disk.status(path.parent, path.name) is None:
            with disk.staged(path.parent, _STAGED) as directory:
                MlflowClient(f"{_SQLITE}{directory / path.name}").search_experiments(max_results=1)
                disk.flush(directory, path.name)
                disk.move(directory, path.name, path.parent, path.name)


def _is_of_another_thread(record: logging.LogRecord) -> bool:
    return not (record.threadName or "").startswith("loopwright-")


def _hide_password(uri: str) -> str:
    """Return an address without user and password, to be shown and written to files.

    >>> _hide_password("https://ada:secret@tracking.example/api")
    'https://tracking.example/api'
    """
    parts = urlsplit(uri)
    if "@" not in parts.netloc:
        return uri
    return urlunsplit((parts[0], parts.netloc.rpartition("@")[2], *parts[2:]))


def _make_absolute(uri: str) -> str:
    """Return an address that is the same in every working directory.

    >>> _make_absolute("http://127.0.0.1:5000"), _make_absolute("sqlite:////tmp/mlflow.db")
    ('http://127.0.0.1:5000', 'sqlite:////tmp/mlflow.db')
    >>> _make_absolute("databricks")
    'databricks'
    """
    if uri.startswith(_SQLITE):
        return f"{_SQLITE}{Path(uri.removeprefix(_SQLITE)).absolute()}"
    return uri if urlsplit(uri).scheme or uri in _SERVICES else Path(uri).absolute().as_uri()


def valid_name(name: str) -> str:
    """Return a name of a metric or a parameter as MLflow accepts it.

    >>> valid_name("gradient_norm/model.layers[0].kernel"), valid_name("../a b")
    ('gradient_norm/model.layers_0_.kernel', '_/a b')
    """
    valid = re.sub(r"[^\w./ -]", "_", name, flags=re.ASCII)
    valid = "/".join(part if part.strip(".") else "_" for part in valid.split("/") if part) or "_"
    if len(valid) <= _LONGEST_NAME:
        return valid
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{valid[: _LONGEST_NAME - 9]}-{digest}"


def _in_batches(items: Sequence[Any], size: int) -> Iterable[Sequence[Any]]:
    return (items[at : at + size] for at in range(0, len(items), size))
