"""An optimizer of one's own: its rule, and what Keras adds to every optimizer."""

import keras
import numpy as np
import pytest
from tests.components.parts import arrays

import loopwright as lw
from loopwright import components


def test_every_weight_moves_by_the_rate_in_the_direction_of_its_momentum():
    weight = keras.Variable([0.0, 0.0])
    tiger = components.Tiger(0.125, beta=0.5)
    tiger.apply([np.array([4.0, -0.5], "float32")], [weight])  # momentum 2, -0.25
    assert weight.numpy().tolist() == [-0.125, 0.125]
    tiger.apply([np.array([-1.0, 2.0], "float32")], [weight])  # momentum 0.5, 0.875
    assert weight.numpy().tolist() == [-0.25, 0.0]


def test_weight_decay_pulls_by_the_rate():
    weight = keras.Variable([2.0])
    components.Tiger(0.25, weight_decay=0.5).apply([np.array([1.0], "float32")], [weight])
    # 2 - 0.25 * (sign + 0.5 * 2)
    assert weight.numpy().tolist() == [1.5]


@pytest.mark.parametrize("plan", ["graph", "fused"])
def test_it_trains(plan: str):
    keras.utils.set_random_seed(0)
    x, y = arrays()
    model = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(16, "relu"), components.Dense(1)]
    )
    rate = keras.optimizers.schedules.CosineDecay(0.03, 120)
    task = lw.Supervised(model, "mse", components.Tiger(rate, weight_decay=0.01))
    loss = (
        lw.Trainer(task, plan=plan).fit(x, y, epochs=30, batch_size=16, verbose=0).history["loss"]
    )
    assert loss[-1] < 0.02 * loss[0]


def test_it_accumulates_clips_and_averages_as_every_optimizer_of_keras_and_resumes_exactly():
    def make(run_dir):
        keras.utils.set_random_seed(0)
        tiger = components.Tiger(
            0.01, gradient_accumulation_steps=3, use_ema=True, global_clipnorm=1.0
        )
        model = keras.Sequential([keras.Input((3,)), components.Dense(1)])
        return lw.Trainer(lw.Supervised(model, "mse", tiger), run_dir=run_dir, plan="graph")

    lw.testing.assert_resumes_exactly(make, *arrays(), epochs=3, batch_size=16, break_at=[5])
