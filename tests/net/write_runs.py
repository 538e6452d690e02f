"""Writes interrupted runs into `tests/net/runs`: `python -m tests.net.write_runs [NAME ...]`.

The runs there were written by the source of 2026-11-18, before it was cut; later source resumes
them or says why it does not. So they are not written again. What they train is here and in
`small_trainings`, and is as old as they are.
"""

import hashlib
import io
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from tests.distribute.workers import Workers
from tests.net.small_trainings import Gan, _spoiled, arrays, supervised
from tests.search import searching

import loopwright as lw
from loopwright.search import trial_process

HERE = Path(__file__).with_name("runs")
ROOT = Path(__file__).parents[2]
ELSEWHERE = "/project"
"""Stands in the fixtures for the directory that they are unpacked in."""
JOB = """
from tests.net import write_runs

def experiment():
    return write_runs.experiment()
"""


class Killed(keras.callbacks.Callback):
    """Kills its own process at the end of an epoch, some steps after the last checkpoint."""

    def __init__(self, epoch: int | None, after_seconds: float = 0.5) -> None:
        super().__init__()
        self.at, self.after_seconds = epoch, after_seconds

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Do not restore when to be killed."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == self.at:
            time.sleep(self.after_seconds)  # until checkpoint and trackers are written
            os.kill(os.getpid(), signal.SIGKILL)


def arrays_fused(run: str, killed: int | None) -> lw.Trainer:
    return _fitted(supervised("adam"), "fused", run, killed, *arrays(), validation_split=0.25)


def stream_with_callbacks(run: str, killed: int | None) -> lw.Trainer:
    keras.utils.set_random_seed(1)  # the dataset draws by it
    rows = tf.data.Dataset.from_tensor_slices(arrays()).shuffle(40, seed=7).batch(8)
    used = [
        keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=10.0),
        keras.callbacks.EarlyStopping("val_loss", patience=9, restore_best_weights=True),
    ]
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9, use_ema=True, ema_momentum=0.9)
    data = {"validation_data": arrays(12), "callbacks": used}
    return _fitted(supervised(optimizer), "graph", run, killed, rows, **data)


def gan_with_two_legs(run: str, killed: int | None) -> lw.Trainer:
    task = Gan()
    trainer = lw.Trainer(task, plan="graph", run_dir=run)
    fit: dict[str, Any] = {"batch_size": 8, "save_every": "3 steps", "verbose": 0}
    trainer.fit(arrays()[0], callbacks=[Killed(None)], **fit)
    task.generator_optimizer.learning_rate = 0.001
    trainer.fit(arrays()[0], epochs=3, callbacks=[Killed(killed)], **fit)
    return trainer


def rolled_back(run: str, killed: int | None) -> lw.Trainer:
    """A batch is passed over in each epoch."""
    data = _spoiled()
    return _fitted(supervised(), "graph", run, killed, *data, shuffle=False, on_nan="rollback")


def left_unfinished(run: str, killed: int | None) -> lw.Trainer:
    """The third checkpoint is written, and has not got its name: `.tmp-` is left behind."""
    commits = iter(range(3))

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        is_commit = event == "os.rename" and re.fullmatch(r"step-\d+", str(arguments[1]))
        if is_commit and next(commits, None) == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    if killed is not None:
        sys.addaudithook(hook)
    return _fitted(supervised("adam"), "graph", run, None, *arrays())


def two_workers(run: str, killed: int | None) -> None:
    sys.argv[:] = ["two_workers.py"]  # it is recorded
    _fitted(lambda: supervised("adam"), "graph", run, killed, *arrays(), strategy="auto")


def with_mlflow(run: str, killed: int | None) -> None:
    sink = lw.sinks.MLflow("sqlite:///mlflow.db", experiment="old")
    _fitted(supervised(), "graph", run, killed, *arrays(), sinks=[sink], after_seconds=15.0)


def with_wandb(run: str, killed: int | None) -> None:
    sink = lw.sinks.WandB("old", mode="offline")
    _fitted(supervised(), "graph", run, killed, *arrays(), sinks=[sink], after_seconds=15.0)


def _fitted(
    task: Any, plan: Any, run: str, killed: int | None, *data: Any, **options: Any
) -> lw.Trainer:
    chosen = {
        name: options.pop(name) for name in ("on_nan", "sinks", "strategy") if name in options
    }
    trainer = lw.Trainer(task, plan=plan, run_dir=run, **chosen)
    ends = Killed(killed, options.pop("after_seconds", 0.5))
    callbacks = [*options.pop("callbacks", []), ends]
    batch = {} if isinstance(data[0], tf.data.Dataset) else {"batch_size": 8}
    trainer.fit(
        *data, **batch, epochs=4, save_every="3 steps", callbacks=callbacks, verbose=0, **options
    )
    return trainer


def experiment() -> lw.Experiment:
    """What `JOB` trains; an environment variable says when it is killed."""
    x, y = arrays()
    killed = os.environ.get("KILLED_AT")
    callbacks = [Killed(None if killed is None else int(killed))]
    fit = {"x": x, "y": y, "batch_size": 8, "epochs": 4, "save_every": "3 steps"}
    return lw.Experiment(lambda: supervised("adam"), fit={**fit, "callbacks": callbacks})


def _in_child(code: str, cwd: Path, **variables: str) -> None:
    """Run code that ends by a kill; without a command line, which would be in the fixture."""
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=cwd, env=environment(**variables), check=False)
    assert done.returncode == -signal.SIGKILL, done.returncode


def environment(**variables: str) -> dict[str, str]:
    quiet = {"LOOPWRIGHT_CACHE_DIR": "", "MLFLOW_DISABLE_TELEMETRY": "true", "WANDB_SILENT": "true"}
    meta = {"WANDB_X_DISABLE_META": "true", "WANDB_X_DISABLE_MACHINE_INFO": "true"}
    return {**os.environ, "PYTHONPATH": str(ROOT), **quiet, **meta, **variables}


def _killed(name: str) -> Callable[[Path], None]:
    code = f"from tests.net import write_runs; write_runs.{name}('run', 2)"
    return lambda project: _in_child(code, project)


def _train(*words: str) -> str:
    """Return code that is `loopwright train` without a command line."""
    argv = ["loopwright", "train", *words, "--run-dir", "run", "plan=graph"]
    return f"import sys; sys.argv[:] = {argv}; from loopwright.cli.main import main; main()"


def _write_settings(project: Path) -> None:
    """The first start has oneDNN off, the second has it on, the third is to come."""
    project.joinpath("old_job.py").write_text(JOB)
    for onednn, epoch in ((0, 1), (1, 2)):
        variables = {"TF_ENABLE_ONEDNN_OPTS": str(onednn), "KILLED_AT": str(epoch)}
        _in_child(_train("old_job:experiment"), project, **variables)


def _write_workers(project: Path) -> None:
    os.environ["LOOPWRIGHT_CACHE_DIR"] = ""
    os.chdir(project)
    workers = Workers(project / "logs", 2, two_workers, "run", 2)
    ends = workers.ended()
    assert [code for code, _ in ends] == [-signal.SIGKILL] * 2, ends


def _write_recipe(name: str, wanted: str) -> Callable[[Path], None]:
    """A recipe that is killed as soon as a file is there."""

    def write(project: Path) -> None:
        words = [sys.executable, "-c", _train(name, "quick=true")]
        child = subprocess.Popen(words, cwd=project, env=environment())
        while not list(project.glob(wanted)) and child.poll() is None:
            time.sleep(0.01)
        child.kill()
        assert child.wait() == -signal.SIGKILL

    return write


def study(directory: str) -> Any:
    """Search with trials that do not train; the second of four is killed."""
    trial_process.PROGRAM[:] = searching.QUICK
    return searching.study(directory, 4)


def _write_study(project: Path) -> None:
    code = "from tests.net import write_runs; write_runs.study('run')"
    variables = environment(QUICK_TRIAL_SECONDS="0.5")
    child = subprocess.Popen([sys.executable, "-c", code], cwd=project, env=variables)
    while not list(project.glob("run/trials/0001/metrics.jsonl")):
        time.sleep(0.01)
    child.kill()
    child.wait()
    time.sleep(1.0)  # until the trial has noticed


WRITERS: dict[str, Callable[[Path], None]] = {
    **{
        made.__name__: _killed(made.__name__)
        for made in (arrays_fused, stream_with_callbacks, gan_with_two_legs, rolled_back)
    },
    **{
        made.__name__: _killed(made.__name__) for made in (left_unfinished, with_mlflow, with_wandb)
    },
    "settings_changed": _write_settings,
    "two_workers": _write_workers,
    "recipe_gan": _write_recipe("gan", "run/environment.json"),
    "recipe_regression": _write_recipe("regression", "run/checkpoints/step-????????"),
    "study": _write_study,
}


def move(project: Path, old: str, new: str) -> None:
    """Change the directory that the files of trackers name."""
    for path in project.glob("run/trackers/mlflow-*.json"):
        content = json.loads(path.read_text().replace(old, new))
        address = json.dumps([content["tracker"], content["address"]], sort_keys=True)
        path.unlink()
        name = f"mlflow-{hashlib.sha256(address.encode()).hexdigest()[:8]}.json"
        path.with_name(name).write_text(json.dumps(content, indent=2))
    if (project / "mlflow.db").exists():
        with closing(sqlite3.connect(project / "mlflow.db")) as database, database:
            for column in ("experiments.artifact_location", "runs.artifact_uri"):
                table, name = column.split(".")
                database.execute(f"UPDATE {table} SET {name} = replace({name}, ?, ?)", (old, new))
            database.commit()
            database.execute("VACUUM")


def unpack(name: str, project: Path) -> None:
    """Unpack a fixture into a directory."""
    with tarfile.open(HERE / f"{name}.tar.gz") as packed:
        packed.extractall(project, filter="data")
    move(project, ELSEWHERE, str(project))


def pack(name: str, project: Path) -> None:
    """Pack what a writer has left, without what is made again, and without its directory."""
    move(project, str(project), ELSEWHERE)
    with tarfile.open(HERE / f"{name}.tar.gz", "w:gz") as packed:
        for path in sorted(project.rglob("*")):
            made_again = {"__pycache__", "logs", "report.html", "requirements.txt"}
            if not path.is_file() or made_again & set(path.relative_to(project).parts):
                continue
            content = path.read_bytes()
            assert str(ROOT).encode() not in content, path
            assert str(project).encode() not in content, path
            entry = tarfile.TarInfo(str(path.relative_to(project)))
            entry.size, entry.mode = len(content), path.stat().st_mode & 0o777
            packed.addfile(entry, io.BytesIO(content))


def main() -> None:
    HERE.mkdir(exist_ok=True)
    for name in sys.argv[1:] or WRITERS:
        with tempfile.TemporaryDirectory() as directory:
            project = Path(directory).resolve()
            WRITERS[name](project)
            pack(name, project)
        print(name, (HERE / f"{name}.tar.gz").stat().st_size)


if __name__ == "__main__":
    main()
