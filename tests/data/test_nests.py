"""Leaves of every kind: what becomes of dtypes, frames, sparse and ragged tensors; specs."""

import json
from collections import namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis.strategies as st
import keras
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import tensorflow as tf
from hypothesis import given, settings
from tests.data.recorder import PLANS, Recorder, fit, ids, refused

import loopwright as lw
from loopwright.data import batches

ROWS = np.array([[1.0, 0, 2], [0, 0, 0], [0, 3, 0], [4, 0, 0], [0, 0, 5]])
RAGGED = [[1.0], [], [2.0, 3.0], [4.0, 5.0, 6.0], [7.0]]


@pytest.fixture
def floatx() -> Iterator[Callable[[str], None]]:
    """Sets Keras' floatx, and puts it back."""
    before = keras.config.floatx()
    yield keras.config.set_floatx
    keras.config.set_floatx(before)


def as_arrays(x: Any) -> Any:
    return x


def as_stream(x: Any) -> Any:
    return tf.data.Dataset.from_tensor_slices(x).batch(2)


def as_generator(x: Any) -> Any:
    return (tf.nest.map_structure(lambda leaf, i=i: leaf[i : i + 2], x) for i in (0, 2))


KINDS = [as_arrays, as_stream, as_generator]


# --- dtypes ---


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("kind", KINDS)
def test_floats_become_floatx_and_everything_else_stays(kind: Callable[[Any], Any], plan: str):
    dtypes = ["float64", "float16", "int64", "uint8", "bool", "<U3", "S3", "complex64"]
    given = {dtype: np.array([0, 1, 1, 0]).astype(dtype) for dtype in dtypes}

    task = fit(kind(given), shuffle=False, batch_size=2 if kind is as_arrays else None, plan=plan)

    changed = {"float64": "float32", "float16": "float32", "<U3": "object", "S3": "object"}
    for dtype, values in given.items():
        seen = np.concatenate([batch[dtype] for batch in task.trained])
        assert seen.dtype == changed.get(dtype, dtype)
        assert seen.astype(dtype).tolist() == values.tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wanted", ["float64", "float16"])
def test_floats_are_cast_to_the_floatx_of_the_day(
    kind: Callable[[Any], Any], wanted: str, floatx: Callable[[str], None]
):
    floatx(wanted)

    task = fit(kind(np.array([0.5, 1.5, 2.5, 3.5], "float32")))

    assert {batch.dtype.name for batch in task.trained} == {wanted}


@pytest.mark.parametrize(
    "make",
    [
        tf.constant,
        tf.Variable,
        keras.Variable,
        pd.DataFrame,
        lambda x: np.asfortranarray(x)[::-1][::-1],
    ],
    ids=["tensor", "variable", "keras variable", "frame", "strided"],
)
def test_whatever_holds_numbers_is_an_array(make: Callable[[Any], Any]):
    (batch,) = fit(make(ROWS), shuffle=False).trained

    assert batch.dtype == np.float32
    assert batch.tolist() == ROWS.tolist()


def test_lists_become_tuples_and_named_tuples_stay():
    Pair = namedtuple("Pair", "left right")

    made = batches.convert(Pair([np.ones(2)], {"a": (np.zeros(2),)}), "x")

    assert isinstance(made, Pair)
    assert isinstance(made.left, tuple)
    assert made.right["a"][0].numpy().tolist() == [0, 0]


# --- pandas ---


def test_a_series_is_a_column_and_a_frame_a_matrix():
    frame = pd.DataFrame({"a": [1, 2], "b": [0.5, 1.5]})

    ((x, y),) = fit(frame, frame["a"], shuffle=False).trained

    assert x.tolist() == [[1.0, 0.5], [2.0, 1.5]]
    assert y.tolist() == [[1], [2]]
    assert y.dtype == np.int64


def test_the_columns_of_a_frame_can_be_given_one_by_one():
    frame = pd.DataFrame({"city": ["Rom", "Ulm"], "size": [2.8, 0.1]})

    (batch,) = fit({name: frame[[name]] for name in frame}, shuffle=False).trained

    assert batch["city"].tolist() == [[b"Rom"], [b"Ulm"]]
    assert batch["size"].dtype == np.float32


TWO_DAYS = np.array(["2020-01-01", "2021-01-01"], dtype="datetime64[s]")


@pytest.mark.parametrize(
    ("table", "received"),
    [
        ({"size": [2.8, 0.1], "city": ["Rom", "Ulm"]}, "column 'size': float64, column 'city': "),
        ({"city": ["Rom", "Ulm"], "size": [2.8, 0.1]}, "column 'city': "),
        ({"day": TWO_DAYS}, "column 'day': datetime64"),
        ({"who": [{}, None]}, "column 'who': object"),
        (np.array([{}, {}]), "dtype object, first element dict"),
        (np.array(["a", 1.0], dtype=object), "dtype object, first element str"),
        (TWO_DAYS, "dtype datetime64"),
    ],
)
def test_objects_dates_and_columns_without_a_common_dtype_are_refused(table: Any, received: str):
    sentence = "x['table'] holds Python objects or dates, not numbers or strings."
    with refused(sentence, received=received) as caught:
        fit({"table": pd.DataFrame(table) if isinstance(table, dict) else table})
    assert "pass a dict with one array per column" in str(caught.value)


# --- sparse and ragged ---


def sparse_tensor() -> Any:
    return tf.sparse.from_dense(ROWS)


def unordered_sparse_tensor() -> Any:
    ordered = sparse_tensor()
    return tf.SparseTensor(ordered.indices[::-1], ordered.values[::-1], ordered.dense_shape)


def with_entries_to_be_added() -> Any:
    rows, columns = np.nonzero(ROWS)
    halves = np.concatenate([ROWS[rows, columns] / 2] * 2)
    place = (np.concatenate([rows, rows]), np.concatenate([columns, columns]))
    return scipy.sparse.coo_matrix((halves, place), shape=ROWS.shape)


@pytest.mark.parametrize(
    "make",
    [
        sparse_tensor,
        unordered_sparse_tensor,
        lambda: scipy.sparse.csr_matrix(ROWS),
        lambda: scipy.sparse.csc_array(ROWS),
        lambda: scipy.sparse.lil_matrix(ROWS),
        with_entries_to_be_added,
    ],
    ids=["tensor", "unordered tensor", "csr", "csc", "lil", "entries to be added"],
)
def test_sparse_examples_are_shuffled_whole_and_reach_the_step_sparse(make: Callable[[], Any]):
    task = fit({"x": make(), "row": np.arange(5)}, batch_size=2, epochs=2)

    assert task.kinds["x"] == "SparseTensor"
    for batch in task.trained:
        assert batch["x"].tolist() == ROWS[batch["row"]].tolist()
    assert sorted(ids(task.trained[:3], lambda b: b["row"])) == [0, 1, 2, 3, 4]
    assert task.trained[0]["x"].dtype == np.float32


@pytest.mark.parametrize("plan", PLANS)
def test_ragged_examples_are_shuffled_whole_and_reach_the_step_ragged(plan: str):
    task = fit({"row": np.arange(5), "x": ragged_tensor()}, batch_size=2, epochs=2, plan=plan)

    assert task.kinds["x"] == "RaggedTensor"
    for batch in task.trained:
        for row, padded in zip(batch["row"], batch["x"], strict=True):
            assert padded[padded != 0].tolist() == RAGGED[row]
    assert sorted(ids(task.trained[:3], lambda b: b["row"])) == [0, 1, 2, 3, 4]


CUTS = [slice(0, 2), slice(2, 4), slice(4, 5)]
RAGGED_BATCHES = [[[1.0], [0.0]], [[2.0, 3.0, 0.0], [4.0, 5.0, 6.0]], [[7.0]]]


def ragged_tensor() -> Any:
    return tf.ragged.constant(RAGGED, dtype=tf.float64)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: tf.data.Dataset.from_tensor_slices(sparse_tensor()).batch(2), "SparseTensor"),
        (lambda: (tf.sparse.from_dense(ROWS[cut]) for cut in CUTS), "SparseTensor"),
        (lambda: (scipy.sparse.csr_matrix(ROWS[cut]) for cut in CUTS), "SparseTensor"),
        (lambda: tf.data.Dataset.from_tensor_slices(ragged_tensor()).batch(2), "RaggedTensor"),
        (lambda: (ragged_tensor()[cut] for cut in CUTS), "RaggedTensor"),
    ],
)
def test_batches_of_streams_and_generators_reach_the_step_sparse_or_ragged(
    make: Callable[[], Any], kind: str
):
    task = fit(make(), plan="graph")

    assert task.kinds == kind
    expected = [ROWS[cut].tolist() for cut in CUTS] if kind[0] == "S" else RAGGED_BATCHES
    assert [batch.tolist() for batch in task.trained] == expected
    assert task.trained[0].dtype == np.float32


@pytest.mark.parametrize("plan", PLANS)
def test_predictions_from_sparse_and_ragged_inputs_are_joined_in_order(plan: str):
    trainer = lw.Trainer(Recorder(), plan=plan)

    sparse = trainer.predict(scipy.sparse.csr_matrix(ROWS), batch_size=2)
    ragged = trainer.predict(tf.ragged.constant(RAGGED), batch_size=2)

    assert tf.sparse.to_dense(sparse).numpy().tolist() == ROWS.tolist()
    assert ragged.to_list() == RAGGED


def test_a_model_scores_and_predicts_from_sparse_inputs_as_from_dense_ones():
    model = keras.Sequential([keras.Input((3,), sparse=True), keras.layers.Dense(1)])
    trainer = lw.Trainer(lw.Supervised(model, "mse", "sgd"))
    sparse, y = scipy.sparse.csr_matrix(ROWS), np.ones((5, 1))

    predicted = trainer.predict(sparse, batch_size=2)

    kernel, bias = model.get_weights()
    np.testing.assert_allclose(predicted, ROWS @ kernel + bias, rtol=1e-5)
    loss = trainer.evaluate(sparse, y, batch_size=2)["loss"]
    assert loss == pytest.approx(np.mean((predicted - y) ** 2), rel=1e-5)


numbers = st.integers(0, 2)
matrices = st.integers(1, 4).flatmap(
    lambda width: st.lists(st.lists(numbers, min_size=width, max_size=width), min_size=1)
)


@settings(max_examples=20)
@given(rows=matrices, draw=st.data())
def test_gathering_from_a_sparse_tensor_is_gathering_from_the_dense_one(
    rows: list[list[int]], draw: st.DataObject
):
    whole = np.array(rows)
    chosen = draw.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=6))

    gathered = batches.gather(tf.sparse.from_dense(whole), chosen)

    assert tf.sparse.to_dense(gathered).numpy().tolist() == whole[chosen].tolist()


# --- specs ---


def test_a_spec_in_floatx_is_the_spec_of_a_batch_in_floatx():
    batch = {
        "dense": tf.ones((2, 3), tf.float64),
        "number": tf.ones((2,), tf.int32),
        "sparse": tf.sparse.from_dense(np.eye(2)),
        "ragged": tf.ragged.constant(RAGGED, dtype=tf.float64),
    }
    spec = tf.nest.map_structure(tf.type_spec_from_value, batch)

    cast = tf.nest.map_structure(tf.type_spec_from_value, batches.to_floatx(batch))

    assert batches.spec_in_floatx(spec) == cast
    assert {leaf.shape[0] for leaf in batches.with_any_batch_size(cast).values()} == {None}
    assert [leaf.shape[1:] for leaf in batches.with_any_batch_size(cast).values()] == [
        leaf.shape[1:] for leaf in cast.values()
    ]


SPECS = {
    "one tensor": tf.TensorSpec([None, 3], tf.float32),
    "a pair": (tf.TensorSpec([None, 3]), tf.TensorSpec([None], tf.int64)),
    "named": {
        "image": tf.TensorSpec([None, 8, 8, 1], tf.uint8),
        "text": [tf.TensorSpec([None], tf.string)],
    },
    "ragged": tf.RaggedTensorSpec([None, None, 4], tf.float32, ragged_rank=1),
    "sparse": (tf.SparseTensorSpec([None, 100], tf.float32), tf.TensorSpec([None])),
    "of any rank": tf.TensorSpec(None, tf.float32),
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_a_spec_survives_a_file(spec: Any):
    again = batches.decoded(json.loads(json.dumps(batches.encoded(spec))))
    assert again == spec
    assert type(again) is type(spec)


def test_what_a_file_cannot_hold_is_nothing():
    pair = namedtuple("pair", "x y")
    assert batches.encoded(pair(tf.TensorSpec([None]), tf.TensorSpec([None]))) is None
    assert batches.encoded({1: tf.TensorSpec([None])}) is None
    assert batches.encoded(None) is None
