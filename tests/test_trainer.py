"""Trainer from the outside: what it refuses, whom it tells, and what a second `fit` means.

Runs are eager where it makes no difference: nothing has to be traced for them.
"""

import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import loopwright as lw

X = np.arange(12, dtype="float32")[:, None] / 12
Y = 3 * X - 1
STEPS = 3
DATA: dict[str, Any] = {"batch_size": 4, "verbose": 0}


class Line(lw.Task):
    """Fits a line, notes each Python call of its step, and reports the order of the data."""

    def __init__(self) -> None:
        super().__init__()
        keras.utils.set_random_seed(1)
        self.model = keras.Sequential(
            [keras.Input((1,)), keras.layers.Dense(2, name="below"), keras.layers.Dense(1)]
        )
        self.optimizer = keras.optimizers.SGD(0.1)
        self.scale = 1.0
        self.calls: list[str] = []

    def train_step(self, batch: Any) -> Any:
        self.calls.append("train_step")
        x, y = batch
        with tf.GradientTape() as tape:
            loss = self.scale * tf.reduce_mean(tf.square(self.model(x) - y))
        self.minimize(loss, self.model, self.optimizer, tape)
        place = tf.cast(self.step % STEPS, x.dtype)
        return {"loss": loss, "order": place * tf.reduce_sum(x)}

    def test_step(self, batch: Any) -> Any:
        x, y = batch
        return {"loss": tf.reduce_mean(tf.square(self.model(x) - y))}


class EveryStep(keras.callbacks.Callback):
    """Makes every step a stop, so that events do not depend on the clock."""

    needs_every_step = True


class Stop(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.stop_training = True


class Fail(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        raise RuntimeError("on purpose")


def eager(**options: Any) -> lw.Trainer:
    return lw.Trainer(Line(), plan="eager", **options)


def outline(events: Any) -> list[str]:
    return [f"{type(event).__name__} {event.step}" for event in events]


# --- events and sinks -------------------------------------------------------------------------


@pytest.mark.parametrize("plan", ["eager", "graph"])
def test_a_run_is_this_list_of_events(plan: str):
    trainer = lw.Trainer(Line(), plan=plan)
    options = {"epochs": 2, "validation_data": (X, Y), "callbacks": [EveryStep()]}

    events = list(trainer.events(X, Y, **options, **DATA))

    assert outline(events) == [
        "Started 0",
        "EpochStarted 0",
        *("Trained 1", "Trained 2", "Trained 3", "Validated 3"),
        "EpochEnded 3",
        "EpochStarted 3",
        *("Trained 4", "Trained 5", "Trained 6", "Validated 6"),
        "EpochEnded 6",
        "Finished 6",
    ]
    started, ended, finished = events[0], events[-2], events[-1]
    assert started == lw.Started(step=0, epochs=2, steps_per_epoch=3, total_steps=6)
    assert isinstance(ended, lw.EpochEnded)
    assert (ended.epoch, ended.steps) == (1, 3)
    assert set(ended.metrics) == {"loss", "order"}
    assert set(ended.validation) == {"loss"}
    assert isinstance(finished, lw.Finished)
    assert finished.reason == "complete"


@pytest.mark.parametrize(
    ("until", "last"),
    [
        ("4 steps", ["EpochStarted 3", "Trained 4", "EpochEnded 4", "Finished 4"]),
        ("1 epoch", ["Trained 3", "EpochEnded 3", "Finished 3"]),
        ("0.000001 seconds", ["Trained 1", "EpochEnded 1", "Finished 1"]),
    ],
)
def test_until_ends_the_run_there(until: str, last: list[str]):
    events = list(eager().events(X, Y, until=until, callbacks=[EveryStep()], **DATA))
    assert outline(events)[-len(last) :] == last
    assert events[-1].reason == "complete"  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("callbacks", "reason"), [([], "complete"), ([Stop()], "stopped"), ([Fail()], "failed")]
)
def test_sinks_hear_every_event_and_once_how_it_ended(callbacks: Any, reason: str):
    heard: list[lw.Event] = []
    yielded: list[lw.Event] = []
    trainer = eager(sinks=[heard.append])

    def run() -> None:
        for event in trainer.events(X, Y, epochs=2, callbacks=callbacks, **DATA):
            yielded.append(event)

    if reason == "failed":
        with pytest.raises(RuntimeError, match="on purpose"):
            run()
        # The event whose sink failed is not yielded, and nobody is there for the last one.
        assert heard[: len(yielded)] == yielded
    else:
        run()
        assert heard == yielded
    finished = [event for event in heard if isinstance(event, lw.Finished)]
    assert [event.reason for event in finished] == [reason]
    assert heard[-1] is finished[0]
    assert finished[0].step == {"complete": 6, "stopped": 3, "failed": 3}[reason]
    assert finished[0].seconds > 0


def test_leaving_events_is_a_way_to_end_of_which_sinks_hear_at_once():
    heard: list[lw.Event] = []
    trainer = eager(sinks=[heard.append])
    with trainer.events(X, Y, epochs=9, callbacks=[EveryStep()], **DATA) as events:
        next(event for event in events if event.step == 4)
    assert outline(heard)[-2:] == ["Trained 4", "Finished 4"]
    assert heard[-1].reason == "left"  # pyright: ignore[reportAttributeAccessIssue]
    assert trainer.history.epoch == [0]


def test_a_sink_that_fails_warns_once_and_training_goes_on():
    heard: list[lw.Event] = []
    calls: list[lw.Event] = []

    def broken(event: lw.Event) -> None:
        calls.append(event)
        if isinstance(event, lw.EpochStarted):
            raise OSError("disk full")

    trainer = eager(sinks=[broken, heard.append])
    with pytest.warns(lw.LoopwrightWarning) as warned:
        history = trainer.fit(X, Y, epochs=3, **DATA)

    assert len(warned) == 1
    assert "broken" in str(warned[0].message)
    assert "OSError: disk full" in str(warned[0].message)
    assert outline(calls) == ["Started 0", "EpochStarted 0"]
    assert outline(heard)[-1] == "Finished 9"
    assert history.epoch == [0, 1, 2]


# --- fitting again ----------------------------------------------------------------------------


def test_fitting_again_goes_on_with_steps_and_data_and_counts_epochs_from_0():
    at_once, in_parts, heard = eager(), eager(), []
    whole = at_once.fit(X, Y, epochs=3, **DATA)
    first = in_parts.fit(X, Y, **DATA)
    for event in in_parts.events(X, Y, epochs=2, **DATA):
        heard.append(event)
    second = in_parts.history

    assert whole.history["order"] == first.history["order"] + second.history["order"]
    assert len(set(whole.history["order"])) == 3  # each epoch has an order of its own
    assert whole.history["loss"] == first.history["loss"] + second.history["loss"]
    assert second.epoch == [0, 1]
    assert heard[0] == lw.Started(step=3, epochs=2, steps_per_epoch=3, total_steps=6)
    assert second.epoch_steps == [6, 9]


def test_the_seed_decides_the_order_of_the_data():
    def order(seed: int) -> list[float]:
        return eager(seed=seed).fit(X, Y, epochs=2, **DATA).history["order"]

    assert order(5) == order(5)
    assert order(5) != order(6)


def test_without_shuffle_every_epoch_has_the_order_given():
    order = eager().fit(X, Y, epochs=3, shuffle=False, **DATA).history["order"]
    batches = X.reshape(3, 4).sum(axis=1)
    assert order == pytest.approx([batches @ [0, 1, 2] / 3] * 3)


@pytest.fixture(scope="module")
def traced() -> lw.Trainer:
    trainer = lw.Trainer(Line())
    trainer.fit(X, Y, **DATA)
    return trainer


def calls_during(trainer: lw.Trainer, run: Callable[[], Any]) -> int:
    assert isinstance(trainer.task, Line)
    before = len(trainer.task.calls)
    run()
    return len(trainer.task.calls) - before


def test_the_step_is_traced_for_the_first_fit_and_not_again():
    task = Line()
    trainer = lw.Trainer(task)
    trainer.fit(X, Y, epochs=9, **DATA)
    assert 0 < len(task.calls) < 4  # once to build, once inside the loop

    def again() -> None:
        trainer.fit(X, Y, epochs=2, **DATA)
        trainer.fit(X, Y, validation_data=(X, Y), callbacks=[Stop()], **DATA)
        trainer.evaluate(X, Y, batch_size=4)

    assert calls_during(trainer, again) == 0
    assert int(task.step) == 12 * STEPS


def test_a_layer_that_was_frozen_between_two_fits_stays_as_it_is(traced: lw.Trainer):
    assert isinstance(traced.task, Line)
    model = traced.task.model
    below = model.get_layer("below")
    below.trainable = False
    frozen, free = below.get_weights(), model.layers[-1].get_weights()

    calls = calls_during(traced, lambda: traced.fit(X, Y, **DATA))

    assert calls > 0
    np.testing.assert_array_equal(below.get_weights()[0], frozen[0])
    assert not np.array_equal(model.layers[-1].get_weights()[0], free[0])
    below.trainable = True


def test_a_plain_attribute_that_was_changed_between_two_fits_means_what_it_says(
    traced: lw.Trainer,
):
    assert isinstance(traced.task, Line)
    traced.task.optimizer.learning_rate = 0.0
    before = traced.fit(X, Y, **DATA).history["loss"][0]
    traced.task.scale = 4.0
    after: list[float] = []

    calls = calls_during(traced, lambda: after.extend(traced.fit(X, Y, **DATA).history["loss"]))

    assert calls > 0
    assert after[0] == pytest.approx(4 * before, rel=1e-4)
    traced.task.optimizer.learning_rate, traced.task.scale = 0.1, 1.0


# --- validation -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("every", "at"),
    [
        ("2 steps", [2, 4, 6, 8, 9]),  # and where the run ends
        ("2 epochs", [6, 9]),
        (lw.Every(epochs=3), [9]),
        ("1 epoch", [3, 6, 9]),
    ],
)
def test_validation_comes_as_often_as_asked(every: Any, at: list[int]):
    trainer = eager()
    options = {"epochs": 3, "validation_data": (X, Y), "validate_every": every}
    events = list(trainer.events(X, Y, **options, **DATA))
    assert [event.step for event in events if isinstance(event, lw.Validated)] == at
    assert trainer.history.validation_steps == at
    assert len(trainer.history.history["val_loss"]) == len(at)


# --- how it is told ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "lines"),
    [({"verbose": 0}, 0), ({"verbose": 1}, 3), ({"verbose": 2}, 3), ({}, 3)],
)
def test_verbose_says_how_much_is_shown(
    options: dict[str, Any], lines: int, capsys: pytest.CaptureFixture[str]
):
    eager().fit(X, Y, batch_size=4, epochs=2, **options)
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) in (lines, lines + (lines > 0))  # the last one may be advice
    if lines:
        assert shown[0].startswith("epoch 1/2 · 3 steps")
        assert shown[2].startswith("done: 6 steps")
        assert all(" of the time" in line for line in shown[3:])


def test_events_show_nothing_unless_asked(capsys: pytest.CaptureFixture[str]):
    for _ in eager().events(X, Y, batch_size=4):
        pass
    assert capsys.readouterr().out == ""
    for _ in eager().events(X, Y, batch_size=4, verbose=2):
        pass
    assert "done: 3 steps" in capsys.readouterr().out


def test_the_seconds_of_a_run_are_those_of_the_call_with_tracing_and_compiling():
    trainer, began = lw.Trainer(Line(), plan="graph"), time.perf_counter()
    *_, end = trainer.events(X, Y, epochs=1, validation_data=(X, Y), **DATA)
    seconds = time.perf_counter() - began
    assert isinstance(end, lw.Finished)
    assert 0.9 * seconds < end.seconds <= seconds
    assert sum(end.spent.values()) == pytest.approx(end.seconds, rel=0.05)
    assert end.spent["compile"] > end.spent["Python"]


def test_a_trainer_shows_its_task_its_plan_and_its_last_history():
    task, model = Line(), keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    trainer = lw.Trainer(task, plan="eager")

    assert trainer.task is task
    assert trainer.plan == lw.Plan(step="eager", loop="python")
    assert lw.Trainer(task).plan == lw.Plan(step="graph", loop="graph")
    assert lw.Trainer(task, plan=lw.Plan("graph", "graph")).plan == lw.Plan("graph", "graph")
    assert vars(lw.Trainer(model).task)["model"] is model
    assert trainer.history.history == {}
    assert trainer.fit(X, Y, **DATA) is trainer.history
    assert set(trainer.history.history) == {"loss", "order"}


def test_an_eager_plan_calls_the_step_at_every_step():
    trainer = eager()
    assert calls_during(trainer, lambda: trainer.fit(X, Y, epochs=2, **DATA)) == 2 * STEPS


def test_a_function_that_makes_the_task_is_called_inside_the_scope_of_the_strategy():
    strategy, seen = tf.distribute.OneDeviceStrategy("/cpu:0"), []

    def make() -> lw.Task:
        seen.append(tf.distribute.get_strategy())
        return Line()

    trainer = lw.Trainer(make, strategy=strategy)

    assert seen == [strategy]
    assert isinstance(trainer.task, Line)
    assert isinstance(lw.Trainer(Line).task, Line)  # a class is such a function
    assert len(trainer.fit(X, Y, **DATA).history["loss"]) == 1


# --- what is refused --------------------------------------------------------------------------


def assert_explains(error: BaseException, *texts: str) -> None:
    for text in ("expected: ", "received: ", "do: ", *texts):
        assert text in str(error)


@pytest.mark.parametrize("task", [42, "model.keras", None, [Line]])
def test_something_that_cannot_be_trained_is_refused(task: Any):
    with pytest.raises(lw.ConfigurationError) as caught:
        lw.Trainer(task)
    assert_explains(caught.value, repr(task), type(task).__name__, "lw.Supervised(model, loss")


def test_a_model_that_is_not_compiled_is_refused_by_its_name():
    with pytest.raises(lw.ConfigurationError) as caught:
        lw.Trainer(keras.Sequential([keras.layers.Dense(1)], name="forgotten"))
    assert_explains(caught.value, "'forgotten' is not compiled", "model.compile(...)")


def test_an_unknown_plan_is_refused_with_the_names_there_are():
    with pytest.raises(lw.ConfigurationError) as caught:
        lw.Trainer(Line(), plan="warp")
    assert_explains(caught.value, "'warp'", "'graph'", "'eager'")


def test_a_plan_that_cannot_be_combined_is_refused_with_those_that_can():
    with pytest.raises(lw.ConfigurationError) as caught:
        lw.Plan(step="eager", loop="graph")
    assert_explains(
        caught.value,
        "received: Plan(step='eager', loop='graph', feed=None)",
        "Plan(step='graph', loop='graph')",
    )


def refused(trainer: lw.Trainer, **options: Any) -> lw.ConfigurationError:
    """The error of a `fit` that must not have done anything."""
    with pytest.raises(lw.ConfigurationError) as caught:
        trainer.fit(X, Y, **DATA | options)
    assert int(trainer.task.step) == 0
    return caught.value


@pytest.mark.parametrize(
    ("options", "texts"),
    [
        ({"epochs": 0}, ["epochs=0"]),
        ({"epochs": -1}, ["epochs=-1"]),
        ({"epochs": 2, "until": "10 steps"}, ["epochs=2", "until='10 steps'", "leave one out"]),
        *(({"until": until}, ['"500 steps"']) for until in ("soon", "10", "1.5 steps", "0 steps")),
        ({"verbose": 3}, ["verbose=3"]),
    ],
)
def test_an_option_that_says_nothing_is_refused_before_the_first_step(options: Any, texts: Any):
    heard: list[lw.Event] = []
    assert_explains(refused(eager(sinks=[heard.append]), **options), *texts)
    assert heard == []


def test_validation_split_is_refused_for_what_cannot_be_split():
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)
    with pytest.raises(lw.ConfigurationError) as caught:
        eager().fit(data, validation_split=0.5, verbose=0)
    assert_explains(caught.value, "pass validation_data")


def test_no_data_and_no_length_is_refused():
    class WithoutData(lw.Task):
        def train_step(self):  # pyright: ignore[reportIncompatibleMethodOverride]
            return {"loss": 0.0}

    with pytest.raises(lw.ConfigurationError) as caught:
        lw.Trainer(WithoutData()).fit(epochs=2, verbose=0)
    assert_explains(caught.value, 'fit(None, until="10000 steps")')


def test_a_step_that_takes_a_batch_is_not_run_without_data():
    with pytest.raises(
        lw.ConfigurationError, match="takes a batch, but there is no data"
    ) as caught:
        eager().fit(None, until="5 steps", verbose=0)
    assert_explains(caught.value, "def train_step(self)")


def test_labels_without_inputs_are_refused():
    with pytest.raises(lw.DataError, match="passed without inputs") as caught:
        eager().fit(None, np.zeros(3), until="5 steps", verbose=0)
    assert_explains(caught.value)


def test_what_is_wrong_with_validation_shows_before_training():
    class Wrong(lw.Task):
        def __init__(self):
            super().__init__()
            self.ran = tf.Variable(0)

        def train_step(self, batch):
            self.ran.assign_add(tf.shape(batch)[0])
            return {"loss": tf.reduce_mean(batch)}

        def test_step(self, batch):
            return tf.reduce_mean(batch)

    values = np.zeros((8, 2), "float32")
    trainer = lw.Trainer(Wrong())
    with pytest.raises(lw.StepError, match=r"Wrong\.test_step must return a dict"):
        trainer.fit(values, validation_data=(values,), verbose=0)
    endless = tf.data.Dataset.from_tensors(values).repeat()
    with pytest.raises(lw.DataError, match="is endless"):
        trainer.fit(values, validation_data=endless, verbose=0)
    assert int(trainer.task.ran) == 0


def test_another_backend_than_tensorflow_is_refused(monkeypatch: pytest.MonkeyPatch):
    # Keras' other backends need JAX or PyTorch, even that of NumPy; its answer is all we read.
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(lw.ConfigurationError) as caught:
        lw.Trainer(Line)
    assert_explains(caught.value, "the jax backend", "KERAS_BACKEND=tensorflow")
