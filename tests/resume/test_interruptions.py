"""Interrupted where it is awkward, each kind of run goes on and ends with the same bits."""

import functools
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.mirrored import mirrored
from tests.resume.children import Child
from tests.resume.program import (
    KillsAt,
    arrays,
    digest,
    train,
    train_and_be_killed,
    train_legs,
)

import loopwright as lw
from loopwright.checkpoints import run_directory
from loopwright.checkpoints.store import Store
from loopwright.fit.journal import RunFiles


def be_asked_to_leave() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def interrupted(run: Callable[[], Any], run_dir: Path) -> None:
    """Runs until the signal; it left with 143, and nothing half-written."""
    with pytest.raises(lw.Preempted) as left:
        run()
    assert left.value.code == 143
    store = Store(run_dir / "checkpoints")
    assert store.newest() is not None
    assert not [found for found in store.all() if found.damage]
    assert not list(store.directory.glob("*.tmp-*"))


# --- signals ---


class AsksIn(keras.callbacks.Callback):
    """Asks the run to leave while one of its own hooks runs: `"on_epoch_end"`, the first time."""

    def __init__(self, hook: str = "") -> None:
        super().__init__()
        self.hook = hook

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: Any) -> None:
        """Every start asks anew."""

    def came(self, hook: str, epoch: int | None = None, logs: Any = None) -> None:
        if self.hook in (hook, f"{hook} {epoch}"):
            self.hook = ""
            be_asked_to_leave()

    on_train_begin = functools.partialmethod(came, "on_train_begin")
    on_epoch_begin = functools.partialmethod(came, "on_epoch_begin")
    on_test_begin = functools.partialmethod(came, "on_test_begin")
    on_test_end = functools.partialmethod(came, "on_test_end")
    on_epoch_end = functools.partialmethod(came, "on_epoch_end")


EPOCHS = 3


def run_with(run_dir: Path | None, **changed: Any) -> tuple[lw.Trainer, lw.History]:
    given: Any = {"callbacks": [AsksIn()], "epochs": EPOCHS} | changed
    return train(run_dir, "arrays", "graph", **given)


@functools.cache
def undisturbed() -> tuple[str, Any]:
    trainer, history = run_with(None)
    return digest(trainer.task), history.history


def assert_ends_the_same(trainer: lw.Trainer, history: lw.History) -> None:
    bits, numbers = undisturbed()
    assert digest(trainer.task) == bits
    assert history.history.keys() == numbers.keys()
    for name, values in numbers.items():
        np.testing.assert_allclose(history.history[name], values, rtol=1e-6)


def test_asked_to_leave_in_any_hook_of_a_callback_a_run_loses_nothing(tmp_path: Path):
    hooks = ["on_train_begin", "on_test_begin", "on_epoch_end 0", "on_epoch_begin", "on_test_end"]
    for hook in [*hooks, f"on_epoch_end {EPOCHS - 1}"]:  # each comes after the one before
        asks = AsksIn(hook)
        interrupted(functools.partial(run_with, tmp_path, callbacks=[asks]), tmp_path)
        assert not asks.hook
    assert_ends_the_same(*run_with(tmp_path))


def test_asked_to_leave_in_the_middle_of_a_validation_a_run_tells_of_it_once(tmp_path: Path):
    class Held(keras.utils.PyDataset):
        asks = False

        def __len__(self) -> int:
            return 100

        def __getitem__(self, index: int) -> Any:
            if self.asks and index == 50:
                be_asked_to_leave()
            x, y = arrays(200)
            return x[2 * index : 2 * index + 2], y[2 * index : 2 * index + 2]

    def fit(run_dir: Path | None, held: Held) -> tuple[lw.Trainer, lw.History]:
        return run_with(run_dir, validation_data=held, epochs=1)

    whole, expected = fit(None, Held())
    asking = Held()
    asking.asks = True
    interrupted(lambda: fit(tmp_path, asking), tmp_path)
    resumed, history = fit(tmp_path, Held())
    assert digest(resumed.task) == digest(whole.task)
    assert history.validation_steps == expected.validation_steps
    assert history.history["val_loss"] == pytest.approx(expected.history["val_loss"], rel=1e-6)


def test_asked_to_leave_while_a_checkpoint_is_written_it_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked = list[str]()

    def asking(moment: str) -> None:
        """In the thread that writes: until the other one has noted the signal."""
        handler: Any = signal.getsignal(signal.SIGTERM)
        if moment not in asked and not handler.__self__.received():
            asked.append(moment)
            be_asked_to_leave()
            while not handler.__self__.received():
                time.sleep(0.001)

    def wrapped(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def call(*arguments: Any) -> Any:
            asking(f"before {name}")
            result = real(*arguments)
            asking(f"after {name}")
            return result

        monkeypatch.setattr(owner, name, call)

    sync = RunFiles.sync

    def slow_sync(files: RunFiles) -> None:
        time.sleep(0.1)  # long enough for the run to be over, if it did not wait
        sync(files)

    monkeypatch.setattr(RunFiles, "sync", slow_sync)
    wrapped(run_directory.tensors, "write")
    wrapped(Store, "apply_retention")
    for _ in range(4):
        interrupted(functools.partial(run_with, tmp_path), tmp_path)
    moments = ("before write", "after write", "before apply_retention", "after apply_retention")
    assert set(asked) == set(moments)
    assert_ends_the_same(*run_with(tmp_path))


# --- kinds of runs ---


def test_a_run_on_two_replicas_that_was_killed_goes_on_with_the_same_bits(tmp_path: Path):
    child = Child(tmp_path / "log", train_and_be_killed, tmp_path / "run", 20, "on two replicas")
    whole, expected = train(None, "arrays", "graph", epochs=2, strategy=mirrored())
    code, printed = child.ended()
    assert code == -signal.SIGKILL, printed[-3000:]
    resumed, history = train(
        tmp_path / "run",
        "arrays",
        "graph",
        epochs=2,
        strategy=mirrored(),
        callbacks=[KillsAt()],
    )
    assert digest(resumed.task) == digest(whole.task)
    assert history.epoch_steps == expected.epoch_steps
    exactly = {"epochs": 2, "exact": "require", "callbacks": [KillsAt()]}
    with pytest.raises(lw.ConfigurationError, match="replicas: 2 then, 1 now"):
        train(tmp_path / "run", "arrays", "graph", **exactly)


class Wandering(lw.Task):
    """Makes its own data from a generator that it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.place = tf.Variable(4.0)
        self.generator = tf.random.Generator.from_seed(1)
        self.optimizer = keras.optimizers.Adam(0.1)

    def train_step(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        with tf.GradientTape() as tape:
            loss = (self.place + self.generator.normal([])) ** 2
        self.minimize(loss, [self.place], self.optimizer, tape)
        return {"loss": loss}


class Hourly(keras.callbacks.Callback):
    """Every step takes an hour by this clock; after some of them the run is asked to leave."""

    needs_every_step = True

    def __init__(self, asks_after: int | None = None) -> None:
        super().__init__()
        self.seconds, self.asks_after = 0.0, asks_after

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: Any) -> None:
        """The clock of another process."""

    def perf_counter(self) -> float:
        return self.seconds

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seconds += 3600.0
        if self.asks_after is not None and self.seconds >= 3600 * self.asks_after:
            be_asked_to_leave()


@pytest.mark.parametrize("until", ["9 steps", "9 hours"])
def test_a_task_that_makes_its_own_data_goes_on_and_time_already_spent_counts(
    until: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def fit(run_dir: Path | None, asks_after: int | None = None) -> tuple[lw.Trainer, Any]:
        clock = Hourly(asks_after)
        monkeypatch.setattr("loopwright.fit.session.time", clock)
        trainer = lw.Trainer(Wandering(), run_dir=run_dir, plan="graph", sinks=[told.append])
        history = trainer.fit(None, until=until, save_every="2 steps", callbacks=[clock], verbose=0)
        return trainer, history

    told: list[lw.Event] = []
    whole, expected = fit(None)
    steps = int(whole.task.step_counter)
    for hours in (4, 3):
        interrupted(functools.partial(fit, tmp_path, hours), tmp_path)
    resumed, history = fit(tmp_path)
    assert int(resumed.task.step_counter) == steps
    assert digest(resumed.task) == digest(whole.task)
    assert history.history["loss"] == pytest.approx(expected.history["loss"], rel=1e-6)
    end = told[-1]
    assert isinstance(end, lw.Finished)
    # Where the hours of earlier starts went nobody knows: they are not this one's Python.
    assert sum(end.spent.values()) <= 3 * 3600 < 8 * 3600 <= end.seconds


# --- legs with layers frozen and unfrozen between them ---


@pytest.mark.parametrize("second", ["freezes", "unfreezes"])
def test_killed_in_the_second_leg_the_first_is_skipped_and_the_second_goes_on(
    second: str, tmp_path: Path
):
    child = Child(tmp_path / "log", train_legs, tmp_path / "run", second, 5)
    whole, expected, reasons = train_legs(None, second)
    assert reasons == ["complete", "complete"]
    code, printed = child.ended()
    assert code == -signal.SIGKILL, printed[-3000:]
    resumed, histories, reasons = train_legs(tmp_path / "run", second)
    assert reasons == ["skipped", "complete"]
    assert digest(resumed.task) == digest(whole.task)
    for found, numbers in zip(histories, expected, strict=True):
        assert found.keys() == numbers.keys()
        for name, values in numbers.items():
            np.testing.assert_allclose(found[name], values, rtol=1e-6)
    again, recorded, reasons = train_legs(tmp_path / "run", second)
    assert reasons == ["skipped", "skipped"]
    assert recorded == histories
    assert digest(again.task) == digest(whole.task)
    trainable = [len(layer.trainable_weights) for layer in again.task.model.layers]
    assert trainable == [len(layer.trainable_weights) for layer in whole.task.model.layers]
