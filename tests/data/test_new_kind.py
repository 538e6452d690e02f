"""A new kind of data is one class: it trains, resumes after a kill and is skipped forward."""

import os
import signal
import sys
import textwrap
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.processes import run_command
from tests.resume.program import digest

import loopwright as lw
from loopwright.data.source import Data, Epochs, Feed

BATCHES = 10


class Rows(Data):
    """Rows of a CSV file, in batches of four; the position is the number of batches read."""

    def __init__(self, path: Path) -> None:
        lines = tf.data.TextLineDataset(str(path))
        numbers = lines.map(lambda line: tf.strings.to_number(tf.strings.split(line, ",")))
        self._dataset = numbers.map(lambda row: (tf.reshape(row, (3,))[:2], row[2:3])).batch(4)
        self._path = path

    def training(self, epochs: Epochs) -> Feed:
        return Feed(
            batch_spec=self._dataset.element_spec,
            steps_per_epoch=epochs.steps_per_epoch or BATCHES,
            dataset=lambda: self._dataset.repeat().skip(epochs.after.batches),
        )

    def one_pass(self, *, steps: int | None) -> Feed:
        batches = self._dataset.take(-1 if steps is None else steps)
        return Feed(batch_spec=batches.element_spec, dataset=lambda: batches)

    def objection_to_resume(self) -> None:
        return None

    def fingerprint(self) -> dict[str, Any]:
        return {"bytes": self._path.stat().st_size}


def kill(event: lw.Event) -> None:
    if isinstance(event, lw.Trained) and event.step > 12:
        os.kill(os.getpid(), signal.SIGKILL)


def write(path: Path, *, bad_batch: int | None = None) -> Path:
    rows = np.random.default_rng(0).normal(size=(4 * BATCHES, 3)).round(3)
    if bad_batch is not None:
        rows[4 * bad_batch, 0] = np.nan
    np.savetxt(path, rows, delimiter=",", fmt="%.3f")
    return path


def train(path: Path, run_dir: Path | None, plan: str = "graph", **options: Any) -> lw.Trainer:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, "tanh")])
    model.add(keras.layers.Dense(1))
    task = lw.Supervised(model, "mse", keras.optimizers.SGD(0.05, momentum=0.9))
    given = {name: options.pop(name) for name in ("on_nan", "sinks") if name in options}
    trainer = lw.Trainer(task, run_dir=run_dir, plan=plan, **given)
    trainer.fit(Rows(path), verbose=0, save_every="4 steps", **{"epochs": 3, **options})
    return trainer


CHILD = """
    import sys
    from pathlib import Path
    from tests.data.test_new_kind import kill, train
    train(Path(sys.argv[1]), Path(sys.argv[2]), sinks=[kill])
"""


def test_a_run_that_was_killed_resumes_with_the_same_bits(tmp_path: Path):
    path = write(tmp_path / "rows.csv")
    run_command(
        [sys.executable, "-c", textwrap.dedent(CHILD), str(path), str(tmp_path / "run")],
        exits=-signal.SIGKILL,
        cwd=Path(__file__).parents[2],
    )
    assert list((tmp_path / "run/checkpoints").glob("step-*"))

    resumed = train(path, tmp_path / "run")
    assert int(resumed.task.step) == 3 * BATCHES
    assert digest(resumed.task) == digest(train(path, None).task)


def test_after_a_rollback_the_bad_batch_is_skipped_and_nothing_else(tmp_path: Path):
    path, told = write(tmp_path / "rows.csv", bad_batch=5), list[Any]()
    back = train(path, tmp_path / "run", on_nan="rollback", sinks=[told.append], epochs=1)

    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[: 4 * 5] + lines[4 * 6 :]))
    without = train(path, None, epochs=1, steps_per_epoch=BATCHES - 1)
    without.task.step_counter.assign_add(1)

    skipped = [event for event in told if isinstance(event, lw.BatchSkipped)]
    assert [(event.step, event.went_back_to_step) for event in skipped] == [(6, 4)]
    assert digest(back.task) == digest(without.task)


def test_it_is_scored_predicted_and_refuses_what_it_cannot_do(tmp_path: Path):
    path = write(tmp_path / "rows.csv")
    trainer = train(path, None, plan="eager", epochs=1)
    assert trainer.evaluate(Rows(path))["loss"] > 0
    assert trainer.predict(Rows(path)).shape == (4 * BATCHES, 1)
    with pytest.raises(lw.DataError, match="Rows does not support class_weight"):
        trainer.fit(Rows(path), class_weight={0: 2.0}, verbose=0)
