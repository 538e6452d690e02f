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


LOSS = "'loss', which is not a scalar number."
REDUCE = "do: reduce it first, for instance with tf.reduce_mean"


@pytest.mark.parametrize(
    ("make", "what", "received", "do"),
    [
        (lambda: [1.0, 2.0], LOSS, "[1.0, 2.0] (list)", REDUCE),
        (lambda: np.ones((2, 1), "float32"), LOSS, "(ndarray)", REDUCE),
        (
            lambda: Mean(1.0, weight=tf.ones(3)),
            f"the weight of {LOSS}",
            "a tensor: float32 (3,)",
            REDUCE,
        ),
        (
            keras.metrics.Mean,
            LOSS,
            "(Mean)",
            "do: leave it out: the metrics of a task are reported automatically",
        ),
    ],
    ids=["list", "array", "weight", "metric"],
)
def test_what_is_not_one_number_is_refused(make: Any, what: str, received: str, do: str):
    text = refusal({"fine": 1.0, "loss": make()})

    assert text.startswith(f"Mine.train_step returned {what}\n")
    assert f"{received}\n" in text
    assert text.endswith(do)


def test_a_tensor_of_unknown_rank_is_refused():
    @tf.function(input_signature=[tf.TensorSpec(None)], autograph=False)
    def step(value):
        return totals({"loss": value}, "Mine.train_step", tf.constant(4))

    with pytest.raises(StepError, match="received: a tensor: float32 of unknown rank"):
        step.get_concrete_function()
