"""A small training with a tracker, in a process of its own, to be killed."""

import importlib
import json
import os
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np

import loopwright as lw
from loopwright.sinks import tracked_rows

EPOCHS = 40
Points = dict[tuple[str, int], list[float]]


def train(run_dir: Path, tracker: str, options: dict[str, Any], pause_seconds: float = 0.03) -> Any:
    """Train as far as it gets; returns the trainer."""
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.environ["WANDB_SILENT"] = "true"
    sink = getattr(lw.sinks, tracker)(**options) if tracker else None
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    trainer = lw.Trainer(
        lw.Supervised(model, "mse", "adam"),
        plan="graph",
        run_dir=run_dir,
        sinks=[] if sink is None else [sink],
    )
    x = np.random.default_rng(0).normal(size=(80, 4)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    slow = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: time.sleep(pause_seconds))
    trainer.fit(
        x,
        y,
        batch_size=8,
        validation_data=(x[:20], y[:20]),
        validate_every="7 steps",
        save_every="9 steps",
        epochs=EPOCHS,
        callbacks=[slow],
        verbose=0,
    )
    return trainer


def expected(run_dir: Path) -> Points:
    """What a tracker should have: every point of the journal once."""
    found: Points = {}
    for entry in tracked_rows.journal_entries(run_dir, running=False):
        for name, value in entry.values.items():
            found.setdefault((name, entry.step), []).append(value)
    return found


def in_mlflow(uri: str, experiment: str) -> tuple[Points, list[Any]]:
    """Every point of every run of an experiment in MLflow, and the runs."""
    from mlflow import MlflowClient

    client, found = MlflowClient(uri), Points()
    known = client.get_experiment_by_name(experiment)
    runs = list(client.search_runs([known.experiment_id])) if known else []
    for run in runs:
        for name in run.data.metrics:
            for point in client.get_metric_history(run.info.run_id, name):
                found.setdefault((name, point.step), []).append(point.value)
    return found, runs


def tell_mlflow(uri: str, experiment: str, file: Path) -> None:
    """Write what an MLflow store has: in a process of its own, which MLflow leaves threads in."""
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    points, runs = in_mlflow(uri, experiment)
    told = {
        "points": [[*key, values] for key, values in points.items()],
        "runs": [[run.info.run_name, run.info.status] for run in runs],
        "params": [run.data.params for run in runs],
        "tags": [run.data.tags for run in runs],
    }
    file.write_text(json.dumps(told))


def in_wandb(run_dir: Path) -> tuple[Points, set[str]]:
    """Every point of the offline files of a run, and the ids they name."""
    from loopwright.sinks import wandb_tracker

    messages: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    found, ids = Points(), set[str]()
    for path in sorted(run_dir.glob("wandb/offline-run-*/run-*.wandb")):
        for data in wandb_tracker.records_of(path.read_bytes()):
            record = messages.Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "run":
                ids.add(record.run.run_id)
            if record.WhichOneof("record_type") == "history":
                items = {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json)
                    for item in record.history.item
                }
                step = int(items["_step"])
                for name, value in items.items():
                    if not name.startswith("_"):
                        found.setdefault((name, step), []).append(float(value))
    return found, ids
