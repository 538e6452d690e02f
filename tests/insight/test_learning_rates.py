"""Finding a learning rate: what the sweep sees, suggests, refuses and leaves behind."""

import sys
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.insight.rehearsed import bits

import loopwright as lw
from loopwright.insight import learning_rates

X = np.random.default_rng(0).normal(size=(512, 8)).astype("float32")
Y = X @ np.arange(1.0, 9.0, dtype="float32")[:, None]


def model() -> keras.Model:
    layers = [keras.Input((8,)), keras.layers.Dropout(0.1, seed=1), keras.layers.Dense(1)]
    return keras.Sequential(layers)


def supervised(rate: Any = 0.001) -> lw.Supervised:
    keras.utils.set_random_seed(0)
    return lw.Supervised(model(), "mse", keras.optimizers.SGD(rate))


def find(task: Any, **options: Any) -> learning_rates.LearningRates:
    trainer = lw.Trainer(task)
    return trainer.find_learning_rate(X, Y, batch_size=64, **{"steps": 60, **options})


class Two(lw.Task):
    """Two models, two optimizers, two losses; only the first one is reported as loss."""

    def __init__(self) -> None:
        keras.utils.set_random_seed(0)
        self.one, self.two = model(), model()
        self.first = keras.optimizers.SGD(0.01)
        self.second = keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.02, 100))

    def train_step(self, batch: Any) -> Any:
        x, y = batch
        losses = {}
        pairs = {"one_loss": (self.one, self.first), "two_loss": (self.two, self.second)}
        for name, (net, optimizer) in pairs.items():
            with tf.GradientTape() as tape:
                losses[name] = tf.reduce_mean(tf.square(y - net(x, training=True)))
            self.minimize(losses[name], net, optimizer, tape)
        return losses


def test_training_after_a_sweep_has_the_bits_of_training_without_one(tmp_path):
    schedule = keras.optimizers.schedules.CosineDecay
    ends = []
    for name in ("plain", "swept"):
        trainer = lw.Trainer(supervised(schedule(0.01, 20)), run_dir=tmp_path / name, plan="graph")
        if name == "swept":
            before = trainer.task.optimizer.get_config()
            found = trainer.find_learning_rate(X, Y, batch_size=64, steps=60)
            assert "replaced CosineDecay" in found.note
            assert trainer.task.optimizer.get_config() == before
            assert not (tmp_path / name).exists()
        trainer.fit(X, Y, batch_size=64, epochs=2, verbose=0)
        ends.append((bits(trainer), trainer.plan_history))
    assert ends[0] == ends[1]


def test_the_losses_are_those_of_a_loop_by_hand_at_each_rate():
    found = find(supervised(), steps=20, start=1e-4, stop=1e-2)
    trainer = lw.Trainer(supervised(), plan="graph")
    by_hand = []

    class Raise(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            trainer.task.optimizer.learning_rate = 1e-4 * 100 ** (len(by_hand) / 19)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen = (len(by_hand) % 8 + 1) * logs["loss"]
            by_hand.append(seen - sum(by_hand[len(by_hand) // 8 * 8 :]))

    trainer.fit(X, Y, batch_size=64, until="20 steps", callbacks=[Raise()], verbose=0)
    np.testing.assert_allclose(found.raw_losses, by_hand, rtol=1e-4)


def test_a_compiled_model_gives_the_losses_of_single_steps():
    keras.utils.set_random_seed(0)
    compiled = model()
    compiled.compile(keras.optimizers.SGD(0.001), "mse")
    found = find(compiled)
    as_task = find(supervised())
    np.testing.assert_allclose(found.raw_losses[:40], as_task.raw_losses[:40], rtol=1e-3)
    assert found.suggestion == pytest.approx(as_task.suggestion, rel=0.5)


def test_the_suggestion_lies_where_the_loss_falls_and_the_sweep_ends_where_it_diverges():
    found = find(supervised(), steps=100)
    # Of a quadratic loss with unit variances, SGD diverges above 2 / 2.
    assert found.suggestion is not None
    assert 1e-3 < found.suggestion < 0.5
    assert len(found.rates) < 100
    text = str(found)
    assert "<- suggestion" in text
    assert "diverges from" in text
    assert max(map(len, text.splitlines())) <= 80


def test_several_optimizers_rise_together_or_one_by_its_name():
    together = find(Two(), monitor="two_loss", steps=100)
    assert "1 more kept their ratio to it (now 0.01, 0.02)" in together.note
    alone = find(Two(), monitor="two_loss", optimizer="second", steps=100)
    assert "Only 'second' was changed" in alone.note
    # Together, the second rate is twice the first, which is the one on the axis.
    rates = (together.suggestion, alone.suggestion)
    assert None not in rates
    assert rates[0] == pytest.approx((rates[1] or 0.0) / 2, rel=0.4)
    kept = find(Two(), monitor="one_loss", optimizer="second")
    assert kept.raw_losses[-1] < kept.raw_losses[0]  # trained by its own rate, which stays


def test_what_cannot_be_swept_is_refused_with_what_can():
    with pytest.raises(lw.ConfigurationError, match="not finite, or diverges"):
        learning_rates.suggested([1e-7, 1e-6], [float("nan")] * 2, "loss")
    with pytest.raises(lw.ConfigurationError, match="monitor='one_loss' or monitor='two_loss'"):
        find(Two())
    with pytest.raises(lw.ConfigurationError, match="optimizer='first' or optimizer='second'"):
        find(Two(), optimizer="third", monitor="one_loss")
    with pytest.raises(lw.ConfigurationError, match="0 < start < stop"):
        find(supervised(), start=1.0, stop=0.1)


def test_a_loss_that_only_varies_from_batch_to_batch_gives_no_suggestion():
    noise = np.random.default_rng(1).normal(size=60)
    rates = [1e-7 * 10 ** (place / 7.5) for place in range(60)]
    found = learning_rates.suggested(rates, (3 + noise).tolist(), "loss")
    assert found.suggestion is None
    assert "does not fall more than it varies" in str(found)


def test_a_figure_is_written_and_a_missing_package_is_named(tmp_path, monkeypatch):
    rates = [10 ** (place / 10 - 5) for place in range(40)]
    losses = [2.0 - place / 30 for place in range(40)]
    found = learning_rates.suggested(rates, losses, "loss")
    found.plot(tmp_path / "rates.png")
    assert (tmp_path / "rates.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(lw.ConfigurationError, match=r"ends in \.png"):
        found.plot(tmp_path / "rates.doc")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(lw.ConfigurationError, match=r"pip install 'loopwright\[plot\]'"):
        found.plot()
