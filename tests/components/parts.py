"""Small models out of every part, for tests that save them, run them by plans, or resume them."""

from typing import Any

import keras
import numpy as np

import loopwright as lw
from loopwright import components


def arrays(rows: int = 64) -> tuple[Any, Any]:
    x = np.random.default_rng(0).normal(size=(rows, 3)).astype("float32")
    return x, x[:, :1] - 0.5 * x[:, 1:2]


def of_layers(policy: str = "float32") -> keras.Model:
    """Every layer of the shelf, and everything that is done to weights."""
    own = {"dtype": policy}
    inputs = keras.Input((3,))
    wide = keras.layers.Dense(
        6,
        activation=components.softplus,
        kernel_initializer=components.GlorotNormal(seed=1),
        kernel_regularizer=components.L1(0.001),
        kernel_constraint=components.NonNegative(),
        **own,
    )
    a = wide(components.TrainingNoise(0.0, seed=3, **own)(inputs))
    b = components.Dense(6, components.softplus, components.GlorotNormal(seed=2), **own)(inputs)
    # b may be near zero: the quotient is of a and 1 + b.
    one = keras.layers.Rescaling(1.0, offset=1.0, **own)
    summed, product, quotient = components.SumProductQuotient(**own)([a, one(b)])
    exponential = components.Exponential(**own)(quotient)
    joined = keras.layers.Concatenate(**own)([summed, product, exponential])
    block = components.ResidualBlock(depth=2, units=18, **own)(joined)
    return keras.Model(inputs, keras.layers.Dense(1, dtype="float32")(block))


def of_models(policy: str = "float32") -> keras.Model:
    """The mean of both models of the shelf."""
    inputs = keras.Input((3,))
    one = components.ResidualRegressor(1, units=8, dtype=policy)(inputs)
    other = components.ReconstructionRegressor(1, dtype=policy)(inputs)
    return keras.Model(inputs, keras.layers.Average(dtype="float32")([one, other]))


MODELS = {"layers": of_layers, "models": of_models}


def drawing_task() -> lw.Supervised:
    """Every part that draws or counts, around one dense layer; all that is random has a seed."""
    keras.utils.set_random_seed(3)
    noise = components.TrainingNoise(0.1, seed=3)
    rate = components.Warmup(components.Cyclic(0.001, 0.01, half_cycle_steps=5), steps=4)
    return lw.Supervised(
        keras.Sequential([keras.Input((3,)), noise, components.Dense(1)]),
        components.HuberLoss(2.0),
        components.Tiger(rate),
        metrics=[components.HuberMetric(0.5)],
        gradients=[
            components.gradients.add_noise(lw.Scheduled(components.OneCycle(0.1, 30)), seed=5),
            components.gradients.clip_by_global_norm(1.0),
        ],
    )
