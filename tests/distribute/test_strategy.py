"""The strategy that a word stands for; what is refused before anybody waits for anybody."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.mirrored import mirrored

import loopwright as lw
from loopwright.distribute import cluster, replicas
from loopwright.distribute.strategy import strategy_for
from loopwright.errors import ConfigurationError, WorkerLostError


def test_without_other_workers_auto_is_one_device(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert strategy_for("auto") is tf.distribute.get_strategy()
    assert strategy_for("none") is tf.distribute.get_strategy()
    assert strategy_for(None) is tf.distribute.get_strategy()


def test_a_strategy_is_taken_as_it_is():
    assert strategy_for(mirrored()) is mirrored()


def test_a_word_that_is_no_strategy_is_refused():
    with pytest.raises(ConfigurationError, match="'auto' or 'none' or 'mirrored'"):
        strategy_for("several")


def test_several_workers_need_somebody_who_tells_of_them(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(ConfigurationError, match="loopwright launch --workers 2"):
        strategy_for("multi_worker")


def test_workers_that_come_too_late_are_told_to_make_the_trainer_first(
    monkeypatch: pytest.MonkeyPatch,
):
    tf.constant(1.0)  # TensorFlow is in use
    monkeypatch.setenv("TF_CONFIG", cluster.tf_config(["127.0.0.1:1", "127.0.0.1:2"], 0))
    with pytest.raises(ConfigurationError, match="too late to connect") as refusal:
        lw.Trainer(keras.Model, strategy="auto")
    assert 'Trainer(make_task, strategy="auto")' in str(refusal.value)


def test_a_lost_worker_ends_a_program_with_a_code_that_supervisors_retry():
    lost = WorkerLostError("gone")
    assert isinstance(lost, SystemExit)
    assert isinstance(lost, lw.LoopwrightError)
    assert (lost.code, str(lost)) == (193, "gone")


def test_what_replicas_kept_for_themselves_is_shared_out_among_more_and_fewer():
    kinds = tf.VariableAggregation
    saved = {f"{name}.replicas[{i}]": tf.constant(i + 1.0) for name in "abc" for i in (0, 1)}
    now = {"a": kinds.SUM, "b": kinds.MEAN, "c": kinds.NONE}
    alone = {name: tf.Variable(0.0, aggregation=kind) for name, kind in now.items()}
    three = {f"{n}.replicas[{i}]": v for n, v in alone.items() for i in range(3)}
    fewer, more = replicas.shared_out(saved, alone), replicas.shared_out(saved, three)
    assert [float(fewer[name]) for name in "abc"] == [3.0, 1.5, 1.0]
    shared = [[float(more[f"{name}.replicas[{i}]"]) for i in range(3)] for name in "abc"]
    np.testing.assert_array_equal(shared, [[3.0, 0.0, 0.0], [1.5] * 3, [1.0] * 3])
    again = replicas.shared_out(saved, {name: alone[name[0]] for name in saved})
    assert all(float(again[name]) == float(saved[name]) for name in saved)
