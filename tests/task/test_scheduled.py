"""Scheduled numbers: inside every plan, resumed, reported, replaced; refused outside a step."""

import copy
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.mirrored import mirrored

import loopwright as lw
from loopwright.task.context import StepContext, entered

PLANS = ("eager", "graph", "xla", "fused")


def steps_done(step: Any) -> Any:
    return step


class Follows(lw.Task):
    """Returns what its schedules give, in all the ways that people write them."""

    def __init__(self, schedule: Any = steps_done):
        super().__init__()
        self.rate = lw.Scheduled(schedule)
        self.rates = [lw.Scheduled(lambda step: 10 * step), {"inner": lw.Scheduled(steps_done)}]
        self.sum = tf.Variable(0.0)

    def train_step(self):  # pyright: ignore[reportIncompatibleMethodOverride]
        self.sum.assign_add(self.rate.value)
        return {
            "less": 1.0 - self.rate,
            "product": self.rate * tf.constant(2.0),
            "half": tf.constant(0.5, tf.float16) * self.rate,
            "share": self.rates[0] / 10.0 + 0 * self.rates[1]["inner"],
            "is large": tf.cast(tf.constant(3.5) < self.rate, tf.float32),
        }

    def test_step(self):  # pyright: ignore[reportIncompatibleMethodOverride]
        return {"seen": self.rate.value}


def run(task: lw.Task, plan: str, until: str = "8 steps") -> dict[str, Any]:
    return lw.Trainer(task, plan=plan).fit(None, until=until, verbose=0).history


@pytest.mark.parametrize("plan", PLANS)
def test_a_number_follows_every_step_of_the_loop_in_every_plan(plan: str):
    task = Follows()
    history = run(task, plan)
    assert float(task.sum.numpy()) == sum(range(8))
    mean = sum(range(8)) / 8
    assert history["rate"] == [mean]
    assert history["rates[0]"] == [10 * mean]
    assert history["rates[1]['inner']"] == [mean]
    assert history["less"] == [1 - mean]
    assert history["product"] == [2 * mean]
    assert history["half"] == [mean / 2]
    assert history["share"] == [mean]
    assert history["is large"] == [0.5]


def test_nothing_is_traced_again_as_the_number_changes():
    traces = []

    class Counting(Follows):
        def train_step(self):  # pyright: ignore[reportIncompatibleMethodOverride]
            traces.append(1)
            return super().train_step()

    trainer = lw.Trainer(Counting(), plan="graph")
    trainer.fit(None, until="3 steps", verbose=0)
    before = len(traces)
    for _ in range(3):
        trainer.fit(None, until="4 steps", verbose=0)
    assert len(traces) == before


def test_another_schedule_between_two_fits_is_followed():
    task = Follows()
    trainer = lw.Trainer(task, plan="graph")
    trainer.fit(None, until="2 steps", verbose=0)
    task.rate = lw.Scheduled(lambda step: 100 + step)
    assert trainer.fit(None, until="1 steps", verbose=0).history["rate"] == [102.0]


def test_a_name_that_the_step_returns_itself_is_the_steps():
    class Own(Follows):
        def train_step(self):  # pyright: ignore[reportIncompatibleMethodOverride]
            return {"rate": tf.constant(-1.0)}

    assert run(Own(), "graph")["rate"] == [-1.0]


def test_validation_and_prediction_read_it_and_do_not_report_it():
    class Scaled(lw.Task):
        def __init__(self):
            super().__init__()
            self.model, self.optimizer = keras.layers.Dense(1), keras.optimizers.SGD(0.0)
            self.rate = lw.Scheduled(steps_done)

        def train_step(self, batch):
            with tf.GradientTape() as tape:
                loss = self.rate * tf.reduce_mean(self.model(batch))
            self.minimize(loss, self.model, self.optimizer, tape)
            return {"loss": loss}

        def test_step(self, batch):
            return {"seen": self.rate.value + 0.0 * tf.reduce_mean(batch)}

        def predict_step(self, batch):
            return batch * self.rate

    x = np.ones((8, 2), "float32")
    trainer = lw.Trainer(Scaled(), plan="graph")
    history = trainer.fit(x, epochs=2, batch_size=4, validation_data=x, verbose=0).history
    assert history["val_seen"] == [2.0, 4.0]
    assert "val_rate" not in history
    assert trainer.predict(x).tolist() == (4 * x).tolist()
    trainer.task.rate = lw.Scheduled(lambda step: 100 + step)
    assert trainer.predict(x).tolist() == (104 * x).tolist()


def test_one_number_in_two_tasks_follows_the_task_that_runs():
    one, other = Follows(), Follows()
    other.rate = one.rate
    run(one, "graph", "5 steps")
    assert run(other, "graph", "3 steps")["rate"] == [1.0]


def test_a_keras_model_with_its_own_step_reads_it():
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)
            self.rate = lw.Scheduled(steps_done)

        def call(self, inputs):
            return self.dense(inputs)

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.rate * tf.reduce_mean((self(x) - y) ** 2)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
            return {"rate": self.rate.value}

    model = Own()
    model.compile("sgd")
    x = np.ones((8, 2), "float32")
    history = lw.Trainer(model, plan="graph").fit(x, x[:, :1], epochs=3, batch_size=4, verbose=0)
    assert history.history["rate"] == [1.0, 3.0, 5.0]  # the last of each epoch, as Keras reports


def test_it_is_resumed_with_the_steps():
    def make(run_dir: Any) -> lw.Trainer:
        return lw.Trainer(Follows(), run_dir=run_dir, plan="graph")

    lw.testing.assert_resumes_exactly(make, None, until="12 steps", break_at=[5, 11])


def test_with_several_replicas_all_read_the_same():
    strategy = mirrored()

    class Shared(lw.Task):
        def __init__(self):
            super().__init__()
            self.rate = lw.Scheduled(steps_done)

        def train_step(self, batch):
            return {"mean": self.rate + 0.0 * tf.reduce_mean(batch)}

    trainer = lw.Trainer(Shared, plan="graph", strategy=strategy)
    history = trainer.fit(np.ones((12, 1), "float32"), batch_size=4, epochs=2, verbose=0).history
    assert history["rate"] == history["mean"] == [1.0, 4.0]


HALF = {"half": tf.float16, "single": tf.float32, "double": tf.float64}
WRITTEN: dict[str, Any] = {
    "2 - r": lambda r: (2 - r, 1.5),
    "r - 2": lambda r: (r - 2, -1.5),
    "2 / r": lambda r: (2 / r, 4.0),
    "r / 2": lambda r: (r / 2, 0.25),
    "r + r": lambda r: (r + r, 1.0),
    "r * r": lambda r: (r * r, 0.25),
    "r > 0.25": lambda r: (tf.cast(r > 0.25, tf.float32), 1.0),
    "r >= 0.75": lambda r: (tf.cast(r >= 0.75, tf.float32), 0.0),
    "r < 0.75": lambda r: (tf.cast(r < 0.75, tf.float32), 1.0),
    "array * r": lambda r: (tf.reduce_sum(np.ones(3, "float32") * r), 1.5),
    "r * array": lambda r: (tf.reduce_sum(r * np.ones(3, "float32")), 1.5),
    "variable": lambda r: (keras.Variable(3.0) * r, 1.5),
    "keras.ops": lambda r: (keras.ops.multiply(r, tf.constant(3.0)), 1.5),
    **{f"r * {name}": lambda r, d=d: (r * tf.constant(3.0, d), 1.5) for name, d in HALF.items()},
    **{f"{name} * r": lambda r, d=d: (tf.constant(3.0, d) * r, 1.5) for name, d in HALF.items()},
}


@pytest.mark.parametrize("way", list(WRITTEN))
def test_it_is_written_like_a_number(way: str):
    rate = lw.Scheduled(lambda step: 0.5)
    with entered(StepContext(counter=tf.Variable(0, dtype=tf.int64))):
        value, expected = WRITTEN[way](rate)
    assert float(value) == expected
    if way in {"r * half", "half * r"}:
        assert value.dtype == tf.float16


def test_outside_a_step_it_has_no_value_and_says_what_to_do():
    task = Follows()
    run(task, "graph", "3 steps")
    for read in (
        lambda: task.rate.value,
        lambda: 1.0 - task.rate,
        lambda: tf.convert_to_tensor(task.rate),
    ):
        with pytest.raises(lw.StepError, match=r"do: write scheduled.at\(task.step\)"):
            read()
    assert float(task.rate.at(task.step)) == 3.0


def test_the_number_is_a_float_of_keras_whatever_the_schedule_gives():
    assert lw.Scheduled(lambda step: step * 2).at(3).dtype == tf.float32
    assert lw.Scheduled(lambda step: 0.5).at(3).dtype == tf.float32
    assert copy.copy(lw.Scheduled(steps_done)).schedule is steps_done
