"""The end of a call of `fit` is what it left behind, after the last hook of its callbacks."""

import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from tests.distribute.workers import Workers
from tests.resume.children import Child
from tests.resume.faults import ALL, record
from tests.resume.program import KillsAt, Noisy, arrays, digest, train

import loopwright as lw
from loopwright import disk
from loopwright.fit.journal import RunFiles

KILLS = 40 if ALL else 2


class EndsWith(keras.callbacks.Callback):
    """Calls a function in `on_train_end`, and counts its calls."""

    def __init__(self, function: Any = lambda callback: None):
        super().__init__()
        self.function, self.ends, self.logs = function, 0, {}

    def on_train_end(self, logs=None):
        self.ends, self.logs = self.ends + 1, dict(logs or {})
        self.function(self)

    def get_state(self):
        return {"ends": self.ends}

    def set_state(self, state):
        self.ends = state["ends"]


def best_weights() -> keras.callbacks.Callback:
    return keras.callbacks.EarlyStopping("loss", patience=1, restore_best_weights=True)


def moved(callback: Any) -> None:
    callback.model.set_weights([2 * weight for weight in callback.model.get_weights()])


def trained(run_dir: Path | None, *callbacks: Any, epochs: int = 3, **options: Any) -> lw.Trainer:
    """One leg, whose rate is so high that its last epoch is not its best."""
    task = Noisy()
    task.optimizer.learning_rate = 0.3
    trainer = lw.Trainer(task, run_dir=run_dir, plan="graph", **options)
    trainer.fit(*arrays(), batch_size=8, epochs=epochs, verbose=0, callbacks=list(callbacks))
    return trainer


def two_legs(run_dir: Path, dies_in_end: bool = False, dies_at: int | None = None) -> None:
    """Trains two legs, and prints the bits and the files that they end with."""
    die = (lambda _: os.kill(os.getpid(), signal.SIGKILL)) if dies_in_end else (lambda _: None)
    task = Noisy()
    task.optimizer.learning_rate = 0.3
    trainer = lw.Trainer(task, run_dir=run_dir, plan="graph")
    fit = lambda **more: trainer.fit(*arrays(), batch_size=8, verbose=0, **more)  # noqa: E731
    callbacks = [EndsWith(die), best_weights(), KillsAt()]
    first = fit(epochs=4, save_every="5 steps", callbacks=callbacks)
    ends = callbacks[0].ends
    second = fit(callbacks=[best_weights(), KillsAt(dies_at)])
    print("end", digest(task), ends, first.history["loss"], second.history["loss"], flush=True)


def unreported(run_dir: Path) -> None:
    """Trains a leg, and is killed when its end is on disk but not in the files beside it."""

    write = RunFiles._summarize

    def die(self: RunFiles, event: Any) -> None:
        if isinstance(event, lw.Finished):
            os.kill(os.getpid(), signal.SIGKILL)
        write(self, event)

    RunFiles._summarize = die
    trained(run_dir, EndsWith(moved))


def killed_while_saved(run_dir: Path, renames: int) -> None:
    """Trains a leg, and is killed when the checkpoint of its end has been renamed so often."""
    rename, left = disk.rename, [renames]

    def count(*arguments: Any, **options: Any) -> None:
        if end.ends:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        rename(*arguments, **options)

    end = EndsWith(moved)
    disk.rename = count
    trained(run_dir, end)


def last_words(child: Child) -> str:
    code, told = child.ended()
    assert code == 0, told[-3000:]
    return told.splitlines()[-1]


def is_killed(*started: Any) -> None:
    code, told = Child(*started).ended()
    assert code == -signal.SIGKILL, told[-3000:]


def same(one: lw.Trainer, other: lw.Trainer) -> bool:
    return digest(one.task) == digest(other.task)


def test_a_finished_leg_keeps_the_weights_that_its_callbacks_restored(tmp_path: Path):
    stopping = best_weights()
    whole = trained(tmp_path, stopping, epochs=9)
    weights = whole.task.model.get_weights()
    assert stopping.stopped_epoch
    assert all(np.array_equal(*pair) for pair in zip(weights, stopping.best_weights, strict=True))

    assert same(trained(tmp_path, best_weights(), epochs=9), whole)

    other = lw.Trainer(Noisy(), run_dir=tmp_path, plan="graph")
    other.restore("last")
    restored = other.task.model.get_weights()
    assert all(np.array_equal(*pair) for pair in zip(weights, restored, strict=True))


def test_a_run_begins_with_the_weights_that_another_one_was_left_with(tmp_path: Path):
    whole = trained(tmp_path / "one", EndsWith(moved))
    other = lw.Trainer(Noisy(), init_from=tmp_path / "one", plan="graph")
    with pytest.warns(lw.LoopwrightWarning, match="seed_generator"):
        scores = other.evaluate(*arrays(20))
    assert scores == whole.evaluate(*arrays(20))


def test_a_skipped_leg_gives_callbacks_the_state_after_their_end(tmp_path: Path):
    trained(tmp_path, EndsWith(moved))
    again = EndsWith(moved)
    trained(tmp_path, again)
    assert again.ends == 1


def test_more_epochs_go_on_from_what_was_trained(tmp_path: Path):
    whole = trained(None, EndsWith(moved), epochs=5)
    trained(tmp_path, EndsWith(moved), epochs=3)
    assert same(trained(tmp_path, EndsWith(moved), epochs=5), whole)


def test_the_best_is_what_was_scored_and_not_what_a_callback_made_of_it(tmp_path: Path):
    def run(end: Any) -> lw.Trainer:
        trainer = lw.Trainer(Noisy(), run_dir=tmp_path, plan="graph")
        trainer.fit(*arrays(), batch_size=8, validation_data=arrays(20), verbose=0, callbacks=[end])
        return trainer

    trainer = run(EndsWith(moved))
    scored = trainer.history.history["val_loss"][-1]
    last, best = (trainer.evaluate(*arrays(20), checkpoint=c)["loss"] for c in ("last", "best"))
    assert best == pytest.approx(scored, rel=1e-6)
    assert last != pytest.approx(scored, rel=1e-2)


def test_an_end_that_fails_is_called_again_by_the_next_start(tmp_path: Path):
    def fail(callback: Any) -> None:
        raise RuntimeError("from the end")

    with pytest.raises(RuntimeError, match="from the end"):
        trained(tmp_path, EndsWith(fail))
    assert json.loads((tmp_path / "status.json").read_text())["status"] == "failed"

    end = EndsWith(moved)
    assert same(trained(tmp_path, end), trained(None, EndsWith(moved)))
    assert "loss" in end.logs
    assert json.loads((tmp_path / "status.json").read_text())["status"] == "completed"


def test_killed_at_its_end_a_leg_is_ended_by_the_next_start(tmp_path: Path):
    expected = last_words(Child(tmp_path / "whole.log", two_legs, tmp_path / "whole"))
    run_dir = tmp_path / "run"
    is_killed(tmp_path / "1.log", two_legs, run_dir, True)
    is_killed(tmp_path / "2.log", two_legs, run_dir, False, 3)
    newest = max(run_dir.glob("checkpoints/step-????????"))
    assert json.loads((newest / "manifest.json").read_text())["content"]["leg"] == 0
    assert last_words(Child(tmp_path / "3.log", two_legs, run_dir)) == expected


def test_killed_before_its_end_was_told_a_run_is_finished_by_the_next_start(tmp_path: Path):
    run_dir = tmp_path / "run"
    is_killed(tmp_path / "1.log", unreported, run_dir)
    assert json.loads((run_dir / "status.json").read_text())["status"] == "running"

    end = EndsWith(moved)
    assert same(trained(run_dir, end), trained(None, EndsWith(moved)))
    assert end.ends == 1  # by the process that was killed
    assert json.loads((run_dir / "status.json").read_text())["status"] == "completed"
    assert len(json.loads((run_dir / "history.json").read_text())["loss"]) == 3
    assert (run_dir / "report.html").exists()
    before = (run_dir / "metrics.jsonl").read_text()
    assert before.count('"finished"') == 1
    trained(run_dir, EndsWith(moved))
    assert (run_dir / "metrics.jsonl").read_text() == before


def test_killed_while_its_end_is_saved_a_leg_ends_with_the_same_bits(tmp_path: Path):
    for renames in range(3):  # the old one aside, the new one in its place, the old one deleted
        run_dir = tmp_path / str(renames)
        is_killed(tmp_path / "log", killed_while_saved, run_dir, renames)
        end = EndsWith(moved)
        assert same(trained(run_dir, end), trained(None, EndsWith(moved)))
        assert end.ends == 1


@pytest.mark.timeout(3000)
def test_killed_at_random_moments_legs_end_with_the_same_bits(tmp_path: Path):
    expected = last_words(Child(tmp_path / "whole.log", two_legs, tmp_path / "whole"))
    moments = random.Random(0)
    kills, runs = 0, 0
    while kills < KILLS:
        runs, code, told = runs + 1, None, ""
        while code != 0:
            child = Child(tmp_path / "log", two_legs, tmp_path / str(runs))
            if kills < KILLS:
                child.wait(moments.uniform(1.0, 6.0))
                child.send(signal.SIGKILL)
            code, told = child.ended()
            kills += code == -signal.SIGKILL
            assert code in (0, -signal.SIGKILL), told[-3000:]
        assert told.splitlines()[-1] == expected, f"after {kills} kills"
    record("SIGKILL at a random moment of two legs", tried=kills, held=kills)


def test_a_continued_leg_keeps_its_variables_whatever_callbacks_set_when_it_begins(tmp_path: Path):
    def run(run_dir: Path | None, *, fails: bool = False) -> lw.Trainer:
        def begin(logs: Any = None) -> None:
            task.optimizer.learning_rate = 0.05
            task.model.set_weights([0.5 * w for w in task.model.get_weights()])

        def fail(epoch: int, logs: Any = None) -> None:
            if fails and epoch == 2:
                raise RuntimeError("from the callback")

        task = Noisy()
        trainer = lw.Trainer(task, run_dir=run_dir, plan="graph")
        plateau = keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=100.0)
        own = keras.callbacks.LambdaCallback(on_train_begin=begin, on_epoch_begin=fail)
        options: Any = {"batch_size": 8, "epochs": 4, "verbose": 0, "save_every": "1 epoch"}
        trainer.fit(*arrays(), callbacks=[own, plateau], **options)
        return trainer

    whole = run(None)
    with pytest.raises(RuntimeError):
        run(tmp_path, fails=True)
    assert same(run(tmp_path), whole)


def test_a_replay_of_the_second_leg_begins_with_what_the_first_one_left(tmp_path: Path):
    options: Any = {"batch_size": 8, "verbose": 0}
    trainer = trained(tmp_path, EndsWith(moved))
    steps = trainer.fit(*arrays(), **options).epoch_steps[-1]
    replayed = trainer.replay(steps, *arrays(), batch_size=8)
    assert replayed.checks
    assert all(check.matches for check in replayed.checks)


def trained_by_workers(run_dir: Path) -> None:
    trainer, _ = train(
        run_dir, "arrays", "graph", strategy="auto", epochs=2, callbacks=[EndsWith(moved)]
    )
    print("end", digest(trainer.task), flush=True)


def test_workers_keep_what_their_callbacks_left_together(tmp_path: Path):
    ends = []
    for start in range(2):
        codes = Workers(tmp_path / str(start), 2, trained_by_workers, tmp_path / "run").ended()
        assert all(code == 0 for code, _ in codes), [told[-2000:] for _, told in codes]
        ends.append([told.splitlines()[-1] for _, told in codes])
    assert ends[0] == ends[1]
