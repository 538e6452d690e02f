"""Models that are exported answer in a new process as they do here, or are not exported."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import loopwright as lw
from loopwright import disk
from loopwright.export import exporter, outputs

X = np.random.default_rng(0).normal(size=(32, 3)).astype("float32")
Y = X[:, :1]


def supervised() -> Any:
    keras.utils.set_random_seed(0)
    layers = [keras.Input((3,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
    return lw.Supervised(keras.Sequential(layers), "mse", "adam")


def served(path: str, x: Any) -> Any:
    loaded: Any = tf.saved_model.load(path)  # its variables live as long as it does
    return loaded.serve(tf.constant(x)).numpy()


@pytest.fixture(scope="module")
def trained() -> lw.Trainer:
    trainer = lw.Trainer(supervised(), plan="graph")
    trainer.fit(X, Y, verbose=0)
    return trainer


# Each export is answered by a new process, which takes seconds to start: none is made twice.


def test_a_saved_model_gives_the_same_predictions(trained: lw.Trainer, tmp_path: Path):
    done = trained.export(tmp_path / "export")
    np.testing.assert_allclose(served(done.path, X), trained.predict(X), rtol=1e-5)
    assert done.largest_difference <= 1e-6
    told = json.loads((Path(done.path) / "loopwright.json").read_text())
    assert told["signatures"] == ["serve"]


def test_a_keras_file_is_loaded_again(trained: lw.Trainer, tmp_path: Path):
    done = trained.export(tmp_path / "model.keras")
    loaded = keras.models.load_model(done.path)
    np.testing.assert_allclose(loaded(X, training=False), trained.predict(X), rtol=1e-5)
    with pytest.raises(lw.ConfigurationError, match="which already exists"):
        trained.export(tmp_path / "model.keras")


class Own(keras.Model):
    """It does not say what it takes."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)


def test_a_task_chooses_what_is_exported_with_which_preprocessing_and_under_which_names(
    tmp_path: Path,
):
    normalise = keras.layers.Normalization()
    normalise.adapt(X * 10 + 3)

    class Several(lw.Task):
        def __init__(self):
            super().__init__()
            self.encoder = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
            self.decoder = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
            self.own = Own()

        def exports(self):
            raw = keras.Sequential([keras.Input((3,)), normalise, self.encoder])
            return {"encode": self.encoder, "decode": self.decoder, "raw": raw, "own": self.own}

    task = Several()
    done = lw.Trainer(task).export(tmp_path / "export", examples={"encode": X[:5], "own": X[:4]})
    assert done.signatures == ["decode", "encode", "own", "raw"]
    assert done.largest_difference <= 1e-6
    loaded: Any = tf.saved_model.load(done.path)
    assert loaded.decode(loaded.encode(tf.constant(X))).shape == (32, 3)
    raw = loaded.raw(tf.constant(X)).numpy()
    np.testing.assert_allclose(raw, task.encoder(normalise(X)), rtol=1e-5)
    np.testing.assert_allclose(loaded.own(tf.constant(X)).numpy(), task.own(X), rtol=1e-5)
    with pytest.raises(lw.ConfigurationError, match="4 model"):
        lw.Trainer(Several()).export(tmp_path / "several.keras")


def test_a_model_that_answers_otherwise_is_not_exported(tmp_path: Path):
    @keras.saving.register_keras_serializable("test")
    class Forgetful(keras.layers.Layer):
        """Its config forgets the factor."""

        def __init__(self, factor: float = 1.0, **options: Any) -> None:
            super().__init__(**options)
            self.factor = factor

        def call(self, x: Any) -> Any:
            return self.factor * x

    model = keras.Sequential([keras.Input((3,)), Forgetful(7.0)])
    task = lw.Supervised(model, "mse", "sgd")
    with pytest.raises(lw.LoopwrightError, match="cannot be loaded in a new process"):
        lw.Trainer(task).export(tmp_path / "model.keras")
    assert list(tmp_path.iterdir()) == []
    assert lw.Trainer(task).export(tmp_path / "export").largest_difference == 0.0


def test_beyond_the_tolerance_nothing_is_left_behind(trained: lw.Trainer, tmp_path: Path):
    models = {"serve": trained.task.model}
    with pytest.raises(lw.LoopwrightError, match="differ from the task's"):
        exporter.export(models, tmp_path / "export", tolerance=-1.0)
    assert list((tmp_path / "export").iterdir()) == []


def test_a_run_exports_versions_into_its_directory_and_averaged_weights_if_asked(tmp_path: Path):
    task = supervised()
    task.optimizer = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9)
    trainer = lw.Trainer(task, run_dir=tmp_path / "run", plan="graph")
    trainer.fit(X, Y, epochs=2, batch_size=8, save_every="3 steps", verbose=0)
    after_fit = task.model.get_weights()
    plain, averaged = (trainer.export(checkpoint=3, averaged=flag) for flag in (False, True))
    assert all(map(np.array_equal, task.model.get_weights(), after_fit))
    assert [done.step for done in (plain, averaged)] == [3, 3]
    trainer.restore(3)
    where = tmp_path / "run" / "export"
    assert [Path(done.path) for done in (plain, averaged)] == [where / "1", where / "2"]
    assert sorted(p.name for p in where.iterdir()) == ["1", "2"]
    one, other = served(plain.path, X), served(averaged.path, X)
    assert not np.allclose(one, other)
    np.testing.assert_allclose(one, task.model(X), rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: lw.Supervised(Own(), "mse", "sgd"), "are unknown"),
        (lw.Task, "a task without a model"),
    ],
)
def test_a_model_without_declared_inputs_needs_examples_and_a_task_a_model(
    make: Any, words: str, tmp_path: Path
):
    with pytest.raises(lw.ConfigurationError, match=words):
        lw.Trainer(make()).export(tmp_path / "export")


class Elsewhere(keras.Model):
    """Computes something else as soon as it is in a graph, as an exported model is."""

    def __init__(self, change: Callable[[Any], Any]) -> None:
        super().__init__()
        self.change = change

    def call(self, x: Any) -> Any:
        return self.change(x) if tf.inside_function() else {"a": x, "b": tf.argmax(x, -1)}


class Altered(lw.Task):
    """Exports models whose outputs change on the way, each in its own manner."""

    def __init__(self, changes: Mapping[str, Callable[[Any], Any]]) -> None:
        super().__init__()
        self.models = {name: Elsewhere(change) for name, change in changes.items()}

    def exports(self):
        return self.models


def test_nan_other_shapes_other_dtypes_and_missing_outputs_are_not_exported(tmp_path: Path):
    def given(**other: Any) -> Callable[[Any], Any]:
        return lambda x: {
            name: other.get(name, same)(x)
            for name, same in (("a", tf.identity), ("b", lambda x: tf.argmax(x, -1)))
            if other.get(name, same) is not None
        }

    changes = {
        "same": given(),
        "nan": given(a=lambda x: x * tf.where(x > 0, np.nan, 1.0)),
        "infinite": given(a=lambda x: x / tf.zeros_like(x)),
        "shape": given(a=lambda x: x[:, :2]),
        "dtype": given(b=lambda x: tf.argmax(x, -1, tf.int32)),
        "missing": given(b=None),
        "more": lambda x: {**given()(x), "c": x},
    }
    examples = dict.fromkeys(changes, X[:8])
    with pytest.raises(lw.LoopwrightError, match="nothing was exported") as refusal:
        lw.Trainer(Altered(changes)).export(tmp_path / "export", examples=examples)
    received = next(line for line in str(refusal.value).splitlines() if "received" in line)
    said = received.partition(": ")[2].split("; ")
    assert said == [
        f"nan: output 'a' has NaN in {np.sum(X[:8] > 0)} of 24 values where the task has a number",
        "infinite: output 'a' has infinity in 24 of 24 values where the task has a finite number",
        "shape: output 'a' has the shape (8, 2) instead of (8, 3)",
        "dtype: output 'b' is int32 instead of int64",
        "missing: output 'b' is missing",
        "more: output 'c' is not an output of the task",
    ]
    assert list((tmp_path / "export").iterdir()) == []


class Unsavable(keras.layers.Dense):
    def get_config(self):
        return {**super().get_config(), "units": units}  # noqa: F821  # pyright: ignore


def test_a_layer_that_keras_cannot_save_is_named(tmp_path: Path):
    model = keras.Sequential([keras.Input((3,)), Unsavable(1)])
    with pytest.raises(lw.LoopwrightError) as caught:
        exporter.export({"serve": model}, tmp_path / "model.keras")
    assert str(caught.value) == (
        "Unsavable.get_config fails: name 'units' is not defined. Keras cannot save it.\n"
        "  expected: a get_config that names attributes of the layer\n"
        "  received: NameError in Unsavable.get_config\n"
        "  do: keep the arguments of __init__ as attributes, and return them: "
        '{**super().get_config(), "units": self.units}; or export a saved_model, which needs no '
        "get_config"
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("examples", [None, np.array([["cat"], ["dog"], ["eel"]])])
def test_a_model_of_strings_is_exported(tmp_path: Path, examples: Any):
    words = keras.Input((1,), dtype="string")
    numbers = keras.layers.StringLookup(vocabulary=["cat", "dog", "7"], output_mode="one_hot")
    keras.utils.set_random_seed(0)
    model = keras.Model(words, keras.layers.Dense(2)(numbers(words)))
    given = None if examples is None else {"serve": examples}
    # Both formats with one kind of examples each: every export starts a process.
    path = tmp_path / ("export" if examples is None else "model.keras")
    done = exporter.export({"serve": model}, path, given)
    assert done.largest_difference <= 1e-6


def test_strings_flags_whole_numbers_and_nan_of_the_task_itself_are_compared(tmp_path: Path):
    class Everything(keras.Model):
        def call(self, x: Any) -> Any:
            return {
                "words": tf.strings.as_string(x),
                "flags": x > 0,
                "counts": tf.argmax(x, -1),
                "logs": tf.math.log(x),  # NaN for negative numbers, here and there
                "short": tf.cast(x, tf.bfloat16),
                "ragged": tf.RaggedTensor.from_tensor(x, lengths=tf.argmax(x, -1) + 1),
            }

    class Own(lw.Task):
        def __init__(self) -> None:
            super().__init__()
            self.model = Everything()

    done = lw.Trainer(Own()).export(tmp_path / "export", examples={"serve": X[:8]})
    assert done.largest_difference <= 1e-6


def test_equal_infinities_are_equal_and_do_not_hide_other_differences():
    one = {"a": tf.constant([np.inf, -np.inf, 1.0])}
    assert outputs.compared(one, one, tolerance=1e-4) == (0.0, [])
    for other in ([np.inf, -np.inf, 1.1], [np.inf, np.inf, 1.0], [np.nan, -np.inf, 1.0]):
        _, problems = outputs.compared(one, {"a": tf.constant(other)}, tolerance=1e-4)
        assert len(problems) == 1


def test_the_next_export_removes_what_a_killed_one_left_and_nothing_else(
    trained: lw.Trainer, tmp_path: Path
):
    where = tmp_path / "export"
    killed = f"""
import os, signal, subprocess, keras, loopwright as lw
subprocess.run = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)  # all is written by then
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
lw.Trainer(lw.Supervised(model, "mse", "sgd")).export({os.fspath(where)!r})
"""
    done = subprocess.run([sys.executable, "-c", killed], check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL
    left = [path for path in where.iterdir() if ".tmp-" in path.name]
    assert left
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = where / f"{left[0].name[:-8]}01234567"
    link.symlink_to(elsewhere)
    own = where / ".notes.tmp-01234567"
    own.write_text("not ours")
    with disk.staged(where, ".loopwright.tmp-") as other:
        trained.export(where)
        assert other.is_dir()
    assert set(where.iterdir()) == {link, own, where / "1"}
    assert elsewhere.is_dir()
