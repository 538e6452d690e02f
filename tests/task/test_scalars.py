"""What a step returns: scalars by name, each with a weight."""

from types import MappingProxyType
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from loopwright.errors import StepError
from loopwright.task.task import Mean, totals


def numbers(outputs: Any, examples: Any = 4) -> dict[str, tuple[float, float]]:
    found = totals(outputs, "Mine.train_step", tf.constant(examples))
    return {name: (float(total), float(weight)) for name, (total, weight) in found.items()}


def refusal(outputs: Any) -> str:
    with pytest.raises(StepError) as caught:
        totals(outputs, "Mine.train_step", tf.constant(4))
    assert caught.value.__context__ is None
    return str(caught.value)


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        ({"loss": 2.0, "accuracy": 0.5}, {"loss": (8.0, 4.0), "accuracy": (2.0, 4.0)}),
        ({"loss": Mean(0.5, weight=120)}, {"loss": (60.0, 120.0)}),
        ({"right": True}, {"right": (4.0, 4.0)}),
        ({"count": Mean(2**24 + 1, weight=1)}, {"count": (2.0**24 + 1, 1.0)}),  # not float32
        (MappingProxyType({1: 2.0}), {"1": (8.0, 4.0)}),
        ({}, {}),
    ],
)
def test_a_scalar_weighs_as_much_as_the_batch_has_examples_or_as_it_says(
    outputs: Any, expected: dict[str, tuple[float, float]]
):
    assert numbers(outputs) == expected


@pytest.mark.parametrize(
    "make",
    [
        lambda: 3,
        lambda: 3.0,
        lambda: np.float16(3),
        lambda: np.array(3),
        lambda: tf.constant(3, tf.int64),
        lambda: tf.constant(3, tf.bfloat16),
        lambda: tf.Variable(3.0),
        lambda: keras.Variable(3.0),
    ],
    ids=["int", "float", "np.float16", "np.array", "int64", "bfloat16", "tf.Variable", "Variable"],
)
def test_every_kind_of_number_is_taken(make: Any):
    assert numbers({"loss": make()}) == {"loss": (12.0, 4.0)}


@pytest.mark.parametrize("nothing", [float("nan"), float("inf"), np.zeros(0, "float32")])
def test_a_replica_without_examples_adds_nothing(nothing: Any):
    assert numbers({"loss": nothing}, examples=0) == {"loss": (0.0, 0.0)}


def test_a_loss_that_is_no_number_any_more_is_not_hidden():
    total, weight = numbers({"loss": float("nan")})["loss"]

    assert np.isnan(total)
    assert weight == 4.0


@pytest.mark.parametrize(
    ("outputs", "received"),
    [
        (None, "nothing (no return statement?)"),
        (3.0, "3.0 (float)"),
        ((1.0, 2.0), "(1.0, 2.0) (tuple)"),
        (["loss"] * 100, "['loss', 'loss', 'loss', 'loss', 'loss', 'loss', ...] (list)"),
    ],
)
def test_what_is_not_a_dict_is_refused(outputs: Any, received: str):
    assert refusal(outputs) == (
        "Mine.train_step must return a dict of scalars.\n"
        '  expected: return {"loss": loss}\n'
        f"  received: {received}\n"
        "  do: return the numbers to report, by name"
    )


@pytest.mark.parametrize(
    ("make", "received"),
    [
        (lambda: "low", "'low' (str)"),
        (lambda: None, "None"),
        (lambda: {"a": 1.0}, "{'a': 1.0} (dict)"),
        (lambda: tf.constant("low"), "a tensor: string ()"),
        (lambda: tf.complex(1.0, 2.0), "a tensor: complex64 ()"),
        (lambda: tf.ragged.constant([[1.0], [2.0, 3.0]]), "(RaggedTensor)"),
        (lambda: tf.sparse.eye(2), "(SparseTensor)"),
        (object, "(object)"),
    ],
    ids=["str", "None", "dict", "string", "complex", "ragged", "sparse", "object"],
)
def test_what_is_not_a_number_is_refused(make: Any, received: str):
    text = refusal({"loss": make()})
    assert text.startswith("Mine.train_step returned 'loss', which is not a scalar number.\n")
    assert f"{received}\n  do: return a number as 'loss', or leave it out" in text


def test_a_metric_in_place_of_its_result_is_refused():
    text = refusal({"accuracy": keras.metrics.Mean()})

    assert text.endswith("do: leave it out: the metrics of a task are reported automatically")


@pytest.mark.parametrize("value", [[1.0, 2.0], np.ones((2, 1), "float32")], ids=["list", "array"])
def test_several_numbers_under_one_name_are_refused(value: Any):
    text = refusal({"fine": 1.0, "loss": value})

    assert text.startswith("Mine.train_step returned 'loss', which is not a scalar number.\n")
    assert text.endswith("do: reduce it first, for instance with tf.reduce_mean")


def test_a_weight_of_several_numbers_is_refused_as_the_weight():
    text = refusal({"loss": Mean(1.0, weight=tf.ones(3))})

    assert text.startswith("Mine.train_step returned the weight of 'loss', which is not a scalar")
    assert "received: a tensor: float32 (3,)" in text


def test_a_tensor_of_unknown_rank_is_refused():
    @tf.function(input_signature=[tf.TensorSpec(None)], autograph=False)
    def step(value):
        return totals({"loss": value}, "Mine.train_step", tf.constant(4))

    with pytest.raises(StepError, match="received: a tensor: float32 of unknown rank"):
        step.get_concrete_function()
