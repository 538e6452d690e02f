"""Arrays: order = f(seed, epoch), nests of every form, maps with seeds, splits, class weights."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.data.recorder import PLANS, Recorder, fit, ids, refused, sizes

import loopwright as lw
from loopwright.data.source import Epochs
from loopwright.distribute import replicas

X = np.arange(10.0)


def epochs_of(task: Recorder, steps: int = 3) -> list[list[float]]:
    """The examples of each epoch, in order."""
    return [ids(task.trained[i : i + steps]) for i in range(0, len(task.trained), steps)]


# --- nests ---


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ((X,), lambda x: x),
        ((X, X), lambda x: (x, x)),
        ((X, X, X), lambda x: (x, x, x)),
        (((X, X),), lambda x: (x, x)),
        (((X, X, X),), lambda x: (x, x, x)),
        (({"a": X, "b": X},), lambda x: {"a": x, "b": x}),
        (({"a": X, "b": (X, X)}, {"y": X}), lambda x: ({"a": x, "b": (x, x)}, {"y": x})),
        (([X, X], X), lambda x: ((x, x), x)),
        (([X, X],), lambda x: ((x, x),)),
        (([X, {"a": [X]}], X, X), lambda x: ((x, {"a": (x,)}), x, x)),
    ],
)
def test_a_nest_of_arrays_reaches_the_step_in_its_own_form(
    data: tuple[Any, ...], expected: Callable[[Any], Any]
):
    task = fit(*data, batch_size=10, shuffle=False, plan="eager")

    (batch,) = task.trained
    tf.nest.assert_same_structure(batch, expected(X))
    assert all(leaf.tolist() == X.tolist() for leaf in tf.nest.flatten(batch))


@pytest.mark.parametrize("plan", PLANS)
def test_shuffling_keeps_the_leaves_of_an_example_together(plan: str):
    x = {"image": np.stack([X, -X], axis=1), "text": X.astype(int).astype(str)}

    task = fit(x, X * 2, X * 3, batch_size=4, epochs=2, plan=plan)

    for x, y, weight in task.trained:
        number = x["image"][:, 0]
        assert (-x["image"][:, 1]).tolist() == number.tolist()
        assert x["text"].astype(float).tolist() == number.tolist()
        assert y.tolist() == (number * 2).tolist()
        assert weight.tolist() == (number * 3).tolist()


@pytest.mark.parametrize("plan", PLANS)
def test_every_epoch_has_each_example_once_and_keeps_its_last_smaller_batch(plan: str):
    task = fit(X, batch_size=4, epochs=3, plan=plan)

    assert sizes(task.trained) == [4, 4, 2] * 3
    assert [sorted(epoch) for epoch in epochs_of(task)] == [X.tolist()] * 3


def test_batches_have_32_examples_unless_one_says_otherwise():
    assert sizes(fit(np.arange(70.0)).trained) == [32, 32, 6]
    assert sizes(fit(lw.Arrays(X).in_batches_of(4)).trained) == [4, 4, 2]
    assert sizes(fit(lw.Arrays(X).in_batches_of(4), batch_size=6).trained) == [6, 4]


# --- order ---


def test_the_order_is_a_function_of_seed_and_epoch_and_of_nothing_else():
    first, second = epochs = epochs_of(fit(X, batch_size=4, epochs=2))

    other = epochs_of(fit(X, batch_size=4, epochs=2, seed=1))
    assert len({tuple(order) for order in [X, *epochs, *other]}) == 5
    assert epochs_of(fit(X, batch_size=4, epochs=2, plan="graph")) == epochs
    assert ids(fit(X, batch_size=7).trained) == first
    assert ids(fit(X, batch_size=7, shuffle=False).trained) == X.tolist()
    trainer = lw.Trainer(task := Recorder())
    trainer.fit(X, batch_size=4, verbose=0)
    trainer.fit(X, batch_size=4, verbose=0)  # goes on with the next epoch
    assert epochs_of(task) == [first, second]


@pytest.mark.parametrize("seed", [-1, 2**40])
def test_any_integer_is_a_seed(seed: int):
    assert sorted(ids(fit(lw.Arrays(X, map=lambda x, _: x), seed=seed).trained)) == X.tolist()


def test_shorter_epochs_go_on_where_the_one_before_stopped():
    long = fit(X, batch_size=4, epochs=2)
    short = fit(X, batch_size=4, epochs=3, steps_per_epoch=2)

    assert ids(short.trained) == ids(long.trained)
    assert len(short.trained) == 6


# --- map ---


def with_seed(example: Any, seed: int) -> Any:
    """The example, and a float that is as good as its seed."""
    return example, np.float64(seed % 2**20)


def seeds(task: Recorder, steps: int) -> list[dict[float, float]]:
    """Of each epoch: the seed of each example."""
    pairs = [dict(zip(x.tolist(), s.tolist(), strict=True)) for x, s in task.trained]
    epochs = [pairs[i : i + steps] for i in range(0, len(pairs), steps)]
    return [{k: v for batch in epoch for k, v in batch.items()} for epoch in epochs]


def test_the_seed_of_a_mapped_example_depends_on_seed_epoch_and_example_only():
    data = lw.Arrays(X, map=with_seed)

    first, second = seeds(fit(data, batch_size=4, epochs=2), steps=3)

    assert len({*first.values(), *second.values()}) == 20
    again = fit(data, batch_size=7, epochs=2, shuffle=False, plan="eager")
    assert seeds(again, steps=2) == [first, second]
    assert seeds(fit(data, batch_size=10, seed=1), steps=1) != [first]


def test_a_map_gets_numpy_examples_and_may_change_structure_shape_and_dtype():
    seen: list[Any] = []

    def change(example: Any, seed: int) -> Any:
        seen.append(example)
        (number, word), label = example
        return {"row": np.full(3, number), "word": word + b"!"}, int(label)

    words = np.array([str(int(x)) for x in X])
    task = fit(lw.Arrays([X, words], X, map=change), batch_size=4, shuffle=False)

    assert {type(example[0][0]) for example in seen} == {np.float32}
    inputs, labels = task.trained[-1]
    assert inputs["row"].tolist() == [[8.0] * 3, [9.0] * 3]
    assert inputs["word"].tolist() == [b"8!", b"9!"]
    assert labels.tolist() == [8, 9]
    assert inputs["row"].dtype == np.float32
    assert labels.dtype == np.int64


@pytest.mark.parametrize("plan", PLANS)
def test_a_map_that_fails_is_a_data_error_that_names_the_example(plan: str):
    def fail(example: Any, seed: int) -> Any:
        if example == 6:
            raise OSError("no such picture")
        return example

    with pytest.raises(lw.DataError, match="map failed for example 6: OSError: no such") as caught:
        fit(lw.Arrays(X, map=fail), batch_size=2, shuffle=False, plan=plan)
    assert isinstance(caught.value.__cause__, OSError)


def test_a_map_has_to_give_examples_of_one_shape():
    data = lw.Arrays(X, map=lambda x, _: np.ones(int(x) + 1))

    with refused("map returned examples of different shapes.", received="(1,) and (2,)"):
        fit(data, batch_size=2, shuffle=False)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: tf.ragged.constant([[1.0], [2.0, 3.0]]), "RaggedTensor"),
        (lambda: tf.sparse.from_dense(np.eye(2)), "SparseTensor"),
    ],
)
def test_a_map_over_sparse_or_ragged_examples_is_refused(make: Callable[[], Any], kind: str):
    with refused("map changes one example at a time", received=f"x['a'] is a {kind}"):
        lw.Arrays({"a": make()}, map=lambda x, _: x)


# --- validation_split ---


@pytest.mark.parametrize("plan", PLANS)
def test_validation_split_takes_the_last_part_before_shuffling(plan: str):
    task = fit(X, X, batch_size=4, epochs=2, validation_split=0.25, plan=plan)

    assert sorted(ids(task.trained[:2], lambda b: b[0])) == [0, 1, 2, 3, 4, 5, 6]
    assert [ids([batch], lambda b: b[1]) for batch in task.tested] == [[7, 8, 9]] * 2


@pytest.mark.parametrize("fraction", [0.33, 0.7])
def test_validation_split_cuts_where_keras_cuts(fraction: float):
    seen: list[int] = []

    class Counting(keras.Model):
        def train_step(self, data):
            seen.append(len(data))
            return {"loss": 0.0}

        def test_step(self, data):
            return {"loss": 0.0}

    model = Counting()
    model.compile(run_eagerly=True)
    model.fit(X, batch_size=3, validation_split=fraction, verbose=0)

    assert sizes(fit(X, batch_size=3, validation_split=fraction, plan="eager").trained) == seen


def test_map_and_class_weights_belong_to_training_and_not_to_the_part_split_off():
    data = lw.Arrays(X, X % 2, map=lambda e, _: (e[0] + 100, e[1]))

    task = fit(data, batch_size=8, validation_split=0.2, class_weight={1: 5.0}, shuffle=False)

    ((x, y, weight),) = task.trained
    assert x.tolist() == list(range(100, 108))
    assert weight.tolist() == [1, 5] * 4
    ((x, y),) = task.tested
    assert x.tolist() == [8, 9]
    assert y.tolist() == [0, 1]


# --- class weights ---

LABELS = np.array([0, 1, 2, 1, 0])
WEIGHTED = [1.0, 5.0, 0.5, 5.0, 1.0]


@pytest.mark.parametrize(
    "labels",
    [LABELS, LABELS[:, None], np.eye(3)[LABELS], LABELS + 0.1, LABELS.astype("uint8")],
    ids=["numbers", "column", "one-hot", "floats", "bytes"],
)
def test_class_weights_become_sample_weights(labels: np.ndarray):
    task = fit(X[:5], labels, class_weight={1: 5.0, 2: 0.5}, shuffle=False, batch_size=2)

    assert ids(task.trained, lambda batch: batch[2]) == WEIGHTED
    assert task.trained[0][2].dtype == np.float32


def test_class_weights_give_the_loss_that_keras_reports():
    def model() -> keras.Model:
        keras.utils.set_random_seed(0)
        made = keras.Sequential([keras.Input((1,)), keras.layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        made.compile("sgd", loss)
        return made

    arguments: Any = {"class_weight": {1: 5.0, 2: 0.5}, "batch_size": 2, "shuffle": False}
    x, arguments = X[:5, None], arguments | {"epochs": 2, "verbose": 0, "validation_split": 0.2}

    expected = model().fit(x, LABELS, **arguments).history
    history = lw.Trainer(model()).fit(x, LABELS, **arguments).history

    assert set(history) == {"loss", "val_loss"}
    for name, values in history.items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-5)


# --- what cannot be trained on ---


@pytest.mark.parametrize(
    ("data", "sentence", "received"),
    [
        ((X, X[:7]), "The arrays have different lengths.", "x: 10, y: 7"),
        (([X, {"a": X[1:]}],), "The arrays have different lengths.", "x[0]: 10, x[1]['a']: 9"),
        ((X, X, X[:3]), "The arrays have different lengths.", "x: 10, y: 10, sample_weight: 3"),
        ((X[:0],), "The data is empty.", "x: 0 examples"),
        ((X[:0], X[:0]), "The data is empty.", "x: 0 examples, y: 0 examples"),
        (({},), "The data is empty.", "no arrays"),
        ((3.0,), "x is a single number, not an array of examples.", "x = "),
        (([1.0, 2.0],), "x[0] is a single number, not an array of examples.", "x[0] = "),
        ((X, None, X), "sample_weight needs y.", "sample_weight without y"),
    ],
)
def test_data_that_cannot_be_used_is_refused_before_the_first_step(
    data: Any, sentence: str, received: str
):
    task = Recorder()
    trainer = lw.Trainer(task)

    with refused(sentence, received=received):
        trainer.fit(*data, verbose=0)
    with refused(sentence, received=received):
        trainer.evaluate(*data)

    assert task.trained == task.tested == []


NO_PART = "validation_split leaves one part empty."
UNLABELLED, WEIGHTS = "class_weight needs one array of labels", {"class_weight": {0: 1.0}}


@pytest.mark.parametrize(
    ("data", "options", "sentence", "received"),
    [
        *(((X,), {"batch_size": n}, "A batch has at least", f"batch_size={n}") for n in (0, -4)),
        *(
            ((X,), {"validation_split": part}, NO_PART, f"validation_split={part} of 10 examples")
            for part in (0.99, 1.0, 1.5, -0.5)
        ),
        ((X,), WEIGHTS, UNLABELLED, "no labels"),
        (({"x": X},), WEIGHTS, UNLABELLED, "no labels"),
        ((X, X, X), WEIGHTS, UNLABELLED, "sample_weight"),
        ((X, {"a": X, "b": X}), WEIGHTS, UNLABELLED, "labels for several outputs"),
        ((X, [X, X]), WEIGHTS, UNLABELLED, "labels for several outputs"),
    ],
)
def test_options_that_do_not_fit_the_arrays_are_refused(
    data: Any, options: dict[str, Any], sentence: str, received: str
):
    with refused(sentence, received=received):
        fit(*data, **options)


# --- evaluate and predict ---


@pytest.mark.parametrize("compiled", [False, True])
def test_a_model_with_several_inputs_predicts_from_a_list(compiled: bool):
    inputs = [keras.Input((1,)), keras.Input((2,))]
    model = keras.Model(inputs, keras.layers.Concatenate()(inputs))
    model.compile("sgd", "mse")
    trainer = lw.Trainer(model if compiled else lw.Supervised(model, "mse", "sgd"))

    made = trainer.predict([X[:, None], np.stack([X, X], axis=1)], batch_size=4)

    assert made.tolist() == [[x, x, x] for x in X]


def test_arrays_that_would_fill_the_device_are_streamed(monkeypatch: pytest.MonkeyPatch):
    x = np.zeros((100, 8), "float32")
    data = lw.Arrays(x)
    monkeypatch.setattr(replicas, "device_memory_bytes", lambda: 4 * x.nbytes)
    assert data.training(Epochs()).resident is not None
    monkeypatch.setattr(replicas, "device_memory_bytes", lambda: 4 * x.nbytes - 1)
    assert data.training(Epochs()).resident is None
    assert data.one_pass(steps=None).resident is None
    with pytest.raises(lw.ConfigurationError, match="only arrays can be kept on the device"):
        lw.Trainer(Sums(), plan=lw.Plan(feed="resident")).fit(x, verbose=0)
    trainer = lw.Trainer(Sums())
    trainer.fit(x, verbose=0)
    assert trainer.plan == lw.Plan("graph", "graph", "stream")


class Sums(lw.Task):
    def train_step(self, batch: Any) -> Any:
        return {"sum": tf.reduce_sum(batch)}
