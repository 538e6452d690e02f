"""A rehearsal tries every part of a run, says what the run will take, and leaves no trace."""

import copy
import os
import random
from collections import deque
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.insight.rehearsed import X, Y, bits, shuffled, trainer

import loopwright as lw
from loopwright.insight.rehearsal_report import Check

pytestmark = pytest.mark.kernels


class Counts(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.outside: list[str] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.calls.append("batch")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.calls.append("epoch")
        OUTSIDE.append("epoch")


OUTSIDE: list[str] = []


def check(found: lw.Rehearsal, name: str) -> Check:
    return next(each for each in found.checks if each.name == name)


def data_of(kind: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return ((X, Y), {"batch_size": 16}) if kind == "arrays" else ((shuffled(),), {})


@pytest.mark.parametrize("kind", ["arrays", "dataset"])
def test_the_run_after_a_rehearsal_has_the_bits_of_a_run_without_one(kind, tmp_path):
    ends = []
    for name in ("plain", "rehearsed"):
        one = trainer(tmp_path / name)
        data, options = data_of(kind)
        options |= {"validation_data": (X[:40], Y[:40]), "epochs": 2}
        if name == "rehearsed":
            one.rehearse(*data, **options, overfit="1 batch")
            assert not (tmp_path / name).exists()
            assert not one.plan_history.changes
        history = one.fit(*data, **options, verbose=0).history
        ends.append((bits(one), history, one.plan_history, random.random(), np.random.random()))
    assert ends[0] == ends[1]


def test_every_part_of_a_run_is_tried_and_the_page_says_what_it_will_take(tmp_path):
    found = trainer(tmp_path / "run").rehearse(
        X, Y, batch_size=16, epochs=3, validation_data=(X[:40], Y[:40])
    )
    names = [each.name for each in found.checks if each.is_done]
    assert names == [
        *("build", "first batch", "checkpoint", "last batch"),
        *("validation", "images", "speed"),
    ]
    assert check(found, "last batch").found == "4 of 4, 2 examples"
    assert "so has the next step, run again" in check(found, "checkpoint").found
    assert (found.trainable, found.frozen, found.statistics) == (8 * 5 + 16 + 9, 0, 16)
    assert found.total_steps == 12
    assert found.seconds is not None
    assert found.seconds > 0
    assert found.kept == 4
    assert found.disk_bytes == 4 * found.checkpoint_bytes > 0
    assert found.start == f"at step 0, in {tmp_path / 'run'}"
    assert all(len(line) <= 80 for line in str(found).splitlines() if str(tmp_path) not in line)


def test_a_run_of_epochs_of_unknown_length_has_an_unknown_time_and_reaches_its_last_batch():
    rows = tf.data.Dataset.from_tensor_slices((X, Y)).filter(lambda x, y: True).batch(16)
    one = trainer()
    one.task.model.layers[0].trainable = False
    found = one.rehearse(rows, epochs=2)
    assert (found.trainable, found.frozen) == (16 + 9, 8 * 5)  # frozen layers are counted as such
    assert found.seconds is None
    assert "unknown" in str(found)
    assert check(found, "last batch").found == "4 of 4, 2 examples"


def test_an_endless_stream_says_that_its_last_batch_was_not_reached():
    rows = tf.data.Dataset.from_tensor_slices((X, Y)).batch(16).repeat()
    found = trainer().rehearse(rows, steps_per_epoch=5, until="1 hour")
    assert not check(found, "last batch").is_done
    assert found.seconds == 3600.0


def test_the_callbacks_of_a_person_are_called_only_when_asked_for_and_keep_their_state():
    callback, OUTSIDE[:] = Counts(), []
    silent = trainer().rehearse(X, Y, callbacks=[callback])
    assert not OUTSIDE
    assert not check(silent, "callbacks").is_done
    before, calls = dict(vars(callback)), callback.calls
    found = trainer().rehearse(X, Y, callbacks=[callback], rehearse_callbacks=True)
    assert OUTSIDE == ["epoch"]
    assert vars(callback) == before
    assert callback.calls == []
    assert callback.calls is calls
    assert {"Counts.on_train_batch_end", "Counts.on_epoch_end"} <= set(found.callbacks)


class Own:
    def __init__(self) -> None:
        self.rows = [1]


class Head(keras.layers.Dense):
    """A layer that Keras cannot copy: it is not registered."""


class Keeps(keras.callbacks.Callback):
    """Changes what it holds, of every kind that is not a plain number or list."""

    def __init__(self, head: Any) -> None:
        super().__init__()
        self.recent, self.own, self.noise = deque([1]), Own(), np.random.default_rng(0)
        self.count, self.mean, self.head = tf.Variable(1.0), keras.metrics.Mean(), head
        self.log = open(os.devnull)  # noqa: SIM115
        self.mean.update_state(3.0)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.recent.append(batch)
        self.own.rows.append(batch)
        self.count.assign_add(1.0)
        self.mean.update_state(7.0)
        self.head.kernel.assign_add(tf.ones_like(self.head.kernel))
        OUTSIDE.append(str(float(self.mean.result())))
        self.noise.random()

    def state(self) -> tuple[Any, ...]:
        values = [float(self.count), float(self.mean.result()), self.head.kernel.numpy().tolist()]
        return list(self.recent), self.own.rows, self.noise.bit_generator.state, values


def test_a_rehearsal_calls_copies_of_callbacks_and_keeps_what_cannot_be_copied():
    head, OUTSIDE[:] = Head(1), []
    head.build((None, 2))
    callback = Keeps(head)
    before = copy.deepcopy(callback.state())
    trainer().rehearse(X, Y, callbacks=[callback], rehearse_callbacks=True)
    assert callback.state() == before
    assert OUTSIDE[0] == "5.0"  # the copy has the values of the original
    callback.log.close()


class FailsAtEnd(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        raise RuntimeError("disk of the callback is full")


def test_a_callback_that_fails_in_the_night_fails_in_the_rehearsal_and_leaves_no_optimizer():
    one = trainer()
    with pytest.raises(RuntimeError, match="disk of the callback") as failure:
        one.rehearse(X, Y, callbacks=[FailsAtEnd()], rehearse_callbacks=True)
    assert failure.value.__notes__ == ['The rehearsal failed in the part "callbacks".']
    assert not hasattr(one.task.model, "optimizer") or one.task.model.optimizer is None


def test_a_metric_that_validation_does_not_report_is_found_before_the_first_epoch(tmp_path):
    one = trainer(tmp_path / "run", keep=[lw.KeepBest("val_accuracy")])
    with pytest.raises(lw.ConfigurationError, match="validation does not report it") as failure:
        one.rehearse(X, Y, validation_data=(X, Y))
    assert str(failure.value).startswith('The rehearsal failed in the part "validation".\n')
    assert not (tmp_path / "run").exists()


def test_nan_keeps_its_kind_and_its_step():
    one = trainer()
    with pytest.raises(lw.NotFiniteError, match="first batch") as failure:
        one.rehearse(np.full_like(X, np.inf), Y)
    assert failure.value.step == 1


def test_a_step_whose_state_cannot_be_saved_is_found_by_the_rehearsal(tmp_path):
    class Unsavable(lw.Supervised):  # pyright: ignore[reportGeneralTypeIssues]
        def train_step(self, batch: Any) -> Any:
            x, y = batch
            return super().train_step((x + tf.random.normal(tf.shape(x)), y))

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    one = lw.Trainer(Unsavable(model, "mse", "sgd"), run_dir=tmp_path / "run")
    with pytest.raises(lw.StepError, match="build") as failure:
        one.rehearse(X, Y)
    assert "draws random numbers that cannot be repeated" in str(failure.value)


def test_a_run_with_checkpoints_says_where_it_resumes_and_is_left_as_it_is(tmp_path):
    run = tmp_path / "run"
    trainer(run).fit(X, Y, batch_size=16, epochs=2, verbose=0)
    files = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    found = trainer(run).rehearse(X, Y, batch_size=16, epochs=5)
    assert found.start == f"resumes from step 8 of {run}"
    complete = trainer(run).rehearse(X, Y, batch_size=16, epochs=2)
    assert "nothing is left to train" in complete.start
    with pytest.raises(lw.ConfigurationError, match="data differs"):
        trainer(run).rehearse(X[:40], Y[:40], batch_size=16, epochs=5)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == files


def test_checkpoints_that_do_not_fit_on_the_disk_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("loopwright.disk.free_bytes", lambda path: 10_000)
    with pytest.raises(lw.CheckpointError, match="do not fit on the disk") as failure:
        trainer(tmp_path / "run").rehearse(X, Y)
    assert 'the part "disk"' in str(failure.value)


def test_a_checkpoint_that_restores_other_bits_is_an_error(tmp_path, monkeypatch):
    def damaged(prefix: Path, *_: Any) -> Any:
        found = read(prefix)
        name = next(name for name in found if name.endswith("kernel"))
        return found | {name: found[name] + 1.0}

    from loopwright.checkpoints import tensors

    read = tensors.read
    monkeypatch.setattr("loopwright.checkpoints.tensors.read", damaged)
    with pytest.raises(lw.CheckpointError, match="did not restore the state"):
        trainer(tmp_path / "run").rehearse(X, Y)


def test_what_guards_warn_of_is_on_the_page_and_is_warned_of_again_by_fit():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, activation="softmax")])
    one = lw.Trainer(lw.Supervised(model, "mse", "sgd"), plan="graph")
    found = one.rehearse(X, Y)
    assert any("softmax" in each for each in found.warnings)
    assert "warnings    1:" in found.page()
    with pytest.warns(lw.StepWarning, match="softmax"):
        one.fit(X, Y, verbose=0)


@pytest.mark.filterwarnings("ignore:8 weights were loaded")
def test_initial_weights_of_a_model_that_is_built_lazily_are_rehearsed(tmp_path):
    trainer(tmp_path / "first").fit(X, Y, verbose=0)
    one = trainer(init_from=tmp_path / "first")
    one.rehearse(X, Y)
    other = trainer(init_from=tmp_path / "first")
    one.fit(X, Y, verbose=0)
    other.fit(X, Y, verbose=0)
    assert bits(one) == bits(other)


def test_the_end_of_an_epoch_is_not_told_to_the_data():
    class Batches(keras.utils.PyDataset):
        ends = 0

        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            rows = slice(16 * index, 16 * index + 16)
            return X[rows], Y[rows]

        def on_epoch_end(self) -> None:
            self.ends += 1

    data = Batches()
    found = trainer().rehearse(data)
    assert data.ends == 0
    assert check(found, "last batch").found == "4 of 4, 2 examples"


def test_what_cannot_be_rehearsed_is_refused_before_anything_is_built():
    one = trainer()
    with pytest.raises(lw.ConfigurationError, match="cannot be rehearsed"):
        one.rehearse(X, Y, overfit="2 batches")
    assert not one.task.model.built
