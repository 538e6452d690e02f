"""A profile: operations by layer, stages of the data, what to change; and no trace."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tests.insight.rehearsed import bits

import loopwright as lw
from loopwright.compat.xplane import Recorded
from loopwright.insight.profile import stage_times

X = np.random.default_rng(0).normal(size=(640, 64)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def trainer(**options: Any) -> lw.Trainer:
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(512, "relu", name="wide"), keras.layers.Dense(1, name="last")]
    model = keras.Sequential([keras.Input((64,)), *layers])
    return lw.Trainer(lw.Supervised(model, "mse", "adam"), plan="graph", **options)


def test_operations_are_named_with_the_layer_they_come_from_and_nothing_is_left(tmp_path):
    plain, profiled = trainer(), trainer(run_dir=tmp_path / "run")
    found = profiled.profile(X, Y, batch_size=64, steps=20, directory=tmp_path / "profile")
    assert not (tmp_path / "run").exists()
    assert list((tmp_path / "profile").glob("plugins/profile/*/*.xplane.pb"))
    origins = {one.origin for one in found.operations}
    assert {"wide (Dense)", "wide, backward (Dense)"} <= origins
    assert sum(one.share for one in found.operations) <= 1.0 + 1e-6
    assert found.steps >= 20
    assert max(map(len, str(found).splitlines())) <= 80
    for one in (plain, profiled):
        one.fit(X, Y, batch_size=64, verbose=0)
    assert bits(plain) == bits(profiled)


def test_a_slow_map_is_the_stage_that_limits():
    def slow(x: Any, y: Any) -> Any:
        for _ in range(300):
            x = tf.sort(x, axis=-1, direction="DESCENDING") + 1.0
        return x, y

    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(64).map(slow).prefetch(1)
    found = trainer().profile(data, steps=10)
    assert found.stages[0].is_limit
    assert "Map" in found.stages[0].name
    assert any("num_parallel_calls" in text for text in found.advice)


def test_the_time_of_a_stage_is_without_that_of_the_stages_inside_it():
    outer = Recorded("Iterator::Root::Map", "a", start=0.0, seconds=3.0)
    inner = Recorded("Iterator::Root::Map::Shuffle", "a", start=1.0, seconds=1.0)
    waiting = Recorded("Iterator::Root", "a", start=0.0, seconds=9.0)
    found = stage_times([waiting, outer, inner], steps=1, waited=4.0)
    assert [(one.name, one.seconds_per_step, one.is_limit) for one in found] == [
        ("Map", 2.0, True),
        ("Shuffle", 1.0, False),
    ]
    # Busy for a small part of what the steps waited: something else is in the way.
    assert not stage_times([waiting, outer, inner], steps=1, waited=40.0)[0].is_limit
