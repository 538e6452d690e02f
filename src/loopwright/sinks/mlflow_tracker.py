"""MLflow as a tracker: `lw.sinks.MLflow(...)`, and `sinks: [mlflow]` in configs."""

import contextlib
import hashlib
import json
import os
import posixpath
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, final
from urllib.parse import urlsplit

from loopwright import disk, extras
from loopwright.errors import ConfigurationError, first_line, message
from loopwright.sinks import mlflow_database as database
from loopwright.sinks.delivery import Status
from loopwright.sinks.tracked_rows import Known, Row
from loopwright.sinks.tracked_run import Artifact, Facts, TrackedRun
from loopwright.sinks.tracker import Tracker

_KEY = "loopwright.run_id"
_SERVICES = ("databricks", "databricks-uc", "uc")  # addresses without a scheme
_STATUS = {"completed": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
_LONGEST_NAME, _LONGEST_PARAMETER, _LONGEST_TAG = 250, 6000, 8000
_PARAMETERS_AT_ONCE = 100
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
    joins_rows = True

    def __init__(
        self, tracking_uri: str | None, experiment: str | None, run_name: str | None
    ) -> None:
        self._mlflow = extras.imported("mlflow", "The sink MLflow", instead="leave the sink out")
        self._uri = _absolute(tracking_uri or self._mlflow.get_tracking_uri())
        self._experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default"
        self._run_name = run_name
        self.address: Mapping[str, str] = {
            "tracking_uri": database.without_password(self._uri),
            "experiment": self._experiment,
        }
        self._client: Any = None
        self._run_id = ""
        self._described: Facts | None = None
        self._require_usable()

    def named(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return values under names that MLflow accepts."""
        found = dict[str, float]()
        for name, value in values.items():
            valid = valid_name(name)
            while valid in found:
                valid += "_"
            found[valid] = value
        return found

    def open(self, run: TrackedRun, *, is_training: bool) -> Known:
        """Find the tracked run, or create it, and read which points it has."""
        self._probe()
        if self._client is None:
            database.create(self._uri)
            self._client = self._mlflow.MlflowClient(self._uri)
        client, self._described = self._client, None
        is_new = False
        if run.tracked_id is None:
            found = self._found(run)
            is_new = found is None
            run.note_id(self._created(run) if found is None else found)
        self._run_id = run.tracked_id or ""
        tracked = client.get_run(self._run_id)
        if tracked.info.run_name == run.key:
            client.update_run(self._run_id, name=self._run_name or run.name)
        if is_new:
            return Known()
        if tracked.info.lifecycle_stage == "deleted":
            raise ConfigurationError(
                f"the tracked run {self._run_id} was deleted in MLflow; restore it there, or "
                f"delete {run.directory}/trackers to start a new tracked run"
            )
        if is_training and tracked.info.status != "RUNNING":
            client.update_run(self._run_id, status="RUNNING")
        names = list(tracked.data.metrics)
        return Known(
            {n: {m.step for m in client.get_metric_history(self._run_id, n)} for n in names}
        )

    def describe(self, facts: Facts) -> None:
        """Log parameters, tags and signatures; a parameter that changed becomes a tag."""
        before = self._described
        if facts == before:
            return
        from mlflow.entities import Param, RunTag

        tracked = self._client.get_run(self._run_id).data
        parameters = {
            valid_name(name): value[:_LONGEST_PARAMETER] for name, value in facts.parameters.items()
        }
        new = [Param(n, v) for n, v in parameters.items() if n not in tracked.params]
        changed = {
            f"loopwright.changed.{name}"[:_LONGEST_NAME]: value
            for name, value in parameters.items()
            if name in tracked.params and tracked.params[name] != value
        }
        revision = facts.tags.get("loopwright.git_revision", "").partition(" ")[0]
        git = {"mlflow.source.git.commit": revision} if revision else {}
        tags = [
            RunTag(name, value[:_LONGEST_TAG])
            for name, value in {**facts.tags, **git, **changed}.items()
            if tracked.tags.get(name) != value[:_LONGEST_TAG]
        ]
        for some in _in_batches(new):
            self._client.log_batch(self._run_id, params=some)
        for some in _in_batches(tags):
            self._client.log_batch(self._run_id, tags=some)
        if facts.signatures and (before is None or before.signatures != facts.signatures):
            self._log_text("signature.json", json.dumps(facts.signatures, indent=2))
        self._described = facts

    def send(self, rows: Sequence[Row]) -> None:
        """Log the numbers of rows."""
        database.require_unlocked(self._uri)
        from mlflow.entities import Metric

        points = [
            Metric(name, value, int(row.seconds * 1000), row.step)
            for row in rows
            for name, value in row.values.items()
        ]
        for some in _in_batches(points, 1000):
            self._client.log_batch(self._run_id, metrics=some)

    def upload(self, artifacts: Sequence[Artifact]) -> None:
        """Log files under their paths in the run directory."""
        database.require_unlocked(self._uri)
        for name, path in artifacts:
            folder = posixpath.dirname(name) or None
            self._client.log_artifact(self._run_id, str(path), folder)
        signatures = {} if self._described is None else self._described.signatures
        if signatures and any(name.startswith("export/") for name, _ in artifacts):
            self._log_model(signatures)

    def close(self, status: Status) -> None:
        """Set the status and the end of the tracked run."""
        database.require_unlocked(self._uri)
        self._client.set_terminated(self._run_id, _STATUS[status])

    def _log_model(self, signatures: Mapping[str, Any]) -> None:
        """Log an `MLmodel` with the signature of the export, as MLflow's pages show it."""
        # mlflow-skinny lacks packages that this needs; NumPy lacks some dtypes of TensorFlow.
        with contextlib.suppress(ImportError, TypeError, KeyError, ValueError):
            import numpy as np
            from mlflow.models import Model, ModelSignature
            from mlflow.types import Schema, TensorSpec

            def schema(tensors: Sequence[Mapping[str, Any]]) -> Schema:
                return Schema(
                    [
                        TensorSpec(
                            np.dtype(each["dtype"]),
                            tuple(-1 if size is None else size for size in each["shape"]),
                            str(each["name"]),
                        )
                        for each in tensors
                    ]
                )

            served = signatures.get("serve") or next(iter(signatures.values()))
            signature = ModelSignature(schema(served["inputs"]), schema(served["outputs"]))
            model = Model("export", run_id=self._run_id, signature=signature)
            self._log_text("export/MLmodel", model.to_yaml())

    def _found(self, run: TrackedRun) -> str | None:
        """Return the tracked run that a killed process created, and had no time to note."""
        experiment = self._client.get_experiment_by_name(self._experiment)
        if experiment is None:
            return None
        place = [experiment.experiment_id]
        by_key = self._client.search_runs(place, f"tags.`{_KEY}` = '{run.key}'")
        # A directory as a store writes the tags of a new run after its name.
        by_name = self._client.search_runs(place, f"attributes.run_name = '{run.key}'")
        found = sorted([*by_key, *by_name], key=lambda each: each.info.start_time)
        return found[0].info.run_id if found else None

    def _created(self, run: TrackedRun) -> str:
        experiment = self._client.get_experiment_by_name(self._experiment)
        if experiment is None:
            place = self._client.create_experiment(self._experiment)
        else:
            place = experiment.experiment_id
        # Under its key first: a kill in the middle leaves a run that can be found by it.
        made = self._client.create_run(place, tags={_KEY: run.key}, run_name=run.key)
        return made.info.run_id

    def _log_text(self, path: str, text: str) -> None:
        folder, name = posixpath.split(path)
        with tempfile.TemporaryDirectory(prefix="loopwright-") as place:
            disk.write_whole(Path(place), name, text.encode())
            self._client.log_artifact(self._run_id, str(Path(place, name)), folder or None)

    def _probe(self) -> None:
        """Raise if a server does not answer: MLflow itself would try for minutes."""
        if self._uri.startswith(("http://", "https://")):
            import requests

            requests.get(f"{self._uri.rstrip('/')}/health", timeout=_PROBE_SECONDS)
        database.require_unlocked(self._uri)

    def _require_usable(self) -> None:
        """Raise for an address that cannot work, before anything is trained."""
        scheme = urlsplit(self._uri).scheme
        try:
            if scheme.partition("+")[0] in database.SCHEMES:
                database.require_usable(self._uri)
            elif scheme == "file":
                _require_directory_store()
            else:
                self._client = self._mlflow.MlflowClient(self._uri)
        except ConfigurationError:
            raise
        except Exception as error:
            raise ConfigurationError(
                message(
                    "MLflow does not accept this tracking_uri.",
                    expected="http://HOST:PORT, sqlite:///FILE, or another address of MLflow",
                    received=f"{database.without_password(self._uri)}: {first_line(error)[:300]}",
                    do="correct tracking_uri, or MLFLOW_TRACKING_URI",
                )
            ) from None


def _require_directory_store() -> None:
    """Raise if MLflow refuses a directory as a store, as it does unless a variable is set."""
    from mlflow import environment_variables

    allowed = getattr(environment_variables, "MLFLOW_ALLOW_FILE_STORE", None)
    if allowed is not None and not allowed.get():
        raise ConfigurationError(
            message(
                "MLflow does not write to a directory any more, unless it is told to.",
                expected="the address of a server, or, with the complete mlflow, of a database: "
                "tracking_uri=sqlite:///mlflow.db",
                received="a directory as tracking_uri",
                do="use one of these, or set MLFLOW_ALLOW_FILE_STORE=true",
            )
        )


def _absolute(uri: str) -> str:
    """Return an address that is the same in every working directory.

    >>> _absolute("http://127.0.0.1:5000"), _absolute("sqlite:////tmp/mlflow.db")
    ('http://127.0.0.1:5000', 'sqlite:////tmp/mlflow.db')
    >>> _absolute("databricks")
    'databricks'
    """
    if uri.startswith("sqlite:///") and not uri.startswith("sqlite:////"):
        return f"sqlite:///{Path(uri.removeprefix('sqlite:///')).absolute()}"
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


def _in_batches(items: Sequence[Any], size: int = _PARAMETERS_AT_ONCE) -> Iterable[Sequence[Any]]:
    return (items[at : at + size] for at in range(0, len(items), size))
