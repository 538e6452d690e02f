"""An export holds what `predict` returns; where it cannot, it says what it holds."""

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.tasks import ByHand

import loopwright as lw
from loopwright.export import child, exporter, outputs
from loopwright.export.exporter import worded
from loopwright.export.request import served
from loopwright.export.signatures import flat_names, signatures
from loopwright.sinks.report import export_rows

X = np.random.default_rng(0).normal(size=(32, 3)).astype("float32")
Y = (X[:, :1] > 0).astype("float32")


class Classifier(ByHand):
    """Trains on logits, predicts probabilities with a temperature that is no part of the model."""

    def __init__(self) -> None:
        keras.utils.set_random_seed(0)
        super().__init__(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
        self.temperature = tf.Variable(0.5)
        self.seed = keras.random.SeedGenerator(0)

    def loss_of(self, x: Any, y: Any) -> Any:
        loss = keras.losses.binary_crossentropy(y, self.model(x), from_logits=True)
        return tf.reduce_mean(loss)

    def test_step(self, batch: Any) -> Any:
        return {"loss": self.loss_of(*batch)}

    def predict_step(self, batch: Any) -> Any:
        logits = self.model(batch, training=False) / self.temperature
        if tf.reduce_max(logits) > 1000.0:  # converted by AutoGraph, as in predict
            logits = tf.zeros_like(logits)
        return {"probability": tf.sigmoid(logits), "class": tf.cast(logits > 0, tf.int32)}


def test_a_saved_model_returns_what_predict_returns(tmp_path: Path):
    trainer = lw.Trainer(Classifier(), run_dir=tmp_path / "run", plan="graph")
    trainer.fit(X, Y, verbose=0)
    done = trainer.export()
    loaded: Any = tf.saved_model.load(done.path)
    found, expected = loaded.serve(tf.constant(X)), trainer.predict(X)
    assert set(found) == set(expected) == {"probability", "class"}
    np.testing.assert_allclose(found["probability"], expected["probability"], rtol=1e-5)
    np.testing.assert_array_equal(found["class"], expected["class"])
    assert done.holds == "what predict returns"
    assert worded(done).startswith(f"{done.path} (serve: what predict returns): outputs match")
    told = json.loads((Path(done.path) / "loopwright.json").read_text())
    assert told["holds"] == done.holds
    assert [row["holds"] for row in export_rows(tmp_path / "run")] == [done.holds]


@pytest.mark.parametrize(
    ("file", "options", "tolerance"),
    [("model.tflite", {"quantize": "dynamic"}, 0.05), ("model.onnx", {}, 1e-5)],
)
def test_a_converted_file_returns_what_predict_returns(
    tmp_path: Path, file: str, options: Any, tolerance: float
):
    pytest.importorskip("ai_edge_litert")
    pytest.importorskip("tf2onnx")
    trainer = lw.Trainer(Classifier(), plan="graph")
    trainer.fit(X, Y, validation_data=(X, Y), verbose=0)
    done = trainer.export(tmp_path / file, **options)
    load = child.onnx_runs if file.endswith("onnx") else child.litert_runs
    found, expected = load(done.path)("serve")({"inputs": X}), trainer.predict(X)
    np.testing.assert_allclose(found["probability"], expected["probability"], atol=tolerance)
    assert done.holds == "what predict returns"


def calls_python(self: Classifier, batch: Any) -> Any:
    return tf.numpy_function(lambda x: x * 2, [self.model(batch)], tf.float32)


class RandomStep(Classifier):
    def predict_step(self, batch: Any) -> Any:
        return self.model(batch) + keras.random.normal((1,), seed=self.seed)


def takes_a_pair(self: Classifier, batch: Any) -> Any:
    x, _ = batch
    return tf.sigmoid(self.model(x))


def returns_a_row(self: Classifier, batch: Any) -> Any:
    return tf.reduce_mean(self.model(batch))


def is_eager(self: Classifier, batch: Any) -> Any:
    return tf.constant(self.model(batch).numpy())


class TableStep(Classifier):
    def __init__(self) -> None:
        super().__init__()
        rows = tf.lookup.KeyValueTensorInitializer([0, 1], ["no", "yes"], tf.int64, tf.string)
        self.table = tf.lookup.StaticHashTable(rows, "?")

    def predict_step(self, batch: Any) -> Any:
        return self.table.lookup(tf.cast(self.model(batch) > 0, tf.int64))


WHY = {
    calls_python: "it calls Python",
    RandomStep.predict_step: "its outputs differ from call to call",
    takes_a_pair: "it fails on the inputs of the model",
    returns_a_row: "its outputs do not have one row per example",
    is_eager: "it fails on the inputs of the model",
}


@pytest.mark.parametrize("step", WHY, ids=lambda step: step.__name__)
def test_a_predict_step_that_cannot_be_served_is_said(step: Any):
    task = type("Own", (Classifier,), {"predict_step": step})()
    (one,) = signatures(task.exports(), {"serve": X[:8]}, None)
    found, holds = served(task, "saved_model", one)
    assert found is one
    assert holds.startswith(f"the model without predict_step: {WHY[step]}")


def test_a_table_of_the_task_is_exported_with_predict_step(tmp_path: Path):
    trainer = lw.Trainer(TableStep(), plan="graph")
    done = trainer.export(tmp_path / "export")
    assert done.holds == "what predict returns"
    loaded: Any = tf.saved_model.load(done.path)
    np.testing.assert_array_equal(loaded.serve(tf.constant(X)), trainer.predict(X))


def test_the_model_is_exported_where_predict_step_cannot_be(tmp_path: Path):
    trainer = lw.Trainer(RandomStep(), plan="graph")
    before = trainer.task.seed.state.numpy()
    done = trainer.export(tmp_path / "export")
    loaded: Any = tf.saved_model.load(done.path)
    np.testing.assert_allclose(loaded.serve(tf.constant(X)), trainer.task.model(X), rtol=1e-5)
    assert "(serve: the model without predict_step: its outputs differ" in worded(done)
    np.testing.assert_array_equal(trainer.task.seed.state.numpy(), before)


class ChoosesModels(Classifier):
    def exports(self) -> Any:
        return {"serve": self.model}


class NoPredictions(lw.Task):
    def __init__(self) -> None:
        super().__init__()
        self.model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])


def compiled() -> keras.Model:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize(
    ("make", "format", "words"),
    [
        (Classifier, "keras", "the model without predict_step, which a .keras file cannot hold"),
        (ChoosesModels, "saved_model", "what Task.exports returns, not predict_step"),
        (NoPredictions, "saved_model", "the model; the task has no predict_step"),
        (lambda: lw.Supervised(compiled(), "mse", "sgd"), "keras", "what predict returns"),
        (compiled, "keras", "what predict returns"),
    ],
    ids=["keras", "exports", "no_predictions", "supervised", "compiled"],
)
def test_an_export_of_a_model_says_whether_it_is_what_predict_returns(
    make: Any, format: Any, words: str
):
    task = lw.Trainer(make()).task
    (one,) = signatures(task.exports(), {"serve": X[:8]}, None)
    assert served(task, format, one) == (one, words)


class Colliding(keras.Model):
    """Its inputs and outputs have names that are the same without their punctuation."""

    def call(self, x: Any) -> Any:
        return {
            "x-y": x["a.1"] + 1.0,
            "x_y": x["a_1"] * 3.0,
            "h.1": x["a.1"] * 2.0,
            "h_1": x["a.1"] - x["a_1"],
        }


@pytest.mark.parametrize("suffix", ["tflite", "onnx"])
def test_outputs_and_inputs_whose_names_collapse_are_all_kept(tmp_path: Path, suffix: str):
    pytest.importorskip("ai_edge_litert")
    pytest.importorskip("tf2onnx")
    model, x = Colliding(), {"a.1": X[:4], "a_1": X[4:8]}
    done = exporter.export({"serve": model}, tmp_path / f"m.{suffix}", {"serve": x})
    load = child.litert_runs if suffix == "tflite" else child.onnx_runs
    found = load(done.path)("serve")({"a_1": x["a_1"], "a_1_2": x["a.1"]})
    expected = model(x)
    assert set(found) == {"x_y", "x_y_2", "h_1", "h_1_2"}
    for name, path in (("x_y", "x_y"), ("x_y_2", "x-y"), ("h_1", "h_1"), ("h_1_2", "h.1")):
        np.testing.assert_allclose(found[name], expected[path], rtol=1e-5)
    assert done.renamed == {
        "input 'a.1'": "a_1_2",
        "output 'h.1'": "h_1_2",
        "output 'x-y'": "x_y_2",
    }
    assert "renamed: input 'a.1' is a_1_2, output 'h.1' is h_1_2" in worded(done)


def test_names_are_unique_and_a_plain_name_is_kept():
    assert flat_names(["a-b", "a.b", "a_b", "a_b_2", "", "0"]) == {
        "a-b": "a_b_2_2",
        "a.b": "a_b_2_2_2",
        "a_b": "a_b",
        "a_b_2": "a_b_2",
        "": "output_0",
        "0": "output_0_2",
    }


def test_outputs_at_the_same_path_are_counted():
    one, two = tf.zeros(1), tf.ones(1)
    assert list(outputs.named({"a": {"b": one}, "a/b": two})) == ["a/b", "a/b'"]
    own = outputs.named({"a": {"b": one}, "a/b": two})
    assert outputs.compared(own, outputs.named({"a/b": two}))[1]
