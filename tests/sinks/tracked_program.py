"""A small training with a tracker, in a process of its own, to be killed."""

import json
import os
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
from tests.sinks import wandb_files

import loopwright as lw

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
    """What a tracker should have: every point of the journal."""
    points: Points = {}
    for line in (run_dir / "metrics.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "validated":
            values = {f"val_{name}": value for name, value in event["metrics"].items()}
        elif event["event"] == "epoch_ended":
            values = event["metrics"] | event["learning_rates"]
        else:
            continue
        for name, value in values.items():
            points.setdefault((name, event["step"]), []).append(value)
    return points


def tell_mlflow(uri: str, experiment: str, file: Path) -> None:
    """Write what an MLflow store has: in a process of its own, which MLflow leaves threads in."""
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    from mlflow import MlflowClient

    client, points = MlflowClient(uri), Points()
    known = client.get_experiment_by_name(experiment)
    runs = list(client.search_runs([known.experiment_id])) if known else []
    for run in runs:
        for name in run.data.metrics:
            for point in client.get_metric_history(run.info.run_id, name):
                points.setdefault((name, point.step), []).append(point.value)
    told = {
        "points": [[*key, values] for key, values in points.items()],
        "runs": [[run.info.run_name, run.info.status] for run in runs],
        "params": [run.data.params for run in runs],
        "tags": [run.data.tags for run in runs],
    }
    file.write_text(json.dumps(told))


def in_wandb(run_dir: Path) -> tuple[Points, set[str]]:
    """Every point of the newest offline file of a run, and the ids that all files name."""
    points, files = Points(), sorted(run_dir.glob("wandb/offline-run-*/run-*.wandb"))
    for row in wandb_files.rows_in(files[-1]):
        for name, value in row.items():
            if not name.startswith("_"):
                points.setdefault((name, int(row["_step"])), []).append(float(value))
    return points, {path.name for path in files}
