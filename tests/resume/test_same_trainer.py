"""A leg that was interrupted or failed is continued by the next `fit` of the same trainer."""

import functools
import itertools
import json
import os
import shutil
import signal
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from tests.resume.program import (
    STEPS_PER_EPOCH,
    AtStep,
    Noisy,
    arrays,
    digest,
    fail,
    stream,
)

import loopwright as lw

EPOCHS = 3
AT_STEP = STEPS_PER_EPOCH + 5


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def quiet() -> AtStep:
    return AtStep(None, fail)


def trainer_in(run_dir: Path | None, **options: Any) -> lw.Trainer:
    return lw.Trainer(Noisy(), run_dir=run_dir, plan="graph", **options)


def fit(trainer: lw.Trainer, *data: Any, callback: AtStep | None = None, **options: Any) -> Any:
    batch_size = 8 if not data else None
    given: Any = {"batch_size": batch_size, "epochs": EPOCHS, "verbose": 0, "save_every": "5 steps"}
    return trainer.fit(*(data or arrays()), callbacks=[callback or quiet()], **given | options)


@functools.cache
def undisturbed(kind: str = "arrays") -> tuple[str, Any]:
    trainer = trainer_in(None)
    history = fit(trainer, *([stream(unknown=True)] if kind == "unknown" else []))
    return digest(trainer.task), history


def assert_undisturbed(trainer: lw.Trainer, history: Any, kind: str = "arrays") -> None:
    bits, whole = undisturbed(kind)
    assert digest(trainer.task) == bits
    assert history.epoch == whole.epoch
    assert history.epoch_steps == whole.epoch_steps
    for name, values in whole.history.items():
        np.testing.assert_allclose(history.history[name], values, rtol=1e-6)


def status(run_dir: Path) -> str:
    return json.loads((run_dir / "status.json").read_text())["status"]


def test_after_ctrl_c_the_next_fit_continues_and_the_run_is_not_stuck(tmp_path: Path):
    trainer = trainer_in(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        fit(trainer, callback=AtStep(AT_STEP, press_ctrl_c))
    assert status(tmp_path) == "interrupted"
    trainer.evaluate(*arrays(), batch_size=8)  # looking changes nothing
    trainer.task.model(arrays()[0][:4], training=True)  # draws from the dropout's seed
    with warnings.catch_warnings():
        warnings.simplefilter("error", lw.LoopwrightWarning)
        assert_undisturbed(trainer, fit(trainer))
    assert status(tmp_path) == "completed"
    told: list[Any] = []
    again = trainer_in(tmp_path, sinks=[told.append])
    assert_undisturbed(again, fit(again))
    assert [event.reason for event in told] == ["skipped"]


@pytest.mark.parametrize("save_every", ["5 steps", "10 minutes"])
def test_after_a_callback_failed_the_next_fit_continues(save_every: str, tmp_path: Path):
    trainer = trainer_in(tmp_path)
    with pytest.raises(RuntimeError, match="the machine failed"):
        fit(trainer, callback=AtStep(AT_STEP, fail), save_every=save_every)
    assert status(tmp_path) == "failed"
    assert_undisturbed(trainer, fit(trainer, save_every=save_every))


def test_after_data_failed_or_was_not_finite_the_next_fit_continues(tmp_path: Path):
    class Failing(keras.utils.PyDataset):
        at = 7
        spoils = False

        def __len__(self) -> int:
            return STEPS_PER_EPOCH

        def __getitem__(self, index: int) -> Any:
            x, y = (values[8 * index : 8 * index + 8] for values in arrays())
            if index == self.at:
                if not self.spoils:
                    raise OSError("the file is gone")
                return x * np.nan, y
            return x, y

    data = Failing()
    options: Any = {"shuffle": False, "save_every": "10 minutes"}
    trainer = trainer_in(tmp_path)
    with pytest.raises(lw.DataError, match="Batch 8 could not be made"):
        fit(trainer, data, **options)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000007"]
    Failing.at, Failing.spoils = 9, True
    with pytest.raises(lw.NotFiniteError):
        fit(trainer, data, **options)
    Failing.at = -1
    history = fit(trainer, data, **options)
    whole = trainer_in(None)
    expected = fit(whole, data, shuffle=False)
    assert digest(trainer.task) == digest(whole.task)
    assert history.epoch_steps == expected.epoch_steps


def events_of(trainer: lw.Trainer, *data: Any, **options: Any) -> Any:
    batch_size = 8 if not data else None
    return trainer.events(*(data or arrays()), batch_size=batch_size, epochs=EPOCHS, **options)


def read_until(trainer: lw.Trainer, kind: type, step: int, *data: Any, **options: Any) -> None:
    """Raises an exception of the caller's own at an event."""
    for event in events_of(trainer, *data, **options):
        if isinstance(event, kind) and getattr(event, "step", None) == step:
            raise RuntimeError("of the caller")


@pytest.mark.parametrize("kind", [lw.Trained, lw.Validated, lw.EpochEnded])
def test_an_epoch_of_unknown_length_is_trained_once_whatever_event_fails_at_its_end(
    kind: type, tmp_path: Path
):
    held_out: Any = {"validation_data": arrays(8)}
    failing = trainer_in(tmp_path)
    with pytest.raises(RuntimeError, match="of the caller"):
        read_until(failing, kind, STEPS_PER_EPOCH, stream(unknown=True), **held_out)
    resumed = trainer_in(tmp_path)
    read_until(resumed, kind, -1, stream(unknown=True), **held_out)
    assert_undisturbed(resumed, resumed.history, "unknown")
    assert resumed.history.validation_steps == resumed.history.epoch_steps


def test_an_exception_at_the_last_event_of_a_leg_loses_and_adds_nothing(tmp_path: Path):
    trainer = trainer_in(tmp_path)
    end, callbacks = EPOCHS * STEPS_PER_EPOCH, [quiet()]
    with pytest.raises(RuntimeError, match="of the caller"):
        read_until(trainer, lw.EpochEnded, end, stream(unknown=True), callbacks=callbacks)
    assert_undisturbed(trainer, fit(trainer, stream(unknown=True)), "unknown")
    fit(trainer, stream(unknown=True), epochs=1)  # the leg is over, and the next one begins
    again = trainer_in(tmp_path)
    assert_undisturbed(again, fit(again, stream(unknown=True)), "unknown")


def test_a_call_of_fit_inside_a_call_of_fit_is_refused(tmp_path: Path):
    trainer = trainer_in(tmp_path)
    with pytest.raises(lw.ConfigurationError, match="This trainer is training"):
        fit(trainer, callback=AtStep(1, lambda: fit(trainer)))


def test_the_second_leg_is_continued_after_ctrl_c_and_a_refused_call_is_not_counted(
    tmp_path: Path,
):
    def two_legs(trainer: lw.Trainer, interrupted: bool = False) -> list[Any]:
        first = fit(trainer, epochs=1)
        trainer.task.optimizer.learning_rate = 0.001
        if interrupted:
            with pytest.raises(KeyboardInterrupt):
                fit(trainer, epochs=2, callback=AtStep(5, press_ctrl_c))
            with pytest.raises(lw.ConfigurationError, match="The data differs"):
                fit(trainer, *arrays(64), batch_size=8, epochs=2)
        return [first.history["loss"], fit(trainer, epochs=2).history["loss"]]

    whole, interrupted = trainer_in(None), trainer_in(tmp_path)
    expected = two_legs(whole)
    losses = two_legs(interrupted, interrupted=True)
    np.testing.assert_allclose(losses[0] + losses[1], expected[0] + expected[1], rtol=1e-6)
    assert digest(interrupted.task) == digest(whole.task)
    told: list[Any] = []
    again = trainer_in(tmp_path, sinks=[told.append])
    assert two_legs(again) == losses
    assert [event.reason for event in told] == ["skipped", "skipped"]


@pytest.mark.parametrize("save_every", ["5 steps", "10 minutes"])
def test_a_learning_rate_set_after_a_failure_is_kept_and_named(save_every: str, tmp_path: Path):
    trainer = trainer_in(tmp_path)
    with pytest.raises(RuntimeError, match="the machine failed"):
        fit(trainer, callback=AtStep(AT_STEP, fail), save_every=save_every)
    trainer.task.optimizer.learning_rate = 0.5
    with pytest.warns(lw.LoopwrightWarning, match=r"set since .*: optimizer\.learning_rate\."):
        history = fit(trainer, save_every=save_every)
    assert float(trainer.task.optimizer.learning_rate) == 0.5
    assert history.epoch == [0, 1, 2]


def test_a_run_whose_end_of_a_leg_is_missing_says_how_to_use_what_it_has(tmp_path: Path):
    trainer = trainer_in(tmp_path)
    fit(trainer, epochs=1)
    fit(trainer, epochs=1)
    shutil.rmtree(tmp_path / "checkpoints" / f"step-{STEPS_PER_EPOCH:08d}")
    with pytest.raises(lw.ConfigurationError, match=r"The end of leg 1 is missing") as refusal:
        fit(trainer_in(tmp_path), epochs=1)
    for way in ('restore("last")', f"init_from={str(tmp_path)!r}", "another run_dir"):
        assert way in str(refusal.value)


# --- a leg that has done more than it is asked for now ---


@pytest.fixture(scope="module")
def interrupted_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was interrupted in its second epoch of three, to be copied."""
    run_dir = tmp_path_factory.mktemp("interrupted") / "run"
    with pytest.raises(KeyboardInterrupt):
        fit(trainer_in(run_dir), callback=AtStep(AT_STEP, press_ctrl_c))
    return run_dir


@pytest.mark.parametrize(
    ("less", "warning"),
    [
        ({"epochs": 1}, "already at epoch 2 of the 1 epoch asked for"),
        ({"until": "10 steps"}, "already at step 18 of the 10 steps asked for"),
    ],
)
def test_an_interrupted_leg_that_is_asked_for_less_than_it_has_done_is_complete(
    less: dict[str, Any], warning: str, interrupted_run: Path, tmp_path: Path
):
    run_dir = Path(shutil.copytree(interrupted_run, tmp_path / "run"))

    def events(trainer: lw.Trainer, **asked: Any) -> list[Any]:
        options: Any = {"batch_size": 8, "callbacks": [quiet()], "save_every": "5 steps"}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            # At most some: a run that never ends must not hang the test.
            found = list(itertools.islice(trainer.events(*arrays(), **options, **asked), 100))
        told = [str(w.message) for w in caught if issubclass(w.category, lw.LoopwrightWarning)]
        assert any(warning in text for text in told)
        return found

    trainer = trainer_in(run_dir)
    found = [e for e in events(trainer, **less) if not isinstance(e, lw.Noted)]
    assert [type(event).__name__ for event in found] == ["Started", "Finished"]
    assert found[-1].reason == "complete"
    assert int(trainer.task.step_counter) == AT_STEP
    assert trainer.history.epoch_steps == [STEPS_PER_EPOCH]
    assert status(run_dir) == "completed"
    second = fit(trainer, epochs=1)  # the first leg is over: this is the second one
    again = trainer_in(run_dir)
    assert [event.reason for event in events(again, **less)] == ["skipped"]
    assert fit(again, epochs=1).history == second.history


def test_a_leg_that_was_ended_early_goes_on_exactly_when_it_is_asked_for_more(
    interrupted_run: Path, tmp_path: Path
):
    run_dir = Path(shutil.copytree(interrupted_run, tmp_path / "run"))
    with pytest.warns(lw.LoopwrightWarning, match="already at epoch 2"):
        fit(trainer_in(run_dir), epochs=1)
    resumed = trainer_in(run_dir)
    assert_undisturbed(resumed, fit(resumed))
