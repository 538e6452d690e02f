"""The bytes of a run: held while training goes on, written, read in another process, put back."""

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.mirrored import mirrored

import loopwright as lw
from loopwright.checkpoints import tensors
from loopwright.errors import CheckpointError, NotFiniteError
from loopwright.task import variables

layers = keras.layers

X = np.linspace(0, 1, 64 * 4, dtype="float32").reshape(64, 4)
Y = X[:, :1]
IDS = np.arange(64).reshape(64, 1) % 7


def dense_task() -> lw.Supervised:
    """Something of each kind that changes in a step: weights, slots, averages, metrics, seeds."""
    model = keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(8, activation="relu", use_bias=False),
            layers.BatchNormalization(scale=False),
            layers.Dropout(0.5, seed=3),
            layers.Dense(1, use_bias=False),
        ]
    )
    return lw.Supervised(model, "mse", keras.optimizers.Adam(use_ema=True), metrics=["mae"])


def embedding_task() -> lw.Supervised:
    """Its gradients are sparse: rows are changed in place."""
    model = keras.Sequential([keras.Input((1,)), layers.Embedding(7, 3), layers.Flatten()])
    model.add(layers.Dense(1))
    return lw.Supervised(model, "mse", keras.optimizers.Adam(), metrics=["mae"])


# --- held -----------------------------------------------------------------------------------------

RUNS: dict[str, tuple[Callable[[], lw.Trainer], Any]] = {
    **{
        plan: (lambda plan=plan: lw.Trainer(dense_task(), plan=plan), X)
        for plan in ("eager", "graph", "xla", "fused")
    },
    **{
        f"sparse, {plan}": (lambda plan=plan: lw.Trainer(embedding_task(), plan=plan), IDS)
        for plan in ("graph", "fused")
    },
    "two replicas": (lambda: lw.Trainer(dense_task, strategy=mirrored()), X),
}


def train(trainer: lw.Trainer, x: Any) -> dict[str, Any]:
    trainer.fit(x, Y, batch_size=16, epochs=2, verbose=0)
    return variables.named(trainer.task)


def in_bytes(values: dict[str, Any]) -> dict[str, bytes]:
    return {name: value.numpy().tobytes() for name, value in values.items()}


@pytest.mark.parametrize(("make", "x"), RUNS.values(), ids=RUNS.keys())
def test_a_run_that_is_put_back_ends_with_the_same_bits(make: Any, x: Any):
    trainer = make()
    named = train(trainer, x)
    held = tensors.snapshot(named)
    before = in_bytes(held)

    def trained_on() -> str:
        # The order of examples is a function of the epoch, which is none of our variables.
        trainer._epochs_done = 2
        return tensors.digest(tensors.snapshot(train(trainer, x)))

    end = trained_on()
    now = in_bytes(tensors.snapshot(named))
    changed = {name for name in before if now[name] != before[name]}
    assert "step" in changed
    assert any(name.startswith("optimizer.velocities") for name in changed)
    assert any(name.endswith((".kernel", ".embeddings")) for name in changed)
    tensors.assign(named, held)
    assert tensors.digest(tensors.snapshot(named)) == tensors.digest(held)
    assert trained_on() == end
    assert in_bytes(held) == before  # a variable shares its bytes only until it changes


def test_every_change_of_a_variable_leaves_held_values_alone():
    variable = tf.Variable(tf.ones((4, 3)))
    changes: list[Callable[[], Any]] = [
        lambda: variable.assign(tf.zeros((4, 3))),
        lambda: variable.assign_add(tf.ones((4, 3))),
        lambda: variable.assign_sub(tf.ones((4, 3))),
        lambda: variable.scatter_nd_update([[1]], [[7.0, 8.0, 9.0]]),
        lambda: variable.scatter_sub(tf.IndexedSlices(tf.ones((1, 3)), tf.constant([2]))),
        lambda: variable[0, 1].assign(5.0),
    ]
    for change in changes:
        held = tensors.snapshot({"variable": variable})
        before = in_bytes(held)
        change()
        assert in_bytes(held) == before
        assert in_bytes(tensors.snapshot({"variable": variable})) != before


# --- written and read -----------------------------------------------------------------------------


def of_each_kind() -> dict[str, Any]:
    random = np.random.default_rng(0)
    numbers = ["float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64"]
    numbers += ["uint8", "uint16", "uint32", "uint64", "complex64", "complex128"]
    values = {
        dtype: tf.cast(tf.constant(random.normal(size=(3, 2)) * 50), tf.as_dtype(dtype))
        for dtype in numbers
    }
    return values | {
        "bool": tf.constant([True, False]),
        "scalar": tf.constant(3.5),
        "empty": tf.zeros((0, 3)),
        "none": tf.constant([], tf.int64),
        "nan": tf.constant([float("nan"), float("inf"), -0.0]),
        "string": tf.constant([["", "a\0b"], ["\xe9", "long" * 100]]),
        "no string": tf.constant("alone"),
        "one[0].two['x y/z'].\"\xe9\"": tf.constant(1),
        "deep." * 200: tf.constant(2),
    }


def test_tensors_of_every_kind_come_back_as_they_were(tmp_path: Path):
    given = of_each_kind()
    tensors.write(tmp_path / "state", given)
    assert sorted(os.listdir(tmp_path)) == ["state.data-00000-of-00001", "state.index"]

    found = tensors.read(tmp_path / "state")

    assert set(found) == set(given)
    for name, tensor in given.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        if tensor.dtype == tf.string:
            assert np.array_equal(found[name].numpy(), tensor.numpy())
        else:
            assert found[name].numpy().tobytes() == tensor.numpy().tobytes()
    assert tensors.digest(found) == tensors.digest(given)


def test_the_same_tensors_give_the_same_files(tmp_path: Path):
    given = of_each_kind()
    for name, order in (("a", sorted(given)), ("b", sorted(given, reverse=True))):
        tensors.write(tmp_path / name, {key: given[key] for key in order})
    for suffix in (".index", ".data-00000-of-00001"):
        a, b = ((tmp_path / f"{name}{suffix}").read_bytes() for name in "ab")
        assert a == b


@pytest.mark.parametrize("name", ["run[1]", "run*", "run?", "run \\d", "l\xe4uft {1}", "%41#:"])
def test_any_directory_name_will_do(tmp_path: Path, name: str):
    (tmp_path / name).mkdir()
    (tmp_path / "run1").mkdir()  # what `run[1]` would match
    tensors.write(tmp_path / "run1" / "state", {"a": tf.constant(1)})
    tensors.write(tmp_path / name / "state", {"a": tf.constant(2)})
    assert tensors.read(tmp_path / name / "state")["a"] == 2


# --- damaged --------------------------------------------------------------------------------------


def refusal(prefix: Path, table: Any = None) -> str:
    with pytest.raises(CheckpointError) as caught:
        tensors.read(prefix, table)
    text = str(caught.value)
    assert text.startswith(
        f"The tensors in {prefix}.index and {prefix}.data-00000-of-00001 cannot be read.\n"
        "  expected: both files as they were written\n"
        "  received: "
    )
    assert "{{" not in text
    assert "[Op:" not in text
    return text


def test_missing_files_are_named(tmp_path: Path):
    refusal(tmp_path / "state")
    tensors.write(tmp_path / "state", {"a": tf.constant(1)})
    (tmp_path / "state.data-00000-of-00001").unlink()
    assert "No such file" in refusal(tmp_path / "state")


UNREAD_TAIL_BYTES = 96  # of an index: an empty block, and what fills up its footer


@pytest.mark.parametrize("suffix", [".index", ".data-00000-of-00001"])
def test_a_file_that_was_cut_or_changed_anywhere_is_refused(tmp_path: Path, suffix: str):
    given = {name: tensor for name, tensor in of_each_kind().items() if tensor.shape.rank}
    tensors.write(tmp_path / "state", given)
    path = tmp_path / f"state{suffix}"
    whole = path.read_bytes()
    assert len(whole) > 400

    for size in (0, 1, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        refusal(tmp_path / "state")
    path.write_bytes(whole)
    expected = tensors.digest(tensors.read(tmp_path / "state"))
    for place in range(0, len(whole), len(whole) // 64):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        if suffix == ".index" and place >= len(whole) - UNREAD_TAIL_BYTES:
            with contextlib.suppress(CheckpointError):
                assert tensors.digest(tensors.read(tmp_path / "state")) == expected
        else:
            refusal(tmp_path / "state")


ROW = {"name": "weight", "dtype": "float32", "shape": [2, 3]}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({**ROW, "name": "bias"}, "bias is missing"),
        ({**ROW, "dtype": "float16"}, "should be float16 (2, 3), but is float32 (2, 3)"),
        ({**ROW, "shape": [3, 2]}, "should be float32 (3, 2), but is float32 (2, 3)"),
        ({**ROW, "shape": [6]}, "should be float32 (6,), but is float32 (2, 3)"),
        ({**ROW, "shape": [None, 2]}, "should be float32 (None, 2), but is float32 (2, 3)"),
    ],
)
def test_what_does_not_fit_the_table_is_refused(tmp_path: Path, row: Any, reason: str):
    tensors.write(tmp_path / "state", {"weight": tf.zeros((2, 3))})
    assert reason in refusal(tmp_path / "state", [row])


def test_a_table_says_what_is_read(tmp_path: Path):
    tensors.write(tmp_path / "state", {"weight": tf.zeros((2, 3)), "other": tf.zeros(())})
    for shape in ([2, 3], [None, 3], None):
        assert list(tensors.read(tmp_path / "state", [{**ROW, "shape": shape}])) == ["weight"]


# --- put back -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (lambda: {}, "b is missing"),
        (lambda: {"b": tf.ones(2, tf.float64)}, "b should be float32 (2,), but is float64 (2,)"),
        (lambda: {"b": tf.ones(3)}, "b should be float32 (2,), but is float32 (3,)"),
    ],
)
def test_nothing_is_changed_if_anything_does_not_fit(other: Any, reason: str):
    named = {name: tf.Variable(tf.zeros((2,))) for name in "ab"}
    given = {"a": tf.ones((2,)), **other()}

    with pytest.raises(CheckpointError) as caught:
        tensors.assign(named, given)

    assert str(caught.value) == (
        "The tensors do not match the variables of the task; none was changed.\n"
        "  expected: a tensor of the same dtype and shape for every variable\n"
        f"  received: {reason}\n"
        "  do: use the task that they were saved with"
    )
    assert [variable.numpy().tolist() for variable in named.values()] == [[0.0, 0.0], [0.0, 0.0]]


def test_tensors_without_a_variable_are_left_alone():
    variable = tf.Variable(0.0)
    tensors.assign({"a": variable}, {"a": tf.constant(1.0), "iterator": tf.constant("x")})
    assert variable.numpy() == 1.0


def test_a_variable_of_open_shape_takes_its_shape_from_the_tensor(tmp_path: Path):
    def variable(rows: int) -> Any:
        return {"rows": tf.Variable(tf.ones((rows, 2)), shape=tf.TensorShape((None, 2)))}

    saved, now = variable(3), variable(1)
    tensors.write(tmp_path / "state", tensors.snapshot(saved))
    tensors.assign(now, tensors.read(tmp_path / "state", variables.table(saved)))
    assert now["rows"].read_value().shape == (3, 2)


# --- compared and checked -------------------------------------------------------------------------


def test_a_digest_depends_on_names_dtypes_shapes_and_bytes_and_not_on_the_order():
    one = {"a": tf.constant([1.0, 2.0]), "b": tf.constant(3)}
    others = [
        {"c": one["a"], "b": one["b"]},
        {**one, "a": tf.constant([[1.0, 2.0]])},
        {**one, "a": tf.constant([1.0, 2.0000002])},
        {**one, "a": tf.bitcast(one["a"], tf.int32)},
        {"a": one["a"]},
        {**one, "b": tf.constant("3")},
        {**one, "b": tf.constant("4")},
    ]
    digests = {tensors.digest(given) for given in (one, *others)}
    assert len(digests) == 1 + len(others)
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in digests)
    assert tensors.digest(dict(reversed(one.items()))) == tensors.digest(one)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite_are_found(dtype: str, bad: float):
    values = np.ones((5, 7))
    fine = tf.cast(values, dtype)
    values[3, 2], values[0, 0] = bad, -bad  # both infinities do not hide each other
    given = {"fine": fine, "bad": tf.cast(values, dtype), "step": tf.constant(1)}
    assert tensors.non_finite(given) == ["bad"]


def test_large_numbers_whose_sum_overflows_are_finite():
    large = {d: tf.fill((9,), tf.as_dtype(d).max) for d in ("float16", "float32", "float64")}
    assert tensors.non_finite(large) == []
    assert tensors.non_finite(of_each_kind()) == ["nan"]


def test_a_state_that_is_not_finite_is_refused_by_name():
    bad = {f"weight{index}": tf.constant(float("nan")) for index in range(12)}
    tensors.require_finite({"fine": tf.constant(1.0)}, 7)
    with pytest.raises(NotFiniteError) as caught:
        tensors.require_finite({"fine": tf.constant(1.0), **bad}, 7)
    what, expected, received, do = str(caught.value).splitlines()
    assert what == "After step 7 the state contains NaN or infinity, and is not saved."
    assert expected == "  expected: finite numbers in every variable"
    assert received.startswith("  received: weight0, weight1, ")
    assert received.endswith("weight9, ... and 2 more")
    assert "lower the learning rate" in do
    assert "earlier checkpoints are unchanged" in do


def test_tensors_that_do_not_fit_into_memory_are_told_as_such(tmp_path: Path):
    rows = 2**50
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "state"),
        tensor_names=["weight"],
        shape_and_slices=[f"{rows} 0,1"],  # one number of a tensor of four petabytes
        tensors=[tf.constant([1.0])],
    )
    with pytest.raises(CheckpointError, match="out of memory") as caught:
        tensors.read(tmp_path / "state")
    text = str(caught.value)
    assert "received: OOM when allocating tensor" in text
    assert "do: free memory" in text
    assert isinstance(caught.value.__cause__, tf.errors.ResourceExhaustedError)
