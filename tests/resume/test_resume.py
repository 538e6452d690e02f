"""A run that was stopped goes on where it was, and ends with the same bits."""

import functools
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.resume.faults import ALL
from tests.resume.program import DATA, STEPS_PER_EPOCH, FailsAt, Noisy, arrays, digest, train

import loopwright as lw
from loopwright.components import KeepPredictions

pytestmark = pytest.mark.kernels


EPOCHS = 3  # one that fails, and one that is begun after it
RUNS = [
    *((kind, "graph") for kind in DATA),
    ("stream", "fused"),
    *([("arrays", "fused")] if ALL else []),  # in `test_parts_by_plan.py` otherwise
]


def failing(run_dir, kind, plan, *steps, **options):
    """Fails after so many steps, is started again, fails again ...; at last it ends."""
    for step in steps:
        with pytest.raises(RuntimeError, match="the machine failed"):
            train(run_dir, kind, plan, callbacks=[FailsAt(step)], **options)
    return train(run_dir, kind, plan, callbacks=[FailsAt()], **options)


@functools.cache
def undisturbed(kind, plan):
    """How a run ends that nothing happens to: its bits and its history."""
    trainer, history = train(None, kind, plan, epochs=EPOCHS)
    return digest(trainer.task), history


@pytest.fixture(scope="module")
def failed_run(tmp_path_factory):
    """A run that failed after 18 steps, to be copied."""
    run_dir = tmp_path_factory.mktemp("failed") / "run"
    with pytest.raises(RuntimeError, match="the machine failed"):
        train(run_dir, "arrays", "graph", callbacks=[FailsAt(18)], epochs=EPOCHS)
    return run_dir


@pytest.fixture
def failed(failed_run, tmp_path):
    return Path(shutil.copytree(failed_run, tmp_path / "run"))


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    """A run that went on after two failures and is complete, to be copied; and what it returned."""
    run_dir = tmp_path_factory.mktemp("finished") / "run"
    _, history = failing(run_dir, "arrays", "graph", 18, 4, epochs=EPOCHS)
    return run_dir, history


@pytest.mark.parametrize(("kind", "plan"), RUNS)
def test_a_run_that_failed_and_went_on_ends_with_the_same_bits(kind, plan, tmp_path):
    bits, whole = undisturbed(kind, plan)
    fails_at = [3, 20, 1] if (kind, plan) == ("stream", "graph") else [18]
    resumed, history = failing(tmp_path / "run", kind, plan, *fails_at, epochs=EPOCHS)
    assert digest(resumed.task) == bits
    assert history.epoch == whole.epoch
    assert history.epoch_steps == whole.epoch_steps
    assert history.validation_steps == whole.validation_steps
    for name, values in whole.history.items():
        np.testing.assert_allclose(history.history[name], values, rtol=1e-6)


@pytest.mark.parametrize("kind", ["stream", "unknown", "pydataset"])
def test_the_end_of_an_epoch_is_a_place_to_go_on_from(kind, tmp_path):
    bits, whole = undisturbed(kind, "graph")
    fails_at = (STEPS_PER_EPOCH, 2)  # goes on from the step before the end, then from the end
    options: Any = {"save_every": "1 step", "epochs": EPOCHS}
    resumed, history = failing(tmp_path, kind, "graph", *fails_at, **options)
    assert digest(resumed.task) == bits
    assert history.epoch_steps == whole.epoch_steps


def test_a_finished_run_is_skipped_and_returns_what_it_returned(tmp_path):
    seen, again_seen = (KeepPredictions(arrays()[0][:2], epochs=[1, 3]) for _ in range(2))
    first, history = train(tmp_path / "run", "arrays", "graph", callbacks=[seen])
    told = []
    second, again = train(
        tmp_path / "run", "arrays", "graph", sinks=[told.append], callbacks=[again_seen]
    )
    assert digest(second.task) == digest(first.task)
    assert list(again_seen.kept) == [1, 3]
    np.testing.assert_allclose(again_seen.kept[3], seen.kept[3])
    assert again.history == history.history
    assert [event.reason for event in told] == ["skipped"]


def test_more_epochs_continue_a_run_that_was_finished(tmp_path):
    bits, whole = undisturbed("arrays", "graph")
    train(tmp_path / "run", "arrays", "graph", epochs=1)
    resumed, history = train(tmp_path / "run", "arrays", "graph", epochs=EPOCHS)
    assert history.epoch == whole.epoch == [0, 1, 2]
    assert digest(resumed.task) == bits


@pytest.mark.parametrize("how", ["lost", "garbage"])
def test_the_other_files_of_a_run_may_be_lost_or_garbage(how, failed):
    others = [path for path in failed.iterdir() if path.is_file()]
    assert {"plan.json", "metrics.jsonl", "status.json"} <= {path.name for path in others}
    for path in others:
        path.unlink() if how == "lost" else path.write_bytes(b"\x00{garbage")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lw.LoopwrightWarning)
        resumed, history = failing(failed, "arrays", "graph", epochs=EPOCHS)
    bits, whole = undisturbed("arrays", "graph")
    assert digest(resumed.task) == bits
    assert history.epoch_steps == whole.epoch_steps


def test_a_directory_that_cannot_be_written_to_is_refused_before_the_first_step(tmp_path):
    (tmp_path / "file").write_text("no directory")
    told = []
    with pytest.raises(lw.ConfigurationError, match="run directory cannot be made") as refusal:
        train(tmp_path / "file" / "run", "arrays", "graph", sinks=[told.append])
    assert "choose another run_dir" in str(refusal.value)
    assert told == []


def fitted(made, run_dir, *callbacks, **options):
    trainer = lw.Trainer(made, run_dir=run_dir, plan="graph")
    history = trainer.fit(*arrays(), batch_size=8, callbacks=callbacks, verbose=0, **options)
    return trainer, history


def test_early_stopping_goes_on_with_its_patience_and_its_best_weights(tmp_path):
    def run(run_dir, fails_at=None):
        stopping = keras.callbacks.EarlyStopping("loss", patience=2, restore_best_weights=True)
        task = Noisy()
        task.optimizer.learning_rate = 0.3
        return fitted(task, run_dir, stopping, FailsAt(fails_at), epochs=30, save_every="1 epoch")

    whole, undisturbed = run(None)
    assert 3 < len(undisturbed.epoch) < 30
    epochs = len(undisturbed.epoch)
    for goes_on_from, fails_in in ((0, 2), (2, epochs - 1)):
        with pytest.raises(RuntimeError):
            run(tmp_path, fails_at=(fails_in - goes_on_from) * STEPS_PER_EPOCH + 3)
    resumed, history = run(tmp_path)
    assert history.epoch == undisturbed.epoch
    assert digest(resumed.task) == digest(whole.task)


def test_a_compiled_keras_model_is_resumed_like_a_task(tmp_path):
    def run(run_dir, fails_at=None):
        keras.utils.set_random_seed(3)
        layers = [keras.Input((4,)), keras.layers.Dropout(0.3), keras.layers.Dense(1)]
        model = keras.Sequential(layers)
        model.compile("adam", "mse", metrics=["mae"])
        return fitted(model, run_dir, FailsAt(fails_at), epochs=3, save_every="4 steps")

    whole, undisturbed = run(None)
    with pytest.raises(RuntimeError):
        run(tmp_path / "run", fails_at=18)
    resumed, history = run(tmp_path / "run")
    assert digest(resumed.task) == digest(whole.task)
    assert history.history.keys() == undisturbed.history.keys()
    for name, values in undisturbed.history.items():
        np.testing.assert_allclose(history.history[name], values, rtol=1e-6)


def test_another_model_other_data_and_other_callbacks_are_refused_in_words(failed):
    more: Any = Noisy()
    more.temperature = tf.Variable(1.0)
    for task, data, batch_size, words in (
        (more, arrays(), 8, "other variables"),
        (Noisy(), arrays(64), 8, "The data differs"),
        (Noisy(), arrays(), 16, "The data differs"),
        (Noisy(), arrays(), 8, "different callbacks"),
    ):
        trainer = lw.Trainer(task, run_dir=failed)
        with pytest.raises(lw.ConfigurationError, match=words):
            trainer.fit(*data, batch_size=batch_size, epochs=EPOCHS, verbose=0)


def test_the_plans_of_a_run_are_written_down_and_give_the_same_bits_again(tmp_path):
    resumed, _ = failing(tmp_path / "run", "arrays", "auto", 20)
    whole, _ = train(None, "arrays", str(tmp_path / "run" / "plan.json"))
    assert digest(whole.task) == digest(resumed.task)


def test_a_changed_environment_goes_on_with_a_warning_or_is_refused(failed, monkeypatch):
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "1")
    again: Any = {"callbacks": [FailsAt()], "epochs": EPOCHS}
    with pytest.raises(lw.ConfigurationError, match="TF_NUM_INTRAOP_THREADS: None then, 1 now"):
        train(failed, "arrays", "graph", **again, exact="require")
    with pytest.warns(lw.LoopwrightWarning, match="bit-exact until step 15"):
        train(failed, "arrays", "graph", **again)


def test_nothing_is_written_without_a_run_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train(None, "arrays", "graph", epochs=1)
    assert list(tmp_path.iterdir()) == []


def test_the_journal_and_the_history_tell_of_one_continuous_run(tmp_path, finished_run):
    run_dir, history = finished_run
    _, whole = train(tmp_path / "whole", "arrays", "graph", epochs=EPOCHS)
    assert history.history.keys() == whole.history.keys()

    def told(run_dir):
        lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
        kinds = ("epoch_ended", "validated", "finished")
        return [(line["event"], line["step"]) for line in lines if line["event"] in kinds]

    assert told(run_dir) == told(tmp_path / "whole")
    assert [kind for kind, _ in told(run_dir)].count("finished") == 1


def test_a_stream_that_is_read_again_is_compared(tmp_path):
    def fit(run_dir, shift=0.0, fails_at=None):
        def batches():
            x, y = arrays()
            for index in range(0, len(x), 8):
                yield x[index : index + 8] + shift * (index > 0), y[index : index + 8]

        signature = (tf.TensorSpec([None, 4]), tf.TensorSpec([None, 1]))
        dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
        trainer = lw.Trainer(Noisy(), run_dir=run_dir, plan="graph")
        data = lw.Stream(dataset, replay=True)
        trainer.fit(data, epochs=2, save_every="5 steps", callbacks=[FailsAt(fails_at)], verbose=0)
        return trainer

    with pytest.raises(RuntimeError):
        fit(tmp_path / "run", fails_at=18)
    with pytest.raises(lw.DataError, match="Replaying the data produced different batches"):
        fit(tmp_path / "run", shift=1.0)
    assert digest(fit(tmp_path / "run").task) == digest(fit(None).task)


def test_the_place_in_a_stream_is_reported_when_it_is_large(tmp_path, monkeypatch):
    monkeypatch.setattr("loopwright.checkpoints.run_directory._MOST_POSITION_BYTES", 1000)
    with pytest.warns(lw.LoopwrightWarning, match=r"The position in the data takes 0 MB of each"):
        train(tmp_path / "run", "stream", "graph", epochs=1)
