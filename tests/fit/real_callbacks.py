"""Callbacks of other packages, trained by Keras and by Loopwright: `python real_callbacks.py CASE`.

Each case makes a callback, and returns what it wrote, showed or sent. Packages are imported by the
cases themselves: the table in `docs/callbacks.md` is made of this list.
"""

import contextlib
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.sinks.wandb_files import rows_in

EPOCHS, STEPS = 4, 6


@dataclass(frozen=True)
class Case:
    """A callback as people use it, and what is compared."""

    package: str
    """As on PyPI."""
    call: str
    """As in a program."""
    compared: str
    """What has to be the same as with Keras `fit`."""
    run: Callable[[Path], "contextlib.AbstractContextManager[tuple[Any, Callable[[], Any]]]"]


Made = Iterator[tuple[Any, Callable[[], Any]]]


def _files(_: Any, place: Path) -> list[str]:
    return sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file())


@contextlib.contextmanager
def _wandb_run(place: Path) -> Iterator[Any]:
    import wandb

    settings = wandb.Settings(console="off", silent=True)
    run = wandb.init(mode="offline", dir=str(place), project="p", settings=settings)
    with contextlib.ExitStack() as ended:
        ended.callback(run.finish)
        yield run


def _wandb_rows(place: Path) -> list[dict[str, Any]]:
    (path,) = place.glob("wandb/offline-run-*/run-*.wandb")
    return [
        {name: value for name, value in row.items() if not name.startswith("_") or name == "_step"}
        for row in rows_in(path)
    ]


@contextlib.contextmanager
def _wandb_metrics(place: Path) -> Made:
    from wandb.integration.keras import WandbMetricsLogger

    with _wandb_run(place) as run:
        yield WandbMetricsLogger(log_freq=2), lambda: (run.finish(), _wandb_rows(place))[1]


@contextlib.contextmanager
def _wandb_checkpoint(place: Path) -> Made:
    from wandb.integration.keras import WandbModelCheckpoint

    with _wandb_run(place):
        callback = WandbModelCheckpoint(str(place / "model-{epoch:02d}.keras"), save_freq=5)
        yield callback, lambda: sorted(path.name for path in place.glob("*.keras"))


@contextlib.contextmanager
def _wandb_eval(place: Path) -> Made:
    from wandb.integration.keras import WandbEvalCallback

    predicted = []

    class Shown(WandbEvalCallback):
        def add_ground_truth(self, logs: Any = None) -> None:
            self.data_table.add_data(0, 0.0)

        def log_data_table(self, *_: Any, **__: Any) -> None:
            """Needs W&B online."""

        def add_model_predictions(self, epoch: int, logs: Any = None) -> None:
            found = float(self.model.predict(X[:1], verbose=0)[0, 0])
            predicted.append([epoch, round(found, 4)])
            self.pred_table.add_data(epoch, 0, 0.0, found)

    with _wandb_run(place):
        columns = ["id", "true"], ["epoch", "id", "true", "predicted"]
        yield Shown(*columns), lambda: predicted


@contextlib.contextmanager
def _mlflow_run(place: Path) -> Iterator[Any]:
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    import mlflow

    mlflow.set_tracking_uri((place / "mlruns").as_uri())
    mlflow.set_experiment("callbacks")
    with mlflow.start_run() as run:
        yield run


def _mlflow_points(run: Any, place: Path) -> dict[str, Any]:
    from mlflow import MlflowClient, flush_async_logging

    flush_async_logging()  # the callback logs with `synchronous=False`, in no order
    client = MlflowClient((place / "mlruns").as_uri())
    names = client.get_run(run.info.run_id).data.metrics
    return {
        name: sorted([m.step, m.value] for m in client.get_metric_history(run.info.run_id, name))
        for name in sorted(names)
    }


@contextlib.contextmanager
def _mlflow_metrics(place: Path) -> Made:
    with _mlflow_run(place) as run:
        from mlflow.keras import MlflowCallback

        callback = MlflowCallback(log_every_epoch=False, log_every_n_steps=5)
        yield callback, lambda: _mlflow_points(run, place)


@contextlib.contextmanager
def _mlflow_checkpoint(place: Path) -> Made:
    with _mlflow_run(place):
        from mlflow.tensorflow.callback import MlflowModelCheckpointCallback

        options: Any = {"save_freq": 7, "save_weights_only": True}
        callback = MlflowModelCheckpointCallback(**options)
        yield (
            callback,
            lambda: [
                re.sub(r".*/artifacts/", "", name)
                for name in _files(None, place)
                if "/checkpoints/" in name and name.endswith((".h5", ".keras"))
            ],
        )


def _optuna(upper: float) -> Any:
    @contextlib.contextmanager
    def made(_: Path) -> Made:
        import optuna
        from optuna_integration import KerasPruningCallback

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        pruner = optuna.pruners.ThresholdPruner(upper=upper, n_warmup_steps=2)
        study = optuna.create_study(pruner=pruner)
        trial = study.ask()
        callback = KerasPruningCallback(trial, "val_loss")
        yield callback, lambda: study._storage.get_trial(trial._trial_id).intermediate_values

    return made


@contextlib.contextmanager
def _tqdm(_: Path) -> Made:
    from tqdm.keras import TqdmCallback

    shown = io.StringIO()
    callback = TqdmCallback(verbose=2, file=shown, mininterval=0, leave=True)

    def last_lines() -> list[str]:
        text = shown.getvalue().replace("\r", "\n")
        counts = re.findall(r"(\d+)/(\d+) \[", text)
        return sorted({f"{done}/{total}" for done, total in counts})

    yield callback, last_lines


CASES = {
    "WandbMetricsLogger": Case(
        "wandb", "WandbMetricsLogger(log_freq=2)", "the rows of the offline file", _wandb_metrics
    ),
    "WandbModelCheckpoint": Case(
        "wandb",
        'WandbModelCheckpoint("model-{epoch:02d}.keras", save_freq=5)',
        "the files",
        _wandb_checkpoint,
    ),
    "WandbEvalCallback": Case(
        "wandb",
        "class Predictions(WandbEvalCallback)",
        "the predictions at the end of each epoch; `log_data_table` needs W&B online",
        _wandb_eval,
    ),
    "MlflowCallback": Case(
        "mlflow",
        "MlflowCallback(log_every_epoch=False, log_every_n_steps=5)",
        "the history of each metric",
        _mlflow_metrics,
    ),
    "MlflowModelCheckpointCallback": Case(
        "mlflow",
        "MlflowModelCheckpointCallback(save_freq=7, save_weights_only=True)",
        "the artifacts",
        _mlflow_checkpoint,
    ),
    "KerasPruningCallback": Case(
        "optuna-integration",
        'KerasPruningCallback(trial, "val_loss")',
        "the reported values",
        _optuna(upper=1e9),
    ),
    "KerasPruningCallback that prunes": Case(
        "optuna-integration",
        'KerasPruningCallback(trial, "val_loss"), pruned',
        "the reported values, and the error that ends the trial",
        _optuna(upper=-1.0),
    ),
    "TqdmCallback": Case("tqdm", "TqdmCallback(verbose=2)", "the counts it shows", _tqdm),
}

X: Any = None


def trained(route: str, case: Case, place: Path) -> dict[str, Any]:
    """Train with a callback; return the history, the weights, and what the callback did."""
    import keras
    import numpy as np

    import loopwright as lw

    global X  # noqa: PLW0603  (for the callbacks that predict)
    X = np.random.default_rng(0).normal(size=(48, 4)).astype("float32")
    y = X.sum(axis=1, keepdims=True)
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    parts = {"loss": "mse", "optimizer": keras.optimizers.SGD(0.05), "metrics": ["mae"]}
    if route == "keras":
        model.compile(**parts, jit_compile=False)
        fit = model.fit
    else:
        fit = lw.Trainer(lw.Supervised(model, **parts), plan="graph").fit
    error, history = "", {}
    with case.run(place) as (callback, output):
        try:
            found = fit(
                X,
                y,
                batch_size=8,
                shuffle=False,
                epochs=EPOCHS,
                validation_data=(X, y),
                callbacks=[callback],
                verbose=0,
            )
            history = {name: list(map(float, values)) for name, values in found.history.items()}
        except Exception as raised:
            error = type(raised).__name__
        done = output()
    weights = [float(number) for each in model.get_weights() for number in each.ravel()]
    return {"history": history, "weights": weights, "output": done, "error": error}


def main(name: str) -> None:
    """Print what both ways of training gave, as JSON in the last line."""
    found = {}
    for route in ("keras", "loopwright"):
        with tempfile.TemporaryDirectory() as place:
            found[route] = trained(route, CASES[name], Path(place))
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
