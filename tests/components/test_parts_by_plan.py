"""Every part in every plan and both precisions; what is random is resumed to the bit."""

from typing import Any

import keras
import numpy as np
import pytest
from tests.components.parts import MODELS, arrays, drawing_task

import loopwright as lw
from loopwright import components

pytestmark = pytest.mark.kernels


def losses(name: str, policy: str, plan: str) -> list[float]:
    keras.utils.set_random_seed(1)
    x, y = arrays()
    optimizer = components.Tiger(components.Warmup(components.OneCycle(0.004, 80), steps=3))
    if policy == "mixed_float16":  # of the layers; Supervised looks at the model's own
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=1024.0)
    supervised = lw.Supervised(
        MODELS[name](policy),
        components.HuberLoss(0.5),
        optimizer,
        metrics=[components.HuberMetric(0.5)],
    )
    trainer = lw.Trainer(supervised, plan=plan)
    return trainer.fit(x, y, epochs=10, batch_size=16, verbose=0).history["huber"]


@pytest.mark.parametrize("name", list(MODELS))
def test_a_model_learns_the_same_by_every_plan_and_in_half_precision(name: str):
    in_graph = losses(name, "float32", "graph")
    assert in_graph[-1] < 0.8 * in_graph[0]
    # A sign that flips at a rounding moves a weight by the whole learning rate.
    assert losses(name, "float32", "fused") == pytest.approx(in_graph, rel=0.02)
    assert losses(name, "mixed_float16", "xla") == pytest.approx(in_graph, rel=0.1)


@pytest.mark.parametrize("plan", ["graph", "fused"])
def test_every_part_that_draws_or_counts_resumes_exactly(plan: str):
    lw.testing.assert_resumes_exactly(
        lambda run_dir: lw.Trainer(drawing_task(), run_dir=run_dir, plan=plan),
        *arrays(),
        break_at=[7],
        epochs=4,
        batch_size=16,
    )


def test_noise_is_drawn_anew_at_every_step_and_by_nobody_else():
    layer = components.TrainingNoise(0.5, seed=3)
    x = keras.ops.ones((1000,))
    first, second = layer(x, training=True).numpy(), layer(x, training=True).numpy()
    assert np.std(first) == pytest.approx(0.5, rel=0.1)
    assert np.mean(first) == pytest.approx(1.0, abs=0.05)
    assert not np.array_equal(first, second)
    again: Any = components.TrainingNoise(0.5, seed=3)
    keras.random.normal((3,))
    np.testing.assert_array_equal(again(x, training=True).numpy(), first)
    np.testing.assert_array_equal(layer(x, training=False).numpy(), x)
    np.testing.assert_array_equal(layer(x).numpy(), x)
