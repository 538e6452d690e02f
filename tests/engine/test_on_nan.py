"""What is done about a loss that is NaN: named, skipped, or gone back from."""

import functools
import json
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.resume.program import digest
from tests.tasks import ByHand

import loopwright as lw

pytestmark = pytest.mark.kernels

PLANS = ["graph", "xla", "fused", lw.Plan("graph", "python"), "eager"]
ROWS, BATCH = 80, 8
BAD = 45
"""The example that spoils batch 6 of an epoch without shuffling."""


class Normalised(lw.Task):
    """Batch norm, dropout, momentum, a metric and a generator: all that a bad batch would spoil."""

    def __init__(self):
        super().__init__()
        keras.utils.set_random_seed(1)
        layers = [
            keras.Input((3,)),
            keras.layers.Dense(4, use_bias=False),
            keras.layers.BatchNormalization(scale=False),
            keras.layers.Dropout(0.1, seed=2),
            keras.layers.Dense(1, use_bias=False),
        ]
        self.model = keras.Sequential(layers)
        self.optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
        self.error = keras.metrics.MeanAbsoluteError(name="error")

    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            predictions = self.model(x, training=True)
            loss = tf.reduce_mean((predictions - y) ** 2)
        self.minimize(loss, self.model, self.optimizer, tape)
        self.error.update_state(y, predictions)
        return {"loss": loss, "ratio": tf.constant(float("inf"))}


def arrays(bad: int | None = BAD, rows: int = ROWS) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 3)).astype("float32")
    y = x[:, :1].copy()
    if bad is not None:
        x[bad, 1] = np.nan
    return x, y


def fit(trainer: lw.Trainer, data: Any, **options: Any) -> Any:
    given = {"batch_size": BATCH} if isinstance(data, tuple) else {}
    data = data if isinstance(data, tuple) else (data,)
    return trainer.fit(*data, **given, **{"shuffle": False, "verbose": 0, **options})


def trained(
    task: lw.Task,
    data: Any,
    on_nan: Any = "skip",
    run_dir: Any = None,
    plan: Any = "graph",
    **options: Any,
) -> tuple[lw.Trainer, list[lw.BatchSkipped], Any]:
    """Train by a policy; return the trainer, what was skipped, and the history."""
    told = list[Any]()
    trainer = lw.Trainer(task, plan=plan, on_nan=on_nan, run_dir=run_dir, sinks=[told.append])
    history = fit(trainer, data, **{"epochs": 1, **options})
    return trainer, [event for event in told if isinstance(event, lw.BatchSkipped)], history


class FailsAfter(keras.callbacks.Callback):
    """Ends a run in the middle, as if the machine had failed."""

    needs_every_step = True

    def __init__(self, step):
        super().__init__()
        self.step = step

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations) >= self.step:
            raise RuntimeError("the machine failed")

    def get_state(self):
        return {}

    def set_state(self, state):
        """Every start fails anew."""


def stream(data: Any) -> Any:
    return tf.data.Dataset.from_tensor_slices(data).batch(BATCH)


# --- raise ---


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_the_step_and_the_examples_are_named(plan: Any):
    with pytest.raises(lw.NotFiniteError) as error:
        fit(lw.Trainer(Normalised(), plan=plan), arrays(), epochs=2)
    assert error.value.step == 6
    text = str(error.value)
    assert text.startswith("The loss is NaN or infinite at step 6.\n")
    assert "batch 6 of epoch 1: examples 40, 41, 42, 43, 44, 45, 46, 47" in text
    assert "NaN or infinity is in example 45 of x" in text
    assert 'on_nan="rollback"' in text


def test_in_another_order_and_epoch_the_example_is_still_found():
    class Late(Normalised):
        def train_step(self, batch):
            x, y = batch
            good = tf.where(self.step < 14, tf.zeros_like(x), x)
            return super().train_step((good, y))

    with pytest.raises(lw.NotFiniteError, match="example 45 of x") as error:
        fit(lw.Trainer(Late()), arrays(), epochs=3, shuffle=True)
    assert error.value.step > 14


def test_only_losses_are_looked_at_or_all_numbers_where_there_are_none():
    history = fit(lw.Trainer(Normalised()), arrays(bad=None), epochs=1)
    assert np.isinf(history.history["ratio"]).all()

    class Energy(Normalised):
        def train_step(self, batch):
            return {"energy": super().train_step(batch)["loss"]}

    with pytest.raises(lw.NotFiniteError, match="step 6"):
        fit(lw.Trainer(Energy()), arrays())


def test_a_compiled_model_is_looked_at_too():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(lw.NotFiniteError, match="step 6"):
        fit(lw.Trainer(model), arrays())


def test_an_overflow_of_the_loss_scale_is_no_such_event():
    class Scaled(Normalised):
        def __init__(self):
            super().__init__()
            inner = keras.optimizers.SGD(0.01)
            self.optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**126)

    history = fit(lw.Trainer(Scaled()), arrays(bad=None), epochs=2)
    assert np.isfinite(history.history["loss"]).all()


# --- a loss that stays finite ---


class Rectified(ByHand):
    """Product, bias and relu: fused by oneDNN, they turn NaN into 0, and the loss stays finite."""

    def __init__(self, optimizer: Any = None):
        keras.utils.set_random_seed(1)
        layers = [keras.Input((3,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)]
        super().__init__(keras.Sequential(layers), optimizer or keras.optimizers.Adam(0.01))


class Rooted(Rectified):
    """The gradient of the root of 0 is infinite on every kernel, and the loss is 0."""

    def loss_of(self, x: Any, y: Any) -> Any:
        return tf.reduce_mean(tf.sqrt(tf.abs(self.model(x, training=True) * y)))


def with_roots_of_zero() -> tuple[Any, Any]:
    x, y = arrays(bad=None)
    y[40:48] = 0.0
    return x, y


STREAMED = [("graph", True), (lw.Plan("xla", "fused", "chunk"), True)]


def given(data: Any, is_stream: bool) -> Any:
    return stream(data) if is_stream else data


EVERY_WAY = pytest.mark.parametrize(
    ("plan", "is_stream"), [*((plan, False) for plan in PLANS), *STREAMED], ids=str
)


def error_of(task: Any, data: Any, plan: Any = "graph", **options: Any) -> lw.NotFiniteError:
    with pytest.raises(lw.NotFiniteError) as error:
        fit(lw.Trainer(task, plan=plan), data, epochs=4, **options)
    return error.value


@EVERY_WAY
def test_nan_that_the_kernels_hide_from_the_loss_is_found_at_its_step(plan: Any, is_stream: bool):
    error = error_of(Rectified(), given(arrays(), is_stream), plan)
    assert error.step == 6
    assert "batch 6" in str(error)


@EVERY_WAY
def test_gradients_that_are_not_finite_are_found_at_their_step(plan: Any, is_stream: bool):
    text = str(error_of(Rooted(), given(with_roots_of_zero(), is_stream), plan))
    assert text.startswith("Step 6 wrote NaN or infinity into variables, though its loss is finite")
    assert "batch 6" in text
    if plan == "eager":
        assert "first in" in text


def test_a_callback_that_looks_at_losses_does_not_hide_weights_that_are_not_finite():
    callbacks = [keras.callbacks.TerminateOnNaN()]
    assert error_of(Rooted(), with_roots_of_zero(), callbacks=callbacks).step == 6


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: keras.optimizers.SGD(0.01, gradient_accumulation_steps=4),
        lambda: keras.optimizers.Ftrl(0.01),  # sets weights to zero instead of NaN
    ],
    ids=["accumulated", "Ftrl"],
)
def test_gradients_are_found_before_they_are_applied_or_hidden(optimizer: Any):
    assert error_of(Rectified(optimizer()), arrays()).step == 6


def test_a_row_of_an_embedding_that_is_not_read_again_is_found():
    class Embedded(Rectified):
        def __init__(self):
            super().__init__()
            self.model = keras.Sequential([keras.Input((1,)), keras.layers.Embedding(80, 2)])

        def train_step(self, batch):
            rows, y = batch
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.sqrt(tf.abs(self.model(rows, training=True)[:, 0] * y)))
            self.minimize(loss, self.model, self.optimizer, tape)
            return {"loss": loss}

    _, y = with_roots_of_zero()
    assert error_of(Embedded(), (np.arange(ROWS)[:, None], y)).step == 6


def test_a_model_too_large_to_copy_is_looked_at_after_each_step(monkeypatch: Any):
    monkeypatch.setattr("loopwright.engine.engine._MOST_COPIED_BYTES", 0)
    assert error_of(Rectified(), arrays()).step == 6


def test_a_gradient_that_is_not_applied_is_no_such_event():
    class Careful(Rectified):
        def train_step(self, batch):
            x, y = batch
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self.model(x, training=True) - y) ** 2)
            is_good = tf.reduce_all(tf.math.is_finite(x))
            self.minimize(loss, self.model, self.optimizer, tape, when=is_good)
            return {"loss": tf.where(is_good, loss, 0.0)}

    trainer = lw.Trainer(Careful(), plan="graph")
    history = fit(trainer, arrays(), epochs=2)
    assert np.isfinite(history.history["loss"]).all()
    assert all(np.isfinite(weights).all() for weights in trainer.task.model.get_weights())


# --- skip ---


@functools.cache
def bits_without_the_batch(plan: Any) -> str:
    without = lw.Trainer(Normalised(), plan=plan, on_nan="skip")
    x, y = arrays(bad=None)
    fit(without, (np.delete(x, range(40, 48), 0), np.delete(y, range(40, 48), 0)), epochs=1)
    without.task.step_counter.assign_add(1)
    return digest(without.task)


@EVERY_WAY
def test_a_skipped_step_leaves_everything_as_it_was(plan: Any, is_stream: bool):
    skipping, skipped, history = trained(Normalised(), given(arrays(), is_stream), plan=plan)
    assert digest(skipping.task) == bits_without_the_batch(plan)
    assert [event.step for event in skipped] == [6]
    assert "batch 6" in skipped[0].batch
    assert np.isfinite(history.history["loss"]).all()


def test_a_skipped_step_is_reported_also_beside_a_callback_that_looks_for_nan():
    callbacks = [keras.callbacks.TerminateOnNaN()]
    _, skipped, _ = trained(Normalised(), arrays(), callbacks=callbacks)
    assert [event.step for event in skipped] == [6]


def test_an_update_that_would_spoil_the_weights_is_skipped_though_its_loss_is_finite():
    trainer, skipped, _ = trained(Rooted(), with_roots_of_zero())
    assert [event.step for event in skipped] == [6]
    assert all(np.isfinite(w).all() for w in trainer.task.model.get_weights())


@pytest.mark.parametrize("plan", ["graph", lw.Plan("graph", "python")], ids=["looped", "python"])
def test_a_training_that_only_skips_is_ended_in_words_however_few_steps_a_call_has(plan: Any):
    x, y = arrays(bad=None, rows=50 * BATCH)
    trainer = lw.Trainer(Normalised(), on_nan="skip", plan=plan)
    with pytest.raises(lw.NotFiniteError, match="more than 32 batches in a row had to be skipped"):
        fit(trainer, (x * np.nan, y), epochs=3)


# --- rollback ---


@pytest.mark.parametrize("plan", ["graph", "fused"])
def test_going_back_leaves_the_batch_out_and_nothing_else_and_the_journal_tells_of_it(
    plan: str, tmp_path: Any
):
    told: list[Any] = []
    back = lw.Trainer(
        Normalised(), run_dir=tmp_path, plan=plan, on_nan="rollback", sinks=[told.append]
    )
    history = fit(back, arrays(), epochs=2, save_every="4 steps")

    x, y = arrays(bad=None)
    x, y = np.delete(x, range(40, 48), 0), np.delete(y, range(40, 48), 0)
    without = lw.Trainer(Normalised(), plan=plan)
    fit(without, (x, y), epochs=2)
    without.task.step_counter.assign_add(2)

    assert digest(back.task) == digest(without.task)
    skipped = [event for event in told if isinstance(event, lw.BatchSkipped)]
    assert [(e.step, e.went_back_to_step) for e in skipped] == [(6, 4), (16, 12)]
    assert "example 45 of x" in skipped[0].batch
    assert history.epoch == [0, 1]
    assert sum(isinstance(event, lw.Started) for event in told) == 1
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines if line["event"] == "epoch_ended"] == [0, 1]
    assert [line["step"] for line in lines if line["event"] == "batch_skipped"] == [6, 16]


def test_a_run_that_went_back_and_was_stopped_goes_on_with_the_same_bits(tmp_path: Any):
    def trainer(where: Any) -> lw.Trainer:
        return lw.Trainer(Normalised(), run_dir=where, plan="graph", on_nan="rollback")

    whole = trainer(tmp_path / "whole")
    fit(whole, arrays(), epochs=3, save_every="4 steps")
    first = trainer(tmp_path / "twice")
    with pytest.raises(RuntimeError, match="the machine failed"):
        fit(first, arrays(), epochs=3, save_every="4 steps", callbacks=[FailsAfter(18)])
    second = trainer(tmp_path / "twice")
    fit(second, arrays(), epochs=3, save_every="4 steps", callbacks=[FailsAfter(10**9)])
    assert digest(second.task) == digest(whole.task)


def test_a_later_leg_goes_back_to_its_beginning_and_leaves_the_end_of_the_leg_before(tmp_path: Any):
    def script() -> tuple[lw.Trainer, list[Any]]:
        told: list[Any] = []
        trainer = lw.Trainer(
            Normalised(), run_dir=tmp_path, plan="graph", on_nan="rollback", sinks=[told.append]
        )
        fit(trainer, arrays(bad=None), epochs=1)
        trainer.task.optimizer.learning_rate = 0.001
        fit(trainer, arrays(), epochs=1)
        return trainer, told

    first, told = script()
    steps = int(first.task.step_counter) // 2
    skipped = [event for event in told if isinstance(event, lw.BatchSkipped)]
    assert [(e.step, e.went_back_to_step) for e in skipped] == [(steps + 6, steps)]
    second, told = script()
    assert [e.reason for e in told if isinstance(e, lw.Finished)] == ["skipped", "skipped"]
    assert digest(second.task) == digest(first.task)


def test_statistics_that_no_loss_shows_are_found_when_they_are_saved(tmp_path: Any):
    class Unseen(Normalised):
        def train_step(self, batch):
            x, y = batch
            logs = super().train_step((tf.zeros_like(x), y))
            self.model.layers[1].moving_mean.assign_add(tf.reduce_sum(x) * tf.ones(4))
            return logs

    trainer, skipped, _ = trained(Unseen(), arrays(), "rollback", tmp_path, save_every="4 steps")
    assert [event.step for event in skipped] == [6]
    assert np.isfinite(trainer.task.model.layers[1].moving_mean).all()


def test_a_run_that_goes_back_again_and_again_is_ended(tmp_path: Any):
    x, y = arrays(bad=None)
    trainer = lw.Trainer(Normalised(), run_dir=tmp_path, plan="graph", on_nan="rollback")
    with pytest.raises(lw.NotFiniteError):
        fit(trainer, (x * np.nan, y), epochs=2, save_every="4 steps")


class Batches(keras.callbacks.Callback):
    """Counts the batches that were trained, and says so in checkpoints."""

    needs_every_step = True
    ended = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.ended += 1

    def get_state(self) -> int:
        return self.ended

    def set_state(self, state: int) -> None:
        self.ended = state


def test_going_back_gives_callbacks_their_state_back(tmp_path):
    counting = Batches()
    trained(Normalised(), arrays(), "rollback", tmp_path, callbacks=[counting], epochs=1)
    assert counting.ended == ROWS // BATCH


@pytest.mark.parametrize("policy", ["raise", "rollback"])
def test_no_state_that_is_not_finite_was_ever_saved(policy: Any, tmp_path: Any):
    trainer = lw.Trainer(Normalised(), run_dir=tmp_path, plan="graph", on_nan=policy)
    if policy == "raise":
        with pytest.raises(lw.NotFiniteError):
            fit(trainer, arrays(), save_every="1 step")
    else:
        fit(trainer, arrays(), save_every="1 step")
    for step in (tmp_path / "checkpoints").glob("step-????????"):
        reader = tf.train.load_checkpoint(str(step / "state"))
        for name in reader.get_variable_to_shape_map():
            if not name.startswith("data."):
                assert np.isfinite(reader.get_tensor(name)).all(), (step, name)


def test_infinity_that_was_there_from_the_beginning_is_meant(tmp_path: Any):
    class Best(Normalised):
        def __init__(self):
            super().__init__()
            self.best = tf.Variable(float("inf"), trainable=False)

        def train_step(self, batch):
            self.best.assign(self.best)
            return super().train_step(batch)

    fit(lw.Trainer(Best(), run_dir=tmp_path, plan="graph"), arrays(bad=None), epochs=1)
    assert list(tmp_path.glob("checkpoints/step-*"))


def test_a_policy_that_cannot_be_kept_is_refused():
    refused: dict[Any, str] = {
        "ignore": "Unknown on_nan policy",
        "rollback": 'on_nan="rollback" requires run_dir',
    }
    for policy, words in refused.items():
        with pytest.raises(lw.ConfigurationError, match=words):
            lw.Trainer(Normalised(), on_nan=policy)
