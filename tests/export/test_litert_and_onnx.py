"""LiteRT and ONNX files are run by their own runtimes before they are published."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import loopwright as lw
from loopwright.config.export_formats import Target
from loopwright.export import child, exporter
from loopwright.export.signatures import signatures

pytest.importorskip("ai_edge_litert")
pytest.importorskip("tf2onnx")

X = np.random.default_rng(0).normal(size=(160, 6)).astype("float32")
Y = (X[:, 0] > 0).astype("int32")
FILES = {"litert": "model.tflite", "onnx": "model.onnx"}


def classifier() -> keras.Model:
    keras.utils.set_random_seed(0)
    layers = [keras.Input((6,), name="features"), keras.layers.Dense(48, activation="relu")]
    return keras.Sequential([*layers, keras.layers.Dense(2, activation="softmax")])


@pytest.fixture(scope="module")
def trained() -> lw.Trainer:
    task = lw.Supervised(
        classifier(), "sparse_categorical_crossentropy", "adam", metrics=["accuracy"]
    )
    trainer = lw.Trainer(task, plan="graph")
    trainer.fit(X[:128], Y[:128], validation_data=(X[128:], Y[128:]), epochs=3, verbose=0)
    return trainer


def run_by_runtime(path: str, signature: str = "serve", **inputs: Any) -> dict[str, Any]:
    load = child.onnx_runs if path.endswith(".onnx") else child.litert_runs
    return dict(load(path)(signature)(inputs))


@pytest.mark.parametrize("format", FILES)
def test_a_file_gives_the_outputs_of_the_model_for_every_batch_size(
    trained: lw.Trainer, tmp_path: Path, format: str
):
    done = trained.export(tmp_path / FILES[format])
    assert done.format == format
    assert done.examples_from == {"serve": "data"}
    assert done.largest_difference <= 1e-5
    assert [each.examples for each in done.comparisons] == [8, 3, 1]
    for count in (1, 5):
        found = run_by_runtime(done.path, features=X[:count])
        np.testing.assert_allclose(found["output_0"], trained.predict(X[:count]), atol=1e-5)
    told = json.loads(Path(f"{done.path}.json").read_text())
    assert told["bytes"] == Path(done.path).stat().st_size
    assert told["runtime"].split()[0] in ("ai-edge-litert", "onnxruntime")
    with pytest.raises(lw.ConfigurationError, match="which already exists"):
        trained.export(tmp_path / FILES[format])


def test_a_runtime_runs_without_tensorflow(trained: lw.Trainer, tmp_path: Path):
    program = (
        "import sys; from loopwright.export import child\n"
        "child._run_in  # noqa\n"
        "import ai_edge_litert.interpreter, onnxruntime\n"
        "assert 'tensorflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("quantize", ["int8", "dynamic", "float16"])
def test_a_quantized_file_is_about_as_good_as_the_model(
    trained: lw.Trainer, tmp_path: Path, quantize: Any
):
    done = trained.export(tmp_path / "model.tflite", quantize=quantize)
    found = run_by_runtime(done.path, features=X[128:])["output_0"]
    right = float(np.mean(np.argmax(found, -1) == Y[128:]))
    assert right == pytest.approx(trained.evaluate(X[128:], Y[128:])["accuracy"], abs=0.1)


def test_int8_without_data_of_the_run_is_refused(tmp_path: Path):
    task = lw.Supervised(classifier(), "mse", "sgd")
    with pytest.raises(lw.ConfigurationError, match="calibrated on examples") as caught:
        lw.Trainer(task).export(tmp_path / "model.tflite", quantize="int8")
    assert "none for serve" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def recurrent() -> keras.Model:
    return keras.Sequential([keras.Input((None, 6)), keras.layers.GRU(4), keras.layers.Dense(1)])


def test_a_recurrent_layer_is_refused_by_litert_unless_the_batch_size_is_fixed(tmp_path: Path):
    models = {"serve": recurrent()}
    path = tmp_path / "model.tflite"
    with pytest.raises(lw.LoopwrightError, match="cannot be converted for LiteRT") as caught:
        exporter.export(models, path, target=Target(format="litert"))
    assert "needs a fixed batch size" in str(caught.value)
    assert "batch_size=1" in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    done = exporter.export(models, path, target=Target(format="litert", batch_size=1))
    assert [each.examples for each in done.comparisons] == [1]
    for length in (2, 9):
        x = np.ones((1, length, 6), "float32")
        found = run_by_runtime(done.path, inputs=x)["output_0"]
        np.testing.assert_allclose(found, models["serve"](x), atol=1e-5)


class Inverse(keras.layers.Layer):
    def call(self, x: Any) -> Any:
        return tf.linalg.inv(tf.einsum("bi,bj->bij", x, x) + tf.eye(3))


@pytest.mark.parametrize("format", FILES)
def test_an_operation_that_a_format_lacks_is_named(tmp_path: Path, format: Any):
    model = keras.Sequential([keras.Input((3,)), Inverse()])
    with pytest.raises(lw.LoopwrightError, match="has no operation for MatrixInverse"):
        exporter.export({"serve": model}, tmp_path / FILES[format], target=Target(format=format))
    assert list(tmp_path.iterdir()) == []


def several() -> dict[str, keras.Model]:
    left, right = keras.Input((4,), name="left"), keras.Input((2,), dtype="int32", name="right")
    joined = keras.layers.Concatenate()([left, keras.layers.Embedding(5, 3)(right)[:, 0]])
    named = {"sum": keras.layers.Dense(1)(joined), "all": keras.layers.Dense(3)(joined)}
    both = keras.Model({"left": left, "right": right}, named)
    listed = keras.Model([left, right], [keras.layers.Dense(2)(joined), joined])
    return {"both": both, "listed": listed}


def test_names_of_signatures_inputs_and_outputs_are_kept(tmp_path: Path):
    models = several()
    done = exporter.export(models, tmp_path / "model.tflite", target=Target(format="litert"))
    assert done.signatures == ["both", "listed"]
    x = {"left": np.ones((2, 4), "float32"), "right": np.ones((2, 2), "int32")}
    found = run_by_runtime(done.path, "both", left=x["left"], right=x["right"])
    assert set(found) == {"sum", "all"}
    np.testing.assert_allclose(found["all"], models["both"](x)["all"], atol=1e-5)
    assert set(run_by_runtime(done.path, "listed", left=x["left"], right=x["right"])) == {
        "output_0",
        "output_1",
    }
    saved = exporter.export(models, tmp_path / "export")
    loaded: Any = tf.saved_model.load(saved.path)
    assert set(loaded.signatures["both"].structured_input_signature[1]) == {"left", "right"}


def test_onnx_takes_one_signature_and_names_the_choice(tmp_path: Path):
    models = several()
    path = tmp_path / "model.onnx"
    with pytest.raises(lw.ConfigurationError, match=r"signatures=\["):
        exporter.export(models, path, target=Target(format="onnx"))
    with pytest.raises(lw.ConfigurationError, match="no model 'neither'"):
        exporter.export(models, path, target=Target(format="onnx", signatures=("neither",)))
    done = exporter.export(models, path, target=Target(format="onnx", signatures=("both",)))
    x = {"left": np.ones((2, 4), "float32"), "right": np.ones((2, 2), "int32")}
    assert set(run_by_runtime(done.path, left=x["left"], right=x["right"])) == {"sum", "all"}


def test_outputs_that_differ_only_in_some_batch_size_are_found(tmp_path: Path):
    class Alone(keras.layers.Layer):
        """Adds one to a batch of one in TensorFlow's eager mode only."""

        def call(self, x: Any) -> Any:
            return x + 1.0 if x.shape[0] == 1 else x + 0.0

    model = keras.Sequential([keras.Input((3,)), Alone()])
    with pytest.raises(lw.LoopwrightError, match="serve, batch of 1: output 'output_0' has a rel"):
        exporter.export({"serve": model}, tmp_path / "m.tflite", target=Target(format="litert"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"format": "coreml"}, "Unknown export format"),
        ({"quantize": "int4", "format": "litert"}, "Unknown quantization"),
        ({"quantize": "int8", "format": "onnx"}, "Only LiteRT files are quantized"),
        ({"batch_size": 2, "format": "saved_model"}, "fixed batch size is for LiteRT"),
        ({"batch_size": 0, "format": "litert"}, "fixed batch size is for LiteRT"),
    ],
)
def test_wrong_arguments_are_refused(trained: lw.Trainer, arguments: Any, words: str):
    with pytest.raises(lw.ConfigurationError, match=words):
        trained.export("unused", **arguments)


def test_examples_are_those_of_the_data_where_the_model_accepts_them():
    class Pair(keras.Model):
        def call(self, x: Any) -> Any:
            return x["a"] + x["b"]

    pair = Pair()
    batch = ({"a": tf.ones((4, 2)), "b": tf.ones((4, 2))}, tf.ones(4))
    pair(batch[0])
    other = keras.Sequential([keras.Input((7,)), keras.layers.Dense(1)])
    origins = {one.name: one for one in signatures({"pair": pair, "other": other}, None, batch)}
    assert origins["pair"].origin == "data"
    assert origins["pair"].input_names == ["a", "b"]
    assert origins["other"].origin == "drawn"
