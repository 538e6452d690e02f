"""Programs written for Keras: what they ask for works, and messages speak of their code."""

import warnings
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from tests.mirrored import mirrored

import loopwright as lw
from loopwright.distribute import replicas


def regression(**compiled: Any) -> keras.Model:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), layers.Dense(1)])
    model.compile(**({"optimizer": "sgd", "loss": "mse"} | compiled))
    return model


def zipped(*sizes: int, drop_remainder: bool) -> tf.data.Dataset:
    parts = [
        tf.data.Dataset.from_tensor_slices(np.arange(60.0, dtype="float32").reshape(20, 3))
        .batch(size, drop_remainder=drop_remainder)
        .repeat()
        .take(7)
        for size in sizes
    ]
    return tf.data.Dataset.zip(tuple(parts))


class TwoSizes(lw.Task):
    """Adds up what it is given, in an order that matters."""

    def __init__(self) -> None:
        self.total = tf.Variable([1.0, 0.0])

    def train_step(self, batch: Any) -> Any:
        few, many = batch
        sums = tf.stack([tf.reduce_sum(few), tf.reduce_sum(many)])
        self.total.assign(0.5 * self.total + sums)
        return {"few": tf.shape(few)[0], "many": tf.shape(many)[0], "sum": sums[0] + sums[1]}


@pytest.mark.parametrize("drop_remainder", [True, False])
def test_datasets_zipped_with_different_batch_sizes_train_the_same_on_every_plan(drop_remainder):
    found = []
    for plan in ("graph", "fused", "eager"):
        task = TwoSizes()
        data = zipped(3, 8, drop_remainder=drop_remainder)
        history = lw.Trainer(task, plan=plan).fit(data, epochs=2, verbose=0).history
        found.append((history, task.total.numpy().tolist()))

    assert found[0] == found[1] == found[2]
    assert found[0][0]["few"][0] < found[0][0]["many"][0]


@pytest.mark.parametrize(
    "made",
    [
        lambda: tf.data.Dataset.from_tensors((np.ones((4, 3)), np.ones((9, 3)))),
        lambda: zipped(2, 4, drop_remainder=True).map(lambda a, b: (a + 1, b)).prefetch(1),
    ],
)
def test_batches_of_known_and_different_sizes_are_taken_as_batches(made):
    lw.Trainer(TwoSizes(), plan="graph").fit(made(), verbose=0)


def test_rows_that_were_unbatched_again_are_refused():
    rows = zipped(2, 2, drop_remainder=True).unbatch().map(lambda a, b: (a, b[:2]))
    with pytest.raises(lw.DataError, match="never batched"):
        lw.Trainer(TwoSizes()).fit(rows, verbose=0)


def test_each_replica_gets_its_part_of_every_zipped_batch():
    batch = (tf.range(4), tf.range(10))
    shares = [replicas.share(batch, index, 2) for index in range(2)]

    assert [part.numpy().tolist() for part in shares[0]] == [[0, 1], [0, 1, 2, 3, 4]]
    assert [part.numpy().tolist() for part in shares[1]] == [[2, 3], [5, 6, 7, 8, 9]]


def test_an_explicit_plan_wins_over_run_eagerly():
    assert lw.Trainer(regression(run_eagerly=True)).plan.step == "eager"
    assert lw.Trainer(regression(run_eagerly=True), plan="graph").plan.step == "graph"
    assert lw.Trainer(regression()).plan.step == "graph"


def test_predictions_of_a_compiled_model_get_the_floats_of_the_pipeline():
    class Kept(keras.Model):
        def predict_step(self, data):
            return data * 2

    model = Kept()
    model.compile()
    data = tf.data.Dataset.from_tensor_slices(np.ones((4, 3))).batch(2)

    assert lw.Trainer(model).predict(data).dtype == "float64"


# --- messages -------------------------------------------------------------------------------------


class Forgetful(keras.Model):
    def predict_step(self, data):
        return np.square(data)

    def train_step(self, data):
        return {"loss": np.mean(data)}

    def test_step(self, data):
        return {"loss": np.mean(data)}


@pytest.mark.parametrize("called", ["fit", "evaluate", "predict"])
def test_messages_name_the_class_of_the_model(called: str):
    model = Forgetful()
    model.compile()
    step = {"fit": "train_step", "evaluate": "test_step", "predict": "predict_step"}[called]
    options = {"verbose": 0} if called == "fit" else {}
    with pytest.raises(lw.StepError, match=rf"^Forgetful\.{step}") as caught:
        getattr(lw.Trainer(model), called)(np.ones((4, 3)), **options)
    assert "CompiledModel" not in str(caught.value)


def test_a_model_built_outside_of_the_scope_is_named_by_its_class():
    with pytest.raises(lw.ConfigurationError, match="This Sequential was built outside"):
        lw.Trainer(regression(), strategy=mirrored(2))


def test_advice_about_a_pydataset_is_not_to_use_a_pydataset(tmp_path):
    class Shuffled(keras.utils.PyDataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return np.ones((4, 3)), np.ones((4, 1))

        def on_epoch_end(self):
            pass

    trainer = lw.Trainer(regression(), run_dir=tmp_path / "run")
    with pytest.raises(lw.LoopwrightError) as caught:
        trainer.fit(Shuffled(), verbose=0)

    advice = str(caught.value).partition("do: ")[2]
    assert "Shuffled.resumable = True" in advice
    assert "PyDataset" not in advice
    assert "lw.Stream" not in advice


class Broadcasting(lw.Task):
    def __init__(self) -> None:
        self.model = keras.Sequential([keras.Input((3,)), layers.Dense(1)])
        self.optimizer = keras.optimizers.SGD()
        self.idle = keras.metrics.Mean(name="idle")

    def train_step(self, batch: Any) -> Any:
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.model(x) - y))
        self.minimize(loss, self.model, self.optimizer, tape)
        return {"loss": loss}


def test_warnings_point_at_a_line_of_the_program():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lw.Trainer(Broadcasting(), plan="graph").fit(np.ones((8, 3)), np.ones(8), verbose=0)

    found = {getattr(warning.message, "id", ""): warning.filename for warning in caught}
    assert found == {"broadcast": __file__, "idle-metric": __file__}


# --- false alarms ---------------------------------------------------------------------------------


class RaggedMeans(lw.Task):
    def __init__(self) -> None:
        self.table = tf.Variable(tf.ones((10, 2)))
        self.optimizer = keras.optimizers.SGD()

    def train_step(self, batch: Any) -> Any:
        words, weights, labels = batch
        with tf.GradientTape() as tape:
            means = tf.reduce_mean(tf.ragged.map_flat_values(tf.gather, self.table, words), axis=1)
            plain = tf.reduce_mean(weights, axis=1)
            spread = tf.math.reduce_std(weights, axis=1)
            heights = tf.reduce_max(weights / tf.reduce_sum(weights, axis=1, keepdims=True), axis=1)
            error = tf.reduce_sum(means, axis=1) + plain + spread + heights - labels
            loss = tf.reduce_mean(tf.square(error))
        self.minimize(loss, [self.table], self.optimizer, tape)
        return {"loss": loss}


def test_ragged_reductions_get_no_broadcasting_warning():
    words = tf.ragged.constant([[1, 2], [3], [4, 5, 6], [7]])
    weights = tf.ragged.constant([[1.0, 2.0], [3.0], [4.0, 5.0, 6.0], [7.0]])
    data = tf.data.Dataset.from_tensor_slices((words, weights, [0.0, 1.0, 0.0, 1.0])).batch(2)
    lw.Trainer(RaggedMeans(), plan="graph").fit(data, verbose=0)


# --- trackers and tuners --------------------------------------------------------------------------


def test_the_history_passes_as_one_of_keras():
    history = lw.Trainer(regression(), plan="graph").fit(np.ones((8, 3)), np.ones(8), verbose=0)

    assert isinstance(history, keras.callbacks.History)
    assert history.epoch == [0]
    assert list(history.history) == ["loss"]


def test_evaluate_prints_its_scores_if_asked(capsys):
    trainer = lw.Trainer(regression(), plan="graph")
    capsys.readouterr()

    scores = trainer.evaluate(np.ones((8, 3)), np.ones((8, 1)), verbose=1)
    assert capsys.readouterr().out == f"evaluate · loss {scores['loss']:.4f}\n"
    assert trainer.evaluate(np.ones((8, 3)), np.ones((8, 1)), verbose=0) == scores
    assert capsys.readouterr().out == ""
    with pytest.raises(lw.ConfigurationError, match="verbosity"):
        trainer.evaluate(np.ones((8, 3)), np.ones((8, 1)), verbose=7)  # pyright: ignore
