"""Prediction: the right numbers in the right order, in few calls, and no trace left in the task."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.mirrored import mirrored

import loopwright as lw
from loopwright.compat import tensorflow_internals


class Predicting(lw.Task):
    """Predicts with any function, and counts how often Python runs it."""

    def __init__(self, function: Callable[[Any], Any]):
        super().__init__()
        self.function, self.runs = function, 0

    def predict_step(self, batch):
        self.runs += 1
        return self.function(batch)


def rows(count=70, width=3):
    return np.random.default_rng(0).normal(size=(count, width)).astype("float32")


KINDS = ["arrays", "stream", "stream of unknown length", "generator"]
kinds = pytest.mark.parametrize("kind", KINDS)


def batched(kind: str, x: Any, size: int) -> Any:
    """The same batches as arrays on the device, as a stream, or from Python."""
    if kind == "arrays":
        return lw.Arrays(x).in_batches_of(size)
    if kind == "generator":
        return (x[begin : begin + size] for begin in range(0, len(x), size))
    dataset = tf.data.Dataset.from_tensor_slices(x).batch(size)
    return dataset if kind == "stream" else dataset.filter(lambda _: True)


# --- numbers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "plan"),
    [
        *((kind, "graph") for kind in KINDS),
        *(("arrays", plan) for plan in ("eager", "xla", "fused")),
    ],
)
def test_predictions_are_those_of_keras(kind: str, plan: str):
    layers = [keras.layers.Dense(8, "relu"), keras.layers.BatchNormalization()]
    model = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(2)])
    trainer = lw.Trainer(lw.Supervised(model, "mse", "sgd"), plan=plan)

    made = trainer.predict(batched(kind, rows(), 32))  # the last batch has 6 examples

    expected = model.predict(rows(), verbose=0)
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-6)
    labelled = tf.data.Dataset.from_tensor_slices((rows(), rows())).batch(32)
    np.testing.assert_allclose(trainer.predict(labelled), expected, rtol=1e-5, atol=1e-6)


@kinds
@pytest.mark.parametrize("plan", ["graph", "eager"])
def test_predictions_keep_the_order_and_the_nest_of_the_step(kind: str, plan: str):
    def doubled(batch):
        return {"double": batch * 2, "pair": (batch, [tf.strings.as_string(batch)])}

    values = np.arange(70, dtype="int64")
    made = lw.Trainer(Predicting(doubled), plan=plan).predict(batched(kind, values, 32))

    np.testing.assert_array_equal(made["double"], values * 2)
    np.testing.assert_array_equal(made["pair"][0], values)
    assert isinstance(made["pair"], tuple)
    assert [int(text) for text in made["pair"][1][0]] == values.tolist()


@kinds
def test_steps_bound_the_batches(kind: str):
    trainer = lw.Trainer(Predicting(lambda batch: batch))

    made = trainer.predict(batched(kind, rows(), 8), steps=3)

    np.testing.assert_array_equal(made, rows()[:24])


@kinds
def test_a_step_may_take_and_give_strings(kind: str):
    words = np.array(["a", "bc", "def", "g", "hi"])
    task = Predicting(lambda batch: {"same": batch, "length": tf.strings.length(batch)})

    made = lw.Trainer(task).predict(batched(kind, words, 2))

    assert made["same"].tolist() == [b"a", b"bc", b"def", b"g", b"hi"]
    assert made["length"].tolist() == [1, 2, 3, 1, 2]


@kinds
@pytest.mark.parametrize("plan", ["graph", "eager"])
def test_a_step_may_keep_some_examples_only(kind: str, plan: str):
    task = Predicting(lambda batch: tf.boolean_mask(batch, batch[:, 0] > 0))

    made = lw.Trainer(task, plan=plan).predict(batched(kind, rows(), 1))

    np.testing.assert_array_equal(made, rows()[rows()[:, 0] > 0])


@kinds
@pytest.mark.parametrize("count", [3, 30])
def test_predictions_can_be_written_to(kind: str, count: int):
    trainer = lw.Trainer(Predicting(lambda batch: batch))
    assert trainer.predict(batched(kind, rows(count), 3)).flags.writeable


# --- few traces and calls ---------------------------------------------------------------------


@kinds
def test_a_thousand_batches_take_one_trace_and_few_calls(
    kind: str, monkeypatch: pytest.MonkeyPatch
):
    calls: list[int] = []
    compiled = tensorflow_internals.compiled

    def counting(function: Any, *args: Any, **kwargs: Any) -> Any:
        made: Any = compiled(function, *args, **kwargs)

        def call(*arguments: Any) -> Any:
            calls.append(made.experimental_get_tracing_count())
            return made(*arguments)

        setattr(call, "get_concrete_function", made.get_concrete_function)  # noqa: B010
        return call

    monkeypatch.setattr(tensorflow_internals, "compiled", counting)
    task = Predicting(lambda batch: batch + 1)

    made = lw.Trainer(task, plan="graph").predict(batched(kind, rows(1999), 2))

    np.testing.assert_array_equal(made, rows(1999) + 1)
    assert task.runs == 1
    assert 1 < len(calls) < 200
    assert max(calls) == 1  # whatever number of steps a call has


def test_an_eager_step_runs_in_python_for_each_batch():
    task = Predicting(lambda batch: tf.constant(batch.numpy()))
    made = lw.Trainer(task, plan="eager").predict(rows(), batch_size=32)
    np.testing.assert_array_equal(made, rows())
    assert task.runs == 3


# --- what does not fit into a loop ------------------------------------------------------------


def test_ragged_and_sparse_predictions_are_joined_beside_dense_ones():
    def converted(batch):
        ragged = tf.RaggedTensor.from_tensor(batch)
        return {"sparse": tf.sparse.from_dense(batch), "ragged": ragged, "dense": batch}

    task = Predicting(converted)
    made = lw.Trainer(task, plan="graph").predict(rows(), batch_size=32)
    assert task.runs == 1
    np.testing.assert_array_equal(tf.sparse.to_dense(made["sparse"]), rows())
    np.testing.assert_array_equal(made["ragged"].to_tensor(), rows())
    np.testing.assert_array_equal(made["dense"], rows())


def test_predictions_whose_shape_no_trace_tells_are_joined():
    def doubled(batch):
        return tf.numpy_function(lambda values: values * 2, [batch], tf.float32)

    made = lw.Trainer(Predicting(doubled)).predict(rows(), batch_size=32)
    np.testing.assert_array_equal(made, rows() * 2)


def test_one_number_for_the_only_batch_stays_a_number():
    made = lw.Trainer(Predicting(tf.reduce_sum)).predict(np.ones(5), batch_size=8)
    assert made.shape == ()
    assert made == 5


def sums(batch):
    return {"sum": tf.reduce_sum(batch, axis=1)}


def test_padded_batches_of_several_widths_are_predicted_in_one_trace():
    ones = tf.data.Dataset.range(1, 8).map(lambda count: tf.ones([count]))
    task = Predicting(sums)
    made = lw.Trainer(task, plan="graph").predict(ones.padded_batch(2))
    assert made["sum"].tolist() == list(range(1, 8))
    assert task.runs == 1


@pytest.mark.parametrize("plan", ["graph", "eager"])
def test_batches_that_change_their_shape_are_predicted_to_the_end(plan: str):
    batches = (np.full((2, width), width, "float32") for width in (3, 3, 5, 4))
    made = lw.Trainer(Predicting(sums), plan=plan).predict(batches)
    np.testing.assert_allclose(made["sum"], [9, 9, 9, 9, 25, 25, 16, 16])


@pytest.mark.parametrize("plan", ["graph", "eager"])
@pytest.mark.parametrize(
    ("function", "data", "received"),
    [
        (lambda batch: batch @ tf.transpose(batch), lambda: rows(7), "(4, 4), (3, 3)"),
        (lambda batch: batch, lambda: iter([np.ones((2, 3)), np.ones((2, 5))]), "(2, 3), (2, 5)"),
        (tf.reduce_sum, lambda: rows(9), "(), (), ()"),
    ],
    ids=["arrays", "generator", "numbers"],
)
def test_predictions_of_different_shapes_are_refused(
    plan: str, function: Callable[[Any], Any], data: Callable[[], Any], received: str
):
    given = data()
    given = lw.Arrays(given).in_batches_of(4) if isinstance(given, np.ndarray) else given

    with pytest.raises(lw.DataError) as caught:
        lw.Trainer(Predicting(function), plan=plan).predict(given)

    assert str(caught.value) == (
        "Predictions of different shapes cannot be joined.\n"
        "  expected: predictions that differ in their first axis only\n"
        f"  received: {received}\n"
        "  do: pad the data to one shape, or predict batch by batch"
    )


# --- no trace left ----------------------------------------------------------------------------


class Stateful(lw.Task):
    """Statistics, a seed, a metric and a counter, all of which the step changes."""

    def __init__(self):
        super().__init__()
        keras.utils.set_random_seed(7)
        layers = [keras.layers.BatchNormalization(), keras.layers.Dropout(0.5, seed=1)]
        self.model = keras.Sequential([*layers, keras.layers.Dense(1)])  # built when it is called
        self.mean, self.calls = keras.metrics.Mean(), tf.Variable(0, trainable=False)

    def predict_step(self, batch):
        made = self.model(batch, training=True)
        self.mean.update_state(made)
        return {"made": made, "call": tf.fill([tf.shape(made)[0]], self.calls.assign_add(1))}

    def held(self) -> list[Any]:
        variables = [*self.model.variables, *self.mean.variables, self.calls]
        return [np.asarray(variable) for variable in variables]


@kinds
@pytest.mark.parametrize("plan", ["graph", "eager"])
def test_predicting_leaves_no_trace_and_runs_in_order(kind: str, plan: str):
    task = Stateful()
    task.model.build((None, 3))
    before = task.held()

    made = lw.Trainer(task, plan=plan).predict(batched(kind, rows(), 8))

    assert made["call"].tolist() == [1 + row // 8 for row in range(70)]
    for value, now in zip(before, task.held(), strict=True):
        np.testing.assert_array_equal(now, value)


def test_what_the_step_makes_lazily_is_left_as_it_was_made():
    task = Stateful()

    lw.Trainer(task, plan="graph").predict(rows(), batch_size=8)

    statistics = task.model.layers[0]
    np.testing.assert_array_equal(statistics.moving_mean, np.zeros(3))
    np.testing.assert_array_equal(statistics.moving_variance, np.ones(3))


def test_a_failure_in_mid_prediction_leaves_no_trace():
    def failing():
        for number in range(40):
            yield rows(4)
            if number == 30:
                raise OSError("no such picture")

    task = Stateful()
    task.model.build((None, 3))
    before = task.held()

    with pytest.raises(lw.DataError, match="Batch 32 could not be made: OSError"):
        lw.Trainer(task).predict(failing())

    for value, now in zip(before, task.held(), strict=True):
        np.testing.assert_array_equal(now, value)


# --- replicas ---------------------------------------------------------------------------------


@kinds
@pytest.mark.parametrize(
    "function",
    [
        lambda batch: {"double": batch * 2, "row": (batch[:, 0],)},
        lambda batch: {"ragged": tf.RaggedTensor.from_tensor(batch)},
    ],
    ids=["dense", "ragged"],
)
def test_two_replicas_predict_in_the_order_of_the_data(kind: str, function: Callable[[Any], Any]):
    def predicted(strategy: tf.distribute.Strategy | None) -> list[Any]:
        trainer = lw.Trainer(lambda: Predicting(function), strategy=strategy)
        # The last of the batches has one example, and one replica none.
        made = trainer.predict(batched(kind, rows(17), 4))
        leaves = tf.nest.flatten(made)
        return [leaf.to_list() if "ragged" in made else leaf for leaf in leaves]

    for one, two in zip(predicted(None), predicted(mirrored()), strict=True):
        np.testing.assert_array_equal(two, one)


def test_the_same_kind_of_data_is_traced_once_and_a_changed_task_anew():
    traced: list[int] = []

    class Counting(lw.Task):
        factor = 2.0

        def predict_step(self, batch):
            traced.append(1)
            return batch * self.factor

    trainer = lw.Trainer(Counting())
    x = np.ones((10, 2), "float32")
    for _ in range(3):
        assert trainer.predict(x, batch_size=4).sum() == 40.0
    assert len(traced) == 1
    trainer.task.factor = 3.0
    assert trainer.predict(x, batch_size=4).sum() == 60.0
