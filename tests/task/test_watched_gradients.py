"""The norm of each variable's gradient, and histograms in TensorBoard, on request."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import loopwright as lw
from loopwright import testing
from loopwright.events import GradientsWatched, Trained
from loopwright.fit.observer import Observer
from loopwright.loop.clock import Stopwatch
from loopwright.sinks.tensorboard import TensorBoardFiles

X = np.random.default_rng(0).normal(size=(24, 3)).astype("float32")
Y = X[:, :1]
NAMES = [f"gradient_norm/model.layers[{i}].{part}" for i in (0, 1) for part in ("kernel", "bias")]


def task(**options: Any) -> Any:
    keras.utils.set_random_seed(0)
    layers = [keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(1)]
    return lw.Supervised(keras.Sequential(layers), "mse", keras.optimizers.SGD(0.0), **options)


@pytest.mark.parametrize("plan", ["graph", "fused", "eager"])
def test_each_norm_is_reported_by_the_name_of_its_variable(plan: str):
    trainer = lw.Trainer(task(), plan=plan, watch="gradients")
    history = trainer.fit(X, Y, batch_size=24, verbose=0).history
    model = trainer.task.model
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(X) - Y) ** 2)
    expected = [float(tf.norm(g)) for g in tape.gradient(loss, model.trainable_weights)]
    assert [history[name][0] for name in NAMES] == pytest.approx(expected, rel=1e-5)


def test_they_are_those_before_any_transform_and_means_over_the_epoch():
    halved = lw.Trainer(
        task(gradients=[lambda gradients, variables: [0.5 * g for g in gradients]]),
        watch="gradients",
        plan="graph",
    )
    plain = lw.Trainer(task(), watch="gradients", plan="graph")
    ours, theirs = (t.fit(X, Y, batch_size=8, verbose=0).history for t in (halved, plain))
    assert [ours[name] for name in NAMES] == [theirs[name] for name in NAMES]


def test_nothing_is_reported_unless_it_is_asked_for():
    history = lw.Trainer(task(), plan="graph").fit(X, Y, batch_size=8, verbose=0).history
    assert list(history) == ["loss"]


def histograms(directory: Path) -> dict[str, dict[int, Any]]:
    """What TensorBoard reads: rows of (left, right, count), by tag and step."""
    read = EventAccumulator(str(directory / "train"), {"tensors": 0})
    read.Reload()
    return {
        tag: {e.step: tf.make_ndarray(e.tensor_proto) for e in read.Tensors(tag)}
        for tag in read.Tags()["tensors"]
        if tag.startswith("gradient/")
    }


@pytest.mark.parametrize("plan", ["graph", "fused"])
def test_a_run_directory_gets_a_histogram_of_each_gradient(plan: str, tmp_path: Path):
    trainer = lw.Trainer(task(), run_dir=tmp_path, plan=plan, watch="gradients")
    trainer.fit(X, Y, batch_size=24, verbose=0)
    model = trainer.task.model
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(X) - Y) ** 2)
    found = histograms(tmp_path / "tensorboard")
    assert sorted(found) == sorted(name.replace("gradient_norm", "gradient") for name in NAMES)
    expected = tape.gradient(loss, model.trainable_weights)
    for name, gradient in zip(NAMES, expected, strict=True):
        by_step = found[name.replace("gradient_norm", "gradient")]
        assert list(by_step) == [1]
        buckets = by_step[1]
        assert buckets[:, 2].sum() == tf.size(gradient)
        assert buckets[0, 0] == pytest.approx(float(tf.reduce_min(gradient)), rel=1e-4)
        assert buckets[-1, 1] == pytest.approx(float(tf.reduce_max(gradient)), rel=1e-4)


def test_histograms_are_of_whole_embeddings_and_unscaled_gradients(tmp_path: Path):
    layers = [keras.Input((2,), dtype="int32"), keras.layers.Embedding(5, 3)]
    model = keras.Sequential([*layers, keras.layers.Flatten(), keras.layers.Dense(1)])
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(), 1024.0)
    trainer = lw.Trainer(
        lw.Supervised(model, "mse", optimizer), run_dir=tmp_path, plan="graph", watch="gradients"
    )
    trainer.fit(np.ones((4, 2), "int32"), np.ones((4, 1)), batch_size=4, verbose=0)
    (rows,) = histograms(tmp_path / "tensorboard")["gradient/model.layers[0].embeddings"].values()
    assert rows[:, 2].sum() == 15
    assert 0 < np.abs(rows[:, :2]).max() < 50


def test_gradients_come_every_ten_seconds_at_most_and_their_histograms_are_finite(tmp_path: Path):
    now = 0.0
    trainer = lw.Trainer(task(), plan="graph", watch="gradients", sinks=[lambda event: None])
    trainer.fit(X, Y, batch_size=24, verbose=0)
    parts: Any = trainer._parts  # pyright: ignore[reportPrivateUsage]
    observer = Observer(parts, parts, Stopwatch(lambda: now))
    watched = list[GradientsWatched]()
    for step in range(1, 26):
        found = observer.completed(Trained(step, 0, step, 1, 0.1, {}))
        watched += [event for event in found if isinstance(event, GradientsWatched)]
        now += 1.0
    assert [event.step for event in watched] == [1, 11, 21]
    names = [name.removeprefix("gradient_norm/") for name in NAMES]
    assert sorted(watched[0].gradients) == sorted(names)

    board = TensorBoardFiles(tmp_path, lambda: now)
    board(GradientsWatched(1, {"w": np.array([1.0, np.nan])}))
    board.close()
    assert histograms(tmp_path)["gradient/w"][1][:, 2].sum() == 1


def test_watching_leaves_a_run_exactly_resumable_and_as_it_was_without():
    watched = dict[str, Any]()

    def trainer(run_dir: Path) -> lw.Trainer:
        made = lw.Trainer(moving_task(), run_dir=run_dir, plan="graph", watch="gradients")
        watched[run_dir.name] = made.task
        return made

    testing.assert_resumes_exactly(trainer, X, Y, batch_size=8, epochs=2, break_at=[4])
    plain = moving_task()
    lw.Trainer(plain, plan="graph").fit(X, Y, batch_size=8, epochs=2, verbose=0)
    for one, other in zip(plain.model.weights, watched["whole"].model.weights, strict=True):
        np.testing.assert_array_equal(one, other)


def moving_task() -> Any:
    keras.utils.set_random_seed(0)
    layers = [keras.Input((3,)), keras.layers.Dense(4, "relu"), keras.layers.Dense(1)]
    return lw.Supervised(keras.Sequential(layers), "mse", "adam")


def test_what_cannot_be_watched_is_refused_in_words():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    for watch, watched in (("weights", task()), ("gradients", model)):
        with pytest.raises(lw.ConfigurationError, match="This cannot be watched"):
            lw.Trainer(watched, watch=watch)  # pyright: ignore[reportArgumentType]
