"""What `fit`, `evaluate` and `predict` take, and what cannot stand beside what."""

import re
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.data.recorder import PLANS, Recorder, fit, ids, refused, sizes

import loopwright as lw

X = np.arange(6.0)


class Pairs(keras.utils.PyDataset):
    """Batches of (x, x), two examples each; the last is smaller."""

    @property
    def num_batches(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        part = X[4 * index : 4 * index + 4]
        return part, part


def dataset() -> Any:
    return tf.data.Dataset.from_tensor_slices((X, X)).batch(4)


def generator() -> Any:
    return ((X[i : i + 4], X[i : i + 4]) for i in (0, 4))


class Again:
    def __iter__(self) -> Any:
        return generator()


KINDS: dict[str, Callable[[], Any]] = {
    "Arrays": lambda: lw.Arrays(X, X).in_batches_of(4),
    "tf.data.Dataset": dataset,
    "Stream": lambda: lw.Stream(dataset()),
    "Pairs": Pairs,
    "generator": generator,
    "Again": Again,
}
kinds = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)


@kinds
def test_every_kind_of_data_trains_evaluates_and_predicts(make: Callable[[], Any]):
    task = Recorder()
    trainer = lw.Trainer(task)

    history = trainer.fit(make(), shuffle=False, verbose=0)

    assert ids(task.trained, lambda batch: batch[1]) == X.tolist()
    assert sizes(task.trained) == [4, 2]
    assert history.history == {"loss": [2.5]}
    assert trainer.evaluate(make()) == {"loss": 2.5}
    assert trainer.predict(make())[0].tolist() == X.tolist()


@kinds
def test_every_kind_of_data_takes_class_weights(make: Callable[[], Any]):
    task = fit(make(), class_weight={0: 2.0, 5: 7.0}, shuffle=False)

    assert ids(task.trained, lambda batch: batch[2]) == [2, 1, 1, 1, 1, 7]


# --- what cannot stand beside what ---


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("argument", ["y", "sample_weight"])
def test_labels_and_weights_are_not_dropped_in_silence(kind: str, argument: str):
    task = Recorder()

    sentence = f"{argument} cannot be combined with data of type {kind}."
    with refused(sentence, received=f"a {kind} and {argument}"):
        lw.Trainer(task).fit(KINDS[kind](), **{"verbose": 0, argument: X})  # pyright: ignore

    assert task.trained == []


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "Arrays"])
def test_a_batch_size_beside_batches_is_ignored_with_a_warning(kind: str):
    sentence = f"batch_size=8 is ignored: a {kind} is already in batches."
    with pytest.warns(lw.LoopwrightWarning, match=re.escape(sentence)) as caught:
        task = fit(KINDS[kind](), batch_size=8)
    assert [warning.filename for warning in caught] == [fit.__code__.co_filename]
    assert len(task.trained) > 0
    with pytest.warns(lw.LoopwrightWarning, match=re.escape(sentence)):
        lw.Trainer(Recorder()).evaluate(KINDS[kind](), batch_size=8)


def test_a_function_that_makes_batches_has_to_be_called():
    with refused("A function is not data.", received="the function 'generator'") as caught:
        fit(generator)
    assert "do: call it" in str(caught.value)


def test_a_split_of_something_that_has_no_last_part_is_refused():
    sentence = "validation_split needs arrays."
    with refused(sentence, received="a generator", error=lw.ConfigurationError):
        fit(generator(), validation_split=0.5)


# --- validation ---


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_data_validates_in_its_own_order_at_each_epoch(kind: str):
    epochs = 1 if kind == "generator" else 2
    task = fit(X, X, validation_data=KINDS[kind](), epochs=epochs)

    assert ids(task.tested, lambda batch: batch[1]) == X.tolist() * epochs


def test_validation_arrays_come_in_batches_of_the_size_given_to_fit():
    task = fit(X, X, batch_size=4, validation_data=(X, X, X))

    assert sizes(task.tested) == [4, 2]
    assert len(task.tested[0]) == 3


@kinds
def test_validation_steps_bound_what_is_read(make: Callable[[], Any]):
    task = fit(X, X, validation_data=make(), validation_steps=1)

    assert ids(task.tested, lambda batch: batch[1]) == [0, 1, 2, 3]


def test_a_validation_generator_goes_on_where_the_steps_before_stopped():
    batches = (np.full(2, n) for n in range(9))

    history = lw.Trainer(Recorder(), plan="eager").fit(
        X, epochs=3, validation_data=batches, validation_steps=2, verbose=0
    )

    assert history.history["val_loss"] == [0.5, 2.5, 4.5]
    assert next(batches).tolist() == [6, 6]


def test_named_validation_sets_report_under_their_names():
    sets = {"clean": (X, X), "noisy": lw.Arrays(X + 1, X), "stream": dataset()}

    history = lw.Trainer(Recorder()).fit(X, X, epochs=2, validation_data=sets, verbose=0)

    assert history.history == {
        "loss": [2.5, 2.5],
        "val_clean_loss": [2.5, 2.5],
        "val_noisy_loss": [3.5, 3.5],
        "val_stream_loss": [2.5, 2.5],
    }


def test_validation_data_given_beside_a_split_wins_as_in_keras():
    task = fit(X, validation_data=(X + 10,), validation_split=0.5)

    assert len(ids(task.trained)) == 6
    assert ids(task.tested) == (X + 10).tolist()


# --- no data ---


class Counting(lw.Task):
    def train_step(self):  # pyright: ignore[reportIncompatibleMethodOverride]
        return {"number": self.step}


@pytest.mark.parametrize("plan", PLANS)
def test_a_step_without_data_is_called_as_often_as_asked(plan: str):
    task = Counting()
    trainer = lw.Trainer(task, plan=plan)

    assert trainer.fit(None, until="7 steps", verbose=0).history == {"number": [3.0]}
    assert trainer.fit(until="3 steps", verbose=0).history == {"number": [8.0]}
    assert int(task.step) == 10
    epochs = trainer.fit(steps_per_epoch=2, epochs=2, verbose=0)
    assert epochs.history == {"number": [10.5, 12.5]}


def test_a_step_without_data_and_without_a_length_is_refused():
    sentence = "A step without data has no epochs of its own."
    with refused(sentence, received="no data and no length", error=lw.ConfigurationError):
        lw.Trainer(Counting()).fit(verbose=0)
