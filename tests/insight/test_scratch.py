"""A scratch leg trains in memory and leaves no trace."""

import random
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import loopwright as lw
from loopwright.fit.leg_loop import NoCheckpoints
from loopwright.fit.options import FitOptions
from loopwright.fit.request import fit_request
from loopwright.insight import scratch
from loopwright.loop.schedule import Every, Place
from loopwright.sinks.history import History
from loopwright.task import variables

X = np.random.default_rng(0).normal(size=(50, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def trainer(run_dir: Any = None) -> lw.Trainer:
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.5, seed=1)]
    model = keras.Sequential([*layers, keras.layers.BatchNormalization(), keras.layers.Dense(1)])
    return lw.Trainer(lw.Supervised(model, "mse", "adam"), run_dir=run_dir, plan="graph")


def request_for(trainer: lw.Trainer, *data: Any, **options: Any) -> Any:
    sizes = {"batch_size": 16} if isinstance(data[0], np.ndarray) else {}
    given = FitOptions(*data, **sizes, **options)
    parts = trainer._parts
    return fit_request(
        given, parts.task, parts.team, saves=False, sinks=[], is_observed=False, history=History()
    )


def train_aside(trainer: lw.Trainer, *data: Any) -> int:
    request = request_for(trainer, *data)
    with scratch.scratch_leg(trainer._parts, request, until=Every(steps=7)) as leg:
        for _ in leg.looped(Place(), {}, NoCheckpoints()):
            pass
        return int(trainer.task.step_counter.numpy())


def bits(trainer: lw.Trainer) -> dict[str, bytes]:
    return {name: v.numpy().tobytes() for name, v in variables.named(trainer.task).items()}


@pytest.mark.parametrize("kind", ["arrays", "dataset"])
def test_the_run_after_a_scratch_leg_has_the_bits_of_a_run_without_one(kind, tmp_path):
    data = (X, Y) if kind == "arrays" else (tf.data.Dataset.from_tensor_slices((X, Y)).batch(16),)
    ends = []
    for name in ("plain", "rehearsed"):
        one = trainer(tmp_path / name)
        if name == "rehearsed":
            assert train_aside(one, *data) == 7
        options = {"batch_size": 16} if kind == "arrays" else {}
        one.fit(*data, epochs=2, verbose=0, **options)
        ends.append((bits(one), one.plan_history, random.random(), np.random.random()))
    assert ends[0] == ends[1]


def test_a_scratch_leg_writes_no_files_and_keeps_the_plans_of_the_trainer(tmp_path):
    one = trainer(tmp_path / "run")
    before = one.plan_history
    train_aside(one, X, Y)
    assert not (tmp_path / "run").exists()
    assert one.plan_history == before


def test_data_that_can_be_read_only_once_is_refused_before_it_is_read():
    batches = iter([(X[:16], Y[:16])])
    one = trainer()
    with pytest.raises(lw.ConfigurationError, match="can be read only once"):
        train_aside(one, batches)
    assert len(list(batches)) == 1
