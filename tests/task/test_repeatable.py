"""What a run could not be resumed with is said in words, and nothing of the kind is missed."""

from typing import Any

import keras
import pytest
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from loopwright.checkpoints import snapshot
from loopwright.engine.step import Step
from loopwright.engine.trace import build
from loopwright.fit import resumable
from loopwright.task import variables
from loopwright.task.task import Task

pytestmark = pytest.mark.kernels

# RNNs draw nothing without dropout of their own, which Keras never asks them for; the others feed
# data.
NOT_DRAWN_IN_A_STEP = {
    *("CudnnRNN", "CudnnRNNV2", "CudnnRNNV3"),
    *("CudnnRNNBackprop", "CudnnRNNBackpropV2", "CudnnRNNBackpropV3"),
    *("RandomShuffleQueue", "RandomShuffleQueueV2", "RecordInput"),
}


def test_every_operation_of_tensorflow_that_draws_from_a_hidden_state_is_known():
    drawing: set[str] = set()
    for name in dir(tf.raw_ops):
        definition: Any = op_def_registry.get(name)
        has_seed = definition and any("seed" in attribute.name for attribute in definition.attr)
        if has_seed and definition.is_stateful:
            drawing.add(name)
    assert {"RandomUniform", "Multinomial"} <= drawing
    known = {kind for kind in drawing if resumable.unrepeatable([kind])}
    assert drawing - known == NOT_DRAWN_IN_A_STEP


DRAWS = {
    "uniform": (lambda: tf.random.uniform((2,)), "tf.nn.dropout or tf.random.uniform"),
    "integers": (lambda: tf.random.uniform((2,), 0, 9, tf.int32), "tf.random.uniform"),
    "normal": (lambda: tf.random.normal((2,)), "tf.random.normal"),
    "truncated": (lambda: tf.random.truncated_normal((2,)), "tf.random.truncated_normal"),
    "shuffle": (lambda: tf.random.shuffle(tf.range(4)), "tf.random.shuffle"),
    "categorical": (lambda: tf.random.categorical([[0.5, 0.5]], 1), "tf.random.categorical"),
    "gamma": (lambda: tf.random.gamma((2,), 1.0), "tf.random.gamma"),
    "poisson": (lambda: tf.random.poisson((2,), 1.0), "tf.random.poisson"),
    "dropout": (lambda: tf.nn.dropout(tf.ones(4), 0.5), "tf.nn.dropout or tf.random.uniform"),
    "in a branch": (
        lambda: tf.cond(tf.constant(True), lambda: tf.random.normal(()), lambda: 0.0),
        "tf.random.normal",
    ),
    "in a function": (lambda: tf.function(tf.random.normal)((2,)), "tf.random.normal"),
}


class Drawing(Task):
    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.seed = keras.random.SeedGenerator(0)
        self.generator = tf.random.Generator.from_seed(0)

    def train_step(self, batch: Any = None) -> Any:
        return {"drawn": tf.reduce_sum(tf.cast(self.draw(), tf.float32))}


def found_in_step(task: Task) -> list[str]:
    step = Step(task, "train_step", tf.distribute.get_strategy(), False, converts=True)
    return resumable.unrepeatable(build(step, None).operations)


@pytest.mark.parametrize(("draw", "name"), DRAWS.values(), ids=DRAWS.keys())
def test_random_numbers_from_a_hidden_state_are_found_in_a_step(draw: Any, name: str):
    (text,) = found_in_step(Drawing(draw))
    assert text.startswith(f"{name} (instead: ")


def test_random_numbers_from_a_state_that_is_saved_are_not_complained_about():
    task: Any = Drawing(None)
    task.draw = lambda: (
        keras.random.normal((2,), seed=task.seed)
        + keras.random.dropout(tf.ones(2), 0.5, seed=task.seed)
        + task.generator.normal((2,))
        + task.generator.uniform((2,))
        + tf.random.stateless_normal((2,), task.seed.next())
    )
    assert found_in_step(task) == []


def test_a_kind_is_named_once():
    assert resumable.unrepeatable(["RandomShuffle", "Add", "RandomShuffle"]) == [
        "tf.random.shuffle (instead: keras.random.shuffle(..., seed=self.seed))"
    ]


@pytest.mark.parametrize("kind", resumable._DRAWING)
def test_what_is_advised_exists(kind: str):
    (text,) = resumable.unrepeatable([kind])
    path = text.partition("instead: ")[2].split("(")[0].split(" ")[0]
    found: Any = {"tf": tf, "keras": keras}[path.split(".")[0]]
    for name in path.split(".")[1:]:
        found = getattr(found, name)


# --- other variables ------------------------------------------------------------------------------


def row(name: str, shape: Any = (2,), dtype: str = "float32") -> dict[str, Any]:
    return {"name": name, "dtype": dtype, "shape": None if shape is None else list(shape)}


def test_a_difference_is_listed_by_its_kind():
    saved = [row("same"), row("gone", ()), row("wide", (64, 10)), row("half"), row("both", (1,))]
    now = [
        row("same"),
        row("wide", (64, 12)),
        row("half", dtype="float16"),
        row("both", None, "int64"),
        row("new", (None, 3)),
    ]
    assert snapshot.difference(saved, now) == (
        "The task has other variables than the checkpoint.\n"
        "  added since the checkpoint:\n"
        "    new: float32 (None, 3)\n"
        "  in the checkpoint only:\n"
        "    gone: float32 ()\n"
        "  reshaped:\n"
        "    wide: (64, 10) in the checkpoint, (64, 12) now\n"
        "    both: (1,) in the checkpoint, of any shape now\n"
        "  retyped:\n"
        "    half: float32 in the checkpoint, float16 now\n"
        "    both: float32 in the checkpoint, int64 now\n"
        '  do: restore the old structure; pass on_change="start_over" to start over; or choose '
        "another run_dir, with init_from= to take over the weights that match"
    )


def test_equal_tables_have_no_difference():
    assert snapshot.difference([row("a"), row("b")], [row("b"), row("a")]) is None
    assert snapshot.difference([], []) is None


def test_a_long_difference_is_cut():
    text = snapshot.difference([], [row(f"weight{index}") for index in range(22)])
    assert text is not None
    lines = text.splitlines()
    assert lines[2] == "    weight0: float32 (2,)"
    assert lines[11:13] == ["    weight9: float32 (2,)", "    ... and 12 more"]
    assert len(lines) == 14


def test_variables_of_both_kinds_get_both_remedies():
    text = variables.untracked_message(
        "GAN.train_step", ["scale (float32 ())", "seed_generator_state"]
    )
    assert "received: scale (float32 ()), seed_generator_state\n" in text
    assert "make them attributes of the task" in text
    assert "seed=self.seed to keras.random" in text
