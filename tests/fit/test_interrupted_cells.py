"""Ctrl-C without a run directory, and the interrupt of a notebook: the next `fit` continues."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.resume.program import STEPS_PER_EPOCH, AtStep, Noisy, arrays, digest, stream
from tests.resume.test_same_trainer import press_ctrl_c, quiet
from tests.sinks.kernel import Kernel, html_of, kernel, text_of

import loopwright as lw

EPOCHS, AT_STEP = 3, STEPS_PER_EPOCH + 5
DATA = {
    "arrays": (arrays, {"batch_size": 8}),
    "stream": (lambda: (stream(),), {}),
    "unknown": (lambda: (stream(unknown=True),), {}),
}


@pytest.fixture(autouse=True)
def _ctrl_c_raises() -> Iterator[None]:
    """As in a terminal: a shell starts programs in the background with Ctrl-C ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def fit(trainer: lw.Trainer, kind: str, callback: Any = None, **options: Any) -> lw.History:
    data, own = DATA[kind]
    given: Any = {"epochs": EPOCHS, "verbose": 0, "validation_data": arrays(8), **own, **options}
    return trainer.fit(*data(), callbacks=[callback or quiet()], **given)


def interrupted(kind: str = "arrays", step: int = AT_STEP, **options: Any) -> lw.Trainer:
    trainer = lw.Trainer(Noisy(), plan="graph", **options)
    with pytest.raises(KeyboardInterrupt):
        fit(trainer, kind, AtStep(step, press_ctrl_c))
    assert int(trainer.task.step_counter) == step
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return trainer


@pytest.mark.parametrize("kind", DATA)
def test_after_ctrl_c_the_next_fit_continues_to_the_same_bits(kind: str):
    whole = lw.Trainer(Noisy(), plan="graph")
    expected = fit(whole, kind)
    told: list[Any] = []
    trainer = interrupted(kind, sinks=[told.append])
    assert [(e.reason, e.saved) for e in told if isinstance(e, lw.Finished)] == [
        ("interrupted", False)
    ]
    trainer.evaluate(*arrays(), batch_size=8)  # looking changes nothing
    history = fit(trainer, kind)
    assert digest(trainer.task) == digest(whole.task)
    assert history.epoch == expected.epoch
    assert history.history == expected.history
    assert history.validation_steps == expected.validation_steps
    fit(trainer, kind, epochs=1)  # the next call begins another leg
    fit(whole, kind, epochs=1)
    assert digest(trainer.task) == digest(whole.task)


def test_ctrl_c_twice_and_more_epochs_end_with_the_same_bits():
    trainer = interrupted()
    with pytest.raises(KeyboardInterrupt):
        fit(trainer, "arrays", AtStep(3, press_ctrl_c))
    history = fit(trainer, "arrays", epochs=EPOCHS + 1)
    whole = lw.Trainer(Noisy(), plan="graph")
    assert fit(whole, "arrays", epochs=EPOCHS + 1).history == history.history
    assert digest(trainer.task) == digest(whole.task)


def test_a_learning_rate_that_was_set_since_then_is_used():
    trainer = interrupted()
    trainer.task.optimizer.learning_rate = 0.0
    weights = [variable.numpy() for variable in trainer.task.model.trainable_variables]
    trainer.task.optimizer.use_ema = False
    fit(trainer, "arrays")
    assert trainer.task.optimizer.learning_rate == 0.0
    after = [variable.numpy() for variable in trainer.task.model.trainable_variables]
    for one, other in zip(weights, after, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"epochs": 1}, "1 epoch asked for, 3 epochs then"),
        ({"batch_size": 4}, "batch"),
    ],
)
def test_a_call_for_something_else_trains_on_and_says_so(options: dict[str, Any], why: str):
    told: list[Any] = []
    trainer = interrupted(sinks=[told.append])
    steps = int(trainer.task.step_counter)
    history = fit(trainer, "arrays", **options)
    assert history.epoch_steps[0] > steps
    assert len(history.epoch) == options.get("epochs", EPOCHS)
    notes = [each.text for each in told if isinstance(each, lw.Noted)]
    (note,) = [note for note in notes if not note.startswith("use_ema")]
    assert note.startswith("the interrupted call of fit is not continued")
    assert why in note


def test_other_callbacks_continue_and_start_as_they_are():
    told: list[Any] = []
    trainer = interrupted(sinks=[told.append])
    stops = keras.callbacks.EarlyStopping("loss", patience=1, min_delta=100.0)
    history = trainer.fit(*arrays(), batch_size=8, epochs=9, verbose=0, callbacks=[stops])
    assert history.epoch == [0, 1, 2], "the second epoch is its first"
    notes = [each.text for each in told if isinstance(each, lw.Noted)]
    (note,) = [note for note in notes if not note.startswith("use_ema")]
    assert note.startswith("other callbacks than in the interrupted call")


def test_data_whose_position_cannot_be_held_restarts_its_epoch():
    def rows() -> Iterator[Any]:
        for index in range(STEPS_PER_EPOCH):
            yield tuple(values[8 * index : 8 * index + 8] for values in arrays())

    spec = (tf.TensorSpec((None, 4)), tf.TensorSpec((None, 1)))
    data = tf.data.Dataset.from_generator(rows, output_signature=spec)
    trainer = lw.Trainer(Noisy(), plan="graph")
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(data, epochs=3, verbose=0, callbacks=[AtStep(AT_STEP, press_ctrl_c)])
    history = trainer.fit(data, epochs=3, verbose=0)
    assert history.epoch == [0, 1, 2]
    assert int(trainer.task.step_counter) == AT_STEP + 2 * STEPS_PER_EPOCH


def test_a_loop_over_events_is_interrupted_at_once():
    def loop() -> None:
        for event in lw.Trainer(Noisy(), plan="graph").events(*arrays(), batch_size=8, epochs=2):
            if isinstance(event, lw.EpochEnded):
                os.kill(os.getpid(), signal.SIGINT)
                raise AssertionError("the signal came late")

    with pytest.raises(KeyboardInterrupt):
        loop()


def test_a_handler_of_the_users_own_is_left_alone():
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    try:
        trainer = lw.Trainer(Noisy(), plan="graph")
        history = fit(trainer, "arrays", AtStep(AT_STEP, press_ctrl_c))
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [signal.SIGINT]
    assert len(history.epoch) == EPOCHS


def test_early_stopping_that_was_waiting_still_waits():
    def patient() -> keras.callbacks.EarlyStopping:
        return keras.callbacks.EarlyStopping("loss", patience=2, min_delta=100.0)

    trainer = lw.Trainer(Noisy(), plan="graph")
    data: Any = {"batch_size": 8, "epochs": 9, "verbose": 0}
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(*arrays(), **data, callbacks=[patient(), AtStep(AT_STEP, press_ctrl_c)])
    assert len(trainer.fit(*arrays(), **data, callbacks=[patient(), quiet()]).epoch) == 3


# --- in a real notebook ---

SETUP = """
import time, keras, loopwright as lw
from tests.resume.program import Noisy, arrays, digest

class Slow(keras.callbacks.Callback):
    # From the third epoch on so slow that the interrupt comes in time on a busy machine.
    seconds, epoch = 0.5, 0
    needs_every_step = True
    def on_epoch_begin(self, epoch, logs=None): self.epoch = epoch
    def on_train_batch_end(self, batch, logs=None):
        if self.epoch >= 2: time.sleep(self.seconds)
    def get_state(self): return {}
    def set_state(self, state): pass

def fit(trainer):
    return trainer.fit(*arrays(), batch_size=8, epochs=12, callbacks=[Slow()],
                       validation_data=arrays(8))

trainer = lw.Trainer(Noisy(), plan="graph", run_dir=RUN_DIR)
"""


def is_in_third_epoch(outputs: list[Any]) -> bool:
    return any("epoch 3/12" in page for page in html_of(outputs))


@pytest.mark.parametrize("run_dir", [None, "run"])
def test_an_interrupted_cell_keeps_everything_and_is_continued(run_dir: str | None, tmp_path: Path):
    with kernel(tmp_path) as cells:
        check(cells, run_dir)


def check(cells: Kernel, run_dir: str | None) -> None:
    outputs = cells.run(SETUP.replace("RUN_DIR", repr(run_dir)))
    assert not [output for output in outputs if output["kind"] == "error"], outputs
    outputs = cells.run("fit(trainer)", interrupt_when=is_in_third_epoch)
    assert [each["ename"] for each in outputs if each["kind"] == "error"] == ["KeyboardInterrupt"]
    assert "interrupted" in html_of(outputs)[0]
    done = int(text_of(cells.run("print(int(trainer.task.step_counter))")))
    assert 2 * STEPS_PER_EPOCH <= done < 12 * STEPS_PER_EPOCH
    assert f"Trainer(Noisy, {done:,} steps" in text_of(cells.run("print(trainer)"))
    outputs = cells.run("Slow.seconds = 0; history = fit(trainer)")
    page = html_of(outputs)[0]
    assert f"resuming from step {done}" in page
    cells.run("whole = lw.Trainer(Noisy(), plan='graph'); expected = fit(whole)")
    same = cells.run(
        "print(digest(trainer.task) == digest(whole.task), history.history == expected.history,"
        " history.epoch == expected.epoch)"
    )
    assert text_of(same) == "True True True\n"
    (shown,) = html_of(cells.run("history"))
    assert "12 epochs" in shown
