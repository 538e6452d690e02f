"""Gradient transforms: what each does, in order, beside accumulation, scales and replicas."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.components.parts import arrays
from tests.mirrored import mirrored

import loopwright as lw
from loopwright import components
from loopwright.components.gradients import (
    add_noise,
    centralize,
    clip_by_global_norm,
    freeze,
    scale,
)
from loopwright.task import variables as state

WEIGHTS: Any = ["w"]


def named(*names: str) -> list[Any]:
    return [keras.Variable(np.ones(2, "float32"), name=name) for name in names]


def two_layers(**options: Any) -> lw.Supervised:
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(4, name="encoder"), keras.layers.Dense(1, name="head")]
    model = keras.Sequential([keras.Input((3,)), *layers])
    optimizer = options.pop("optimizer", None) or keras.optimizers.SGD(0.1)
    return lw.Supervised(model, "mse", optimizer, **options)


def trained(task: lw.Supervised, steps: int = 1, plan: str = "graph") -> list[np.ndarray]:
    x, y = arrays()
    lw.Trainer(task, plan=plan).fit(
        x, y, until=f"{steps} steps", batch_size=16, shuffle=False, verbose=0
    )
    return [variable.numpy() for variable in task.model.trainable_variables]


# --- clip ---


def test_clipping_shortens_all_gradients_together_and_only_if_they_are_too_long():
    gradients = [tf.constant([3.0]), tf.constant([[4.0]])]
    short = clip_by_global_norm(1.0)(gradients, WEIGHTS * 2)
    np.testing.assert_allclose([float(tf.squeeze(g)) for g in short], [0.6, 0.8], rtol=1e-6)
    same = clip_by_global_norm(5.5)(gradients, WEIGHTS * 2)
    assert [float(tf.squeeze(g)) for g in same] == [3.0, 4.0]


def test_rows_of_an_embedding_that_come_twice_count_as_their_sum():
    twice = tf.IndexedSlices(tf.constant([[3.0], [3.0]]), tf.constant([1, 1]), tf.constant([4, 1]))
    [short] = clip_by_global_norm(3.0)([twice], WEIGHTS)
    assert isinstance(short, tf.IndexedSlices)
    assert tf.convert_to_tensor(short).numpy().ravel().tolist() == [0.0, 3.0, 0.0, 0.0]


# --- noise ---


def test_noise_has_its_spread_and_is_another_at_every_step():
    noise, zeros = add_noise(0.5, seed=1), [tf.zeros(2000), tf.zeros((40, 50))]
    first, second = noise(zeros, WEIGHTS * 2), noise(zeros, WEIGHTS * 2)
    draws = [np.ravel(gradient) for gradient in [*first, *second]]
    for index, draw in enumerate(draws):
        assert np.std(draw) == pytest.approx(0.5, rel=0.1)
        assert all(not np.array_equal(draw, other) for other in draws[:index])
    again = add_noise(0.5, seed=1)(zeros, WEIGHTS * 2)
    np.testing.assert_array_equal(again[0], first[0])


def test_the_state_of_the_noise_is_found_in_the_task():
    task = two_layers(gradients=[centralize(), add_noise(0.1, seed=3)])
    assert "gradients[1].seed.state" in state.named(task)


def test_noise_made_inside_a_step_is_refused_in_a_run_directory(tmp_path: Any):
    class Forgetful(lw.Task):
        def __init__(self):
            super().__init__()
            self.model, self.optimizer = keras.layers.Dense(1), keras.optimizers.SGD(0.1)

        def train_step(self, batch):
            x, y = batch
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self.model(x) - y) ** 2)
            noise = add_noise(0.1, seed=0)
            self.minimize(loss, self.model, self.optimizer, tape, transform=noise)
            return {"loss": loss}

    with pytest.raises(lw.StepError, match="uses variables that the task does not hold"):
        lw.Trainer(Forgetful(), run_dir=tmp_path).fit(*arrays(), verbose=0)


# --- centralize, freeze, scale ---


def test_centralised_kernels_have_columns_that_add_up_to_zero_and_biases_stay():
    kernel = tf.constant(np.random.default_rng(0).normal(size=(3, 3, 5, 2)), tf.float32)
    bias = tf.constant([1.0, 2.0])
    centred, same = centralize()([kernel, bias], WEIGHTS * 2)
    np.testing.assert_allclose(np.sum(centred, axis=(0, 1, 2)), 0.0, atol=1e-5)
    np.testing.assert_allclose(
        centred - kernel, np.broadcast_to((centred - kernel)[0, 0, 0], kernel.shape), atol=1e-6
    )
    assert same is bias


def test_frozen_variables_stay_also_under_weight_decay():
    optimizer = keras.optimizers.AdamW(0.1, weight_decay=0.5)
    task = two_layers(gradients=[freeze("encoder/")], optimizer=optimizer)
    before = [variable.numpy() for variable in task.model.trainable_variables]
    after = trained(task, steps=3)
    assert [np.array_equal(a, b) for a, b in zip(before, after, strict=True)] == [
        True,
        True,
        False,
        False,
    ]


def test_everything_frozen_is_refused():
    with pytest.raises(lw.StepError, match="leave nothing to train"):
        trained(two_layers(gradients=[freeze("encoder"), freeze("head")]))


def test_factors_scale_the_gradients_of_the_first_pattern_that_matches():
    factors = {"encoder/kernel": 2.0, "encoder": 0.0, "bias": 0.5}
    plain, scaled = two_layers(), two_layers(gradients=[scale(factors)])
    before = [variable.numpy() for variable in plain.model.trainable_variables]
    steps = [after - b for after, b in zip(trained(plain), before, strict=True)]
    scaled_steps = [after - b for after, b in zip(trained(scaled), before, strict=True)]
    for step, other, factor in zip(steps, scaled_steps, [2.0, 0.0, 1.0, 0.5], strict=True):
        assert np.any(step != 0)
        np.testing.assert_allclose(other, factor * step, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("make", [freeze, lambda pattern: scale({"head": 1.0, pattern: 1.0})])
def test_a_pattern_that_matches_nothing_is_refused_with_the_names_there_are(make: Any):
    with pytest.raises(lw.StepError, match=r"'decoder'(.|\n)*received: variables encoder, head"):
        make("decoder")([tf.ones(2)] * 2, named("encoder", "head"))


# --- in order, with everything else ---


def test_a_list_is_applied_in_order():
    def doubled(gradients: Any, variables: Any) -> Any:
        return [2 * gradient for gradient in gradients]

    def update(*transforms: Any) -> float:
        task, weight = lw.Task(), keras.Variable(0.0)
        task.apply([tf.constant(3.0)], [weight], keras.optimizers.SGD(1.0), transform=transforms)
        return -float(weight.numpy())

    assert update() == 3.0
    assert update(doubled, clip_by_global_norm(1.0)) == 1.0
    assert update(clip_by_global_norm(1.0), doubled) == 2.0


def test_a_limit_may_be_scheduled_and_is_reported():
    limit = lw.Scheduled(components.Cyclic(1e-3, 5e-3, 2))
    task = two_layers(gradients=[clip_by_global_norm(limit)])
    before = np.concatenate([v.numpy().ravel() for v in task.model.trainable_variables])
    x, y = arrays()
    history = lw.Trainer(task, plan="graph").fit(x[:16], y[:16], epochs=4, verbose=0).history
    assert history["gradients[0].limit"] == pytest.approx([1e-3, 3e-3, 5e-3, 3e-3])
    after = np.concatenate([v.numpy().ravel() for v in task.model.trainable_variables])
    assert np.linalg.norm(after - before) <= 0.1 * 12e-3 * 1.001


@pytest.mark.parametrize("plan", ["graph", "fused"])
def test_accumulation_of_k_steps_stands_beside_transforms(plan: str):
    """Each of k gradients is clipped, and the optimizer applies the mean of k at every k-th."""
    optimizer = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
    task = Pulled(optimizer, clip_by_global_norm(2.0))
    lw.Trainer(task, plan=plan).fit(None, until="5 steps", verbose=0)
    # Gradients 1 2 3 4 5 become 1 2 2 2 2: means 1.5 and 2, the fifth waits.
    assert float(task.weight.numpy()) == pytest.approx(-3.5)


class Pulled(lw.Task):
    """A weight whose gradient at step n is n."""

    def __init__(self, optimizer: Any, *transforms: Any):
        super().__init__()
        self.weight, self.optimizer = keras.Variable(0.0), optimizer
        self.transforms = list(transforms)

    def train_step(self):  # pyright: ignore[reportIncompatibleMethodOverride]
        with tf.GradientTape() as tape:
            loss = self.weight * tf.cast(self.step + 1, tf.float32)
        self.minimize(loss, [self.weight], self.optimizer, tape, transform=self.transforms)
        return {"loss": loss}


def test_a_loss_scale_changes_nothing_for_transforms():
    for scaled in (
        keras.optimizers.SGD(1.0, loss_scale_factor=64.0),
        keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0)),
    ):
        task = Pulled(scaled, freeze("variable"), clip_by_global_norm(2.0))
        task.transforms = task.transforms[1:]
        lw.Trainer(task, plan="graph").fit(None, until="3 steps", verbose=0)
        assert float(task.weight.numpy()) == pytest.approx(-5.0)


@pytest.mark.parametrize("names", [["encoder"], []])
def test_with_several_replicas_transforms_see_the_mean_and_leave_replicas_equal(names: list[str]):
    def make() -> lw.Supervised:
        transforms = [add_noise(0.1, seed=1), clip_by_global_norm(0.05), *map(freeze, names)]
        return two_layers(gradients=transforms)

    x, y = arrays()
    options: Any = {"epochs": 2, "batch_size": 16, "shuffle": False, "verbose": 0}
    alone = lw.Trainer(make(), plan="graph")
    alone.fit(x, y, **options)
    several = lw.Trainer(make, plan="graph", strategy=mirrored())
    several.fit(x, y, **options)
    pairs = zip(
        alone.task.model.trainable_variables, several.task.model.trainable_variables, strict=True
    )
    for one, many in pairs:
        copies = [copy.numpy() for copy in state.replicas(many.value)]
        np.testing.assert_array_equal(copies[0], copies[1])
        np.testing.assert_allclose(copies[0], one.numpy(), atol=1e-6)
