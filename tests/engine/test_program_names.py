"""Equal programs have one name: XLA compiles a step once, whatever the number of trainers."""

import gc
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.processes import lines_with_compiles

import loopwright as lw

pytestmark = pytest.mark.kernels

X = np.linspace(-1, 1, 96, dtype="float32").reshape(32, 3)
Y = X.sum(axis=1, keepdims=True)


class Scaled(lw.Task):
    """A step with a constant, which is in its program and in nothing that describes it."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, "tanh")])
        self.optimizer = keras.optimizers.SGD(0.1)

    def train_step(self, batch: Any) -> dict[str, Any]:
        x, y = batch
        with tf.GradientTape() as tape:
            loss = self.factor * tf.reduce_mean(tf.square(self.model(x, training=True) - y))
        weights = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


def trained(factor: float, plan: str, seed: int = 0) -> list[np.ndarray]:
    keras.utils.set_random_seed(seed)
    trainer = lw.Trainer(Scaled(factor), plan=plan)
    trainer.fit(X, Y, batch_size=8, epochs=2, verbose=0)
    weights = trainer.task.model.get_weights()
    del trainer
    gc.collect()
    return weights


COUNT_COMPILES = """
    from tests.engine.test_program_names import trained

    for plan in ("fused", "xla"):
        before = compiled()
        weights = [trained(factor, plan) for factor in (2.0, 2.0, 3.0, 3.0)]
        same = [(one == other).all() for one, other in zip(weights[0], weights[1])]
        print(plan, compiled() - before, all(same))
"""


def test_equal_steps_are_compiled_once_and_others_for_themselves(tmp_path: Path):
    assert lines_with_compiles(COUNT_COMPILES, tmp_path) == ["fused 2 True", "xla 2 True"]


@pytest.mark.parametrize("plan", ["fused", "xla"])
def test_a_step_with_another_constant_does_not_run_the_program_of_the_first(plan: str):
    for factor in (2.0, 4.0, 2.0):
        by_xla, by_graph = trained(factor, plan), trained(factor, "graph")
        for one, other in zip(by_xla, by_graph, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


class Drawing(Scaled):
    """Draws from a state that is kept inside its program."""

    def train_step(self, batch: Any) -> dict[str, Any]:
        x, y = batch
        return super().train_step((x + tf.random.normal(tf.shape(x), seed=7), y))


@pytest.mark.filterwarnings("ignore::loopwright.StepWarning")
def test_a_step_with_a_state_of_its_own_has_a_program_of_its_own():
    from loopwright.compat import function_names

    for _ in range(2):
        lw.Trainer(Drawing(1.0), plan="fused").fit(X, Y, batch_size=8, epochs=1, verbose=0)
    known = [each for name, each in function_names._digests.items() if "Drawing" in name]  # pyright: ignore[reportPrivateUsage]
    assert [len(numbers) for numbers in known] == [2]
    assert all(content is None for numbers in known for content in numbers)


def test_two_trainers_that_share_a_program_keep_their_own_variables():
    keras.utils.set_random_seed(1)
    first, second = (lw.Trainer(Scaled(1.5), plan="fused") for _ in range(2))
    first.fit(X, Y, batch_size=8, epochs=1, verbose=0)
    before = first.task.model.get_weights()
    second.fit(X, Y, batch_size=8, epochs=3, verbose=0)
    after = first.task.model.get_weights()
    assert all((one == other).all() for one, other in zip(before, after, strict=True))
    del second
    gc.collect()
    first.fit(X, Y, batch_size=8, epochs=1, verbose=0)
    assert int(first.task.step_counter) == 8
