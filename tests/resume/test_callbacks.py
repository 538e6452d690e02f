"""Keras callbacks with files of their own, in a run that is resumed."""

from pathlib import Path
from typing import Any

import keras
import pytest
from tests.resume.program import Noisy, arrays, digest

import loopwright as lw


class Interrupted(keras.callbacks.Callback):
    """Fails in the middle of an epoch, after checkpoints of the epoch before."""

    def __init__(self, epoch: int | None):
        super().__init__()
        self.epoch = epoch

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self.epoch:
            raise RuntimeError("from the callback")


def trained(
    run_dir: Path | None, callback: Any, fails_in: int | None = None, **options: Any
) -> Any:
    noted: list[str] = []
    trainer = lw.Trainer(
        Noisy(),
        run_dir=run_dir,
        plan="graph",
        sinks=[lambda event: noted.append(event.text) if isinstance(event, lw.Noted) else None],
    )
    told = {"batch_size": 8, "verbose": 0, "epochs": 4, "save_every": "1 epoch", **options}
    try:
        trainer.fit(*arrays(), callbacks=[callback, Interrupted(fails_in)], **told)
    except RuntimeError:
        assert fails_in is not None
        if isinstance(callback, keras.callbacks.CSVLogger):
            callback.csv_file.close()
    return trainer, noted


def test_backup_and_restore_is_left_out_of_a_run_directory_and_that_is_said(tmp_path: Path):
    def backup() -> Any:
        return keras.callbacks.BackupAndRestore(tmp_path / "backup", delete_checkpoint=False)

    whole, _ = trained(None, Interrupted(None))
    trained(None, backup())  # of an earlier training
    for fails_in in (2, None):
        resumed, noted = trained(tmp_path / "run", backup(), fails_in)
        assert sum("BackupAndRestore is left out" in note for note in noted) == 1
    assert digest(resumed.task) == digest(whole.task)


@pytest.mark.parametrize("append", [False, True])
def test_a_csv_file_of_a_resumed_run_has_every_epoch_once(append: bool, tmp_path: Path):
    def logger(name: str) -> Any:
        return keras.callbacks.CSVLogger(tmp_path / name, append=append)

    trained(None, logger("whole.csv"))
    # Its row of epoch 2 comes after the checkpoint.
    trained(tmp_path / "run", logger("run.csv"), fails_in=2)
    assert len((tmp_path / "run.csv").read_text().splitlines()) == 4
    last = logger("run.csv")
    trained(tmp_path / "run", last)
    assert (tmp_path / "run.csv").read_text() == (tmp_path / "whole.csv").read_text()
    assert last.append == append
