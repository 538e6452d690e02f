"""A step of a run is replayed exactly, looked into, and nothing is changed."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.insight.rehearsed import bits

import loopwright as lw
from loopwright.insight.replayed import Replayed

pytestmark = pytest.mark.kernels

X = np.random.default_rng(0).normal(size=(72, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
BAD = 53
POISONED = X.copy()
POISONED[BAD, 2] = np.nan


class Scaled(lw.Task):
    """A step of one's own, with a line that is easy to find."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        hidden = [keras.layers.Dense(8, "relu"), keras.layers.Dropout(dropout, seed=1)]
        self.model = keras.Sequential([keras.Input((4,)), *hidden, keras.layers.Dense(1)])
        self.optimizer = keras.optimizers.Adam(0.01)

    def train_step(self, batch: Any) -> dict[str, Any]:
        x, y = batch
        with tf.GradientTape() as tape:
            scaled = x * 2.0  # the line of the first NaN
            loss = tf.reduce_mean(tf.square(y - self.model(scaled, training=True)))
        self.minimize(loss, self.model, self.optimizer, tape)
        return {"loss": loss}


def compiled_model() -> keras.Model:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu")])
    model.add(keras.layers.Dense(1))
    model.compile("adam", "mse", metrics=["mae"])
    return model


def supervised() -> lw.Supervised:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    return lw.Supervised(model, "mse", keras.optimizers.Adam(0.01))


def trainer(run_dir: Path, make: Any = Scaled, plan: str = "graph", **options: Any) -> lw.Trainer:
    keras.utils.set_random_seed(0)
    return lw.Trainer(make(), run_dir=run_dir, plan=plan, **options)


def saved(
    run_dir: Path, *data: Any, make: Any = Scaled, plan: str = "graph", **options: Any
) -> None:
    """Train two epochs, with a checkpoint every 4 steps; the last three are kept."""
    one = trainer(run_dir, make, plan, keep=[lw.KeepLatest(3)])
    one.fit(*data, epochs=2, verbose=0, save_every="4 steps", **options)


def poisoned(run_dir: Path, *, save_every: str = "2 steps") -> tuple[lw.Trainer, lw.NotFiniteError]:
    """Train on data with one NaN until it ends the run."""
    one = trainer(run_dir)
    with pytest.raises(lw.NotFiniteError) as caught:
        one.fit(POISONED, Y, batch_size=8, verbose=0, save_every=save_every)
    return one, caught.value


def files(run_dir: Path) -> dict[str, bytes]:
    found = [path for path in sorted(run_dir.rglob("*")) if path.is_file()]
    return {str(path): path.read_bytes() for path in found}


def states(seen: Replayed) -> list[tuple[int, bool]]:
    return [(check.step, check.matches) for check in seen.checks if check.what == "state"]


# --- the step that ended a run ---


def test_a_replay_names_the_step_the_example_the_operation_and_the_line_of_a_nan(tmp_path):
    one, error = poisoned(tmp_path / "run")
    before, state = files(tmp_path / "run"), bits(one)
    assert f"trainer.replay({error.step}, ...)" in str(error)
    again = trainer(tmp_path / "run")
    fresh = bits(again)
    drawn = random.getstate(), str(np.random.get_state())
    for each in (one, again):
        seen = each.replay(None, POISONED, Y, batch_size=8, verbose=0)
        assert seen.step == error.step
        assert seen.start_step == (error.step - 1) // 2 * 2
        assert seen.batch.bad_examples(seen.batch.arrays[0]) == (BAD,)
        assert "first in Mul" in seen.first_operation
        assert "scaled = x * 2.0" in seen.first_operation
        assert "test_replay.py" in seen.first_operation
        assert seen.shown is not None
        assert seen.shown.not_finite[0].name == "model.layers[0] Dense"
        assert seen.matches is True
        assert seen.eager_reproduces is not seen.hides_nan  # oneDNN hides it from the loss
        assert ("turn this NaN into 0" in " ".join(str(seen).split())) is seen.hides_nan
        assert {row.name for row in seen.shown.gradients} >= {"model.layers[0].kernel"}
        assert seen.bad_examples == (BAD,)
        assert f"model.layers[0] Dense, in example {BAD}" in str(seen)
        assert max(map(len, str(seen).splitlines())) <= 80
    assert files(tmp_path / "run") == before
    assert bits(one) == state
    assert bits(again) == {**fresh, **{n: b for n, b in bits(again).items() if n not in fresh}}
    assert (random.getstate(), str(np.random.get_state())) == drawn


def test_a_step_that_raised_an_error_is_replayed_with_its_batch(tmp_path):
    labels = np.arange(72) % 5
    labels[BAD] = 7

    def classes() -> keras.Model:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    with pytest.raises(lw.StepError, match="received: label 7") as caught:
        trainer(tmp_path / "run", classes).fit(X, labels, batch_size=8, verbose=0)
    assert "to look into this step: trainer.replay(" in str(caught.value)
    seen = trainer(tmp_path / "run", classes).replay(None, X, labels, batch_size=8, verbose=0)
    assert f"in step {seen.step} " in str(caught.value)
    assert seen.error
    assert BAD in (seen.batch.examples or ())
    assert seen.matches is True


def test_batches_that_a_rollback_skipped_are_skipped_again_and_can_be_looked_at(tmp_path):
    one = trainer(tmp_path / "run", on_nan="rollback", keep=[lw.KeepLatest(2)])
    one.fit(POISONED, Y, batch_size=8, verbose=0, save_every="2 steps")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    (bad,) = [event["step"] for event in events if event["event"] == "batch_skipped"]
    end = trainer(tmp_path / "run").replay(9, POISONED, Y, batch_size=8, verbose=0)
    assert states(end) == [(9, True)]
    seen = trainer(tmp_path / "run").replay(bad, POISONED, Y, batch_size=8, verbose=0)
    assert seen.bad_examples == (BAD,)


def test_without_a_checkpoint_the_replay_begins_where_fit_began(tmp_path, capsys):
    one, error = poisoned(tmp_path / "run", save_every="1 hour")
    assert not list((tmp_path / "run" / "checkpoints").glob("step-*"))
    for each in (one, trainer(tmp_path / "run")):
        seen = each.replay(error.step, POISONED, Y, batch_size=8)
        assert (seen.start_step, seen.has_checkpoint) == (0, False)
        assert seen.matches is True
        assert f"no checkpoint before step {error.step} is kept" in capsys.readouterr().out


def test_the_state_before_the_run_is_asked_for_if_it_is_gone(tmp_path):
    saved(tmp_path / "run", X, Y, batch_size=8)
    one = trainer(tmp_path / "run")
    one.restore("last")
    with pytest.raises(lw.ConfigurationError, match="the task has trained since it was made"):
        one.replay(3, X, Y, batch_size=8, verbose=0)
    assert trainer(tmp_path / "run").replay(3, X, Y, batch_size=8, verbose=0).start_step == 0


# --- exact, whatever the data and the plan ---


def data_of(kind: str) -> tuple[Any, ...]:
    rows = tf.data.Dataset.from_tensor_slices((X, Y))
    kinds: dict[str, tuple[Any, ...]] = {
        "arrays": (X, Y),
        "stream": (rows.shuffle(40, seed=3).batch(8),),
        "unknown length": (rows.filter(lambda x, y: x[0] < 1.0).shuffle(40, seed=3).batch(8),),
        "replayed stream": (lw.Stream(rows.batch(8), replay=True),),
    }
    return kinds[kind]


@pytest.mark.parametrize(
    ("kind", "plan", "make"),
    [
        ("arrays", "graph", Scaled),
        ("arrays", "fused", compiled_model),
        ("stream", "xla", Scaled),
        ("stream", "graph", Scaled),
        ("unknown length", "graph", Scaled),
        ("replayed stream", "graph", Scaled),
        ("arrays", "eager", Scaled),
    ],
)
def test_a_replayed_run_has_the_bits_of_its_checkpoints(kind, plan, make, tmp_path):
    options = {"batch_size": 8} if kind == "arrays" else {}
    saved(tmp_path / "run", *data_of(kind), make=make, plan=plan, **options)
    kept = sorted(int(path.name[5:]) for path in (tmp_path / "run" / "checkpoints").glob("step-*"))
    last = kept[-1]
    for step, start in ((kept[1] + 1, kept[1]), (last, kept[-2]), (kept[0], 0)):
        again = trainer(tmp_path / "run", make, plan)
        seen = again.replay(step, *data_of(kind), epochs=2, verbose=0, **options)
        assert seen.start_step == start
        passed = [each for each in kept if start < each <= step]
        assert states(seen) == [(each, True) for each in passed]
        assert seen.matches is not False


def test_a_learning_rate_that_a_callback_sets_is_set_again_and_other_callbacks_are_not_called(
    tmp_path,
):
    called = list[int]()

    def callbacks() -> list[Any]:
        plateau = keras.callbacks.ReduceLROnPlateau(monitor="val_loss", patience=0, min_delta=9.0)
        own = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: called.append(epoch))
        return [own, plateau]

    options = {"batch_size": 24, "validation_data": (X, Y), "verbose": 0, "epochs": 4}
    run = tmp_path / "run"
    one = trainer(run, supervised, keep=[lw.KeepLatest(1)])
    one.fit(X, Y, callbacks=callbacks(), **options)
    assert float(one.task.optimizer.learning_rate) < 1e-4
    del called[:]
    seen = trainer(run, supervised).replay(12, X, Y, callbacks=callbacks(), **options)
    assert states(seen) == [(12, True)]
    assert called == []
    assert any("LambdaCallback" in cause for cause in seen.causes)


def test_a_step_of_a_later_call_of_fit_begins_where_that_call_began(tmp_path):
    def trained(one: lw.Trainer) -> lw.Trainer:
        one.fit(X, Y, batch_size=24, verbose=0, epochs=2)
        one.fit(X, Y, batch_size=12, verbose=0)
        return one

    trained(trainer(tmp_path / "run"))
    one = trainer(tmp_path / "run")
    seen = one.replay(12, X, Y, batch_size=12, verbose=0)
    assert (seen.start_step, seen.epoch, seen.step_in_epoch) == (6, 0, 6)
    assert states(seen) == [(12, True)]
    first = trainer(tmp_path / "run").replay(5, X, Y, batch_size=24, epochs=2, verbose=0)
    assert states(first) == []
    assert first.start_step == 0


# --- what eager does not reproduce ---


def test_random_numbers_of_xla_are_fetched_from_the_recorded_plan(tmp_path):
    def dropping() -> Scaled:
        return Scaled(dropout=0.5)

    saved(tmp_path / "run", X, Y, make=dropping, plan="fused", batch_size=8)
    seen = trainer(tmp_path / "run", dropping, "fused").replay(
        15, X, Y, batch_size=8, epochs=2, verbose=0
    )
    assert seen.eager_reproduces is False
    assert "does not reproduce the recorded plan" in str(seen)
    inside, eager = seen.recorded_plan, seen.eager
    assert inside is not None
    assert eager is not None
    assert seen.shown is inside
    assert [row.name for row in inside.layers] == [row.name for row in eager.layers]
    assert inside.layers[0].norm == pytest.approx(eager.layers[0].norm, rel=1e-4)
    assert inside.layers[1].norm != pytest.approx(eager.layers[1].norm, rel=1e-4)


# --- a replay that differs ---


def test_a_state_that_differs_is_said_with_the_variable_and_the_reason(tmp_path, monkeypatch):
    saved(tmp_path / "run", X, Y, batch_size=8)
    one = trainer(tmp_path / "run")
    original = Scaled.train_step
    monkeypatch.setattr(
        Scaled, "train_step", lambda self, batch: original(self, (batch[0] * 1.001, batch[1]))
    )
    accepting = trainer(tmp_path / "run", on_change=["step"])
    seen = accepting.replay(16, X, Y, batch_size=8, epochs=2, verbose=0)
    assert seen.matches is False
    assert states(seen) == [(16, False)]
    text = " ".join(str(seen).split())
    assert "DIFFERS: state after step 16: model.layers[0].kernel by up to" in text
    assert "possible cause: edited since: step" in text
    with pytest.raises(lw.ConfigurationError, match="the code differs"):
        one.replay(16, X, Y, batch_size=8, epochs=2, verbose=0)


# --- refusals ---


def test_bad_input_is_refused_and_changes_nothing(tmp_path):
    run = tmp_path / "run"
    with pytest.raises(lw.ConfigurationError, match="This run was never saved"):
        trainer(run).replay(1, X, Y, verbose=0)
    assert not run.exists()
    saved(run, X, Y, batch_size=8)
    before = files(run)
    rows = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)
    unordered = rows.map(lambda *batch: batch, 2, deterministic=False)
    refused: list[tuple[str, Any, tuple[Any, ...]]] = [
        *(("no such step", Scaled, (step, X, Y)) for step in (0, 19, -1, True, "7")),
        ("No step was named", Scaled, (None, X, Y)),
        ("The data differs", Scaled, (18, X[:60], Y[:60])),
        ("The program differs", compiled_model, (18, X, Y)),
        ("The data differs", Scaled, (18, rows)),
        ("gives other batches each time", Scaled, (18, unordered)),
    ]
    for words, make, arguments in refused:
        sizes = {"batch_size": 8} if len(arguments) == 3 else {}
        with pytest.raises(lw.ConfigurationError, match=words):
            trainer(run, make).replay(*arguments, epochs=2, verbose=0, **sizes)
    with pytest.raises(lw.ConfigurationError, match="no run directory"):
        lw.Trainer(Scaled()).replay(1, X, Y)
    assert files(run) == before


def test_the_debugger_stops_at_the_step_and_at_the_first_nan(tmp_path):
    _, error = poisoned(tmp_path / "run")
    program = (
        "from pathlib import Path; from tests.insight.test_replay import POISONED, Y, trainer\n"
        f"one = trainer(Path({str(tmp_path / 'run')!r}))\n"
        f"one.replay({error.step}, POISONED, Y, batch_size=8, verbose=0, debugger=True)\n"
        "print('after')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        input="p batch[0].shape\nc\np scaled is None\nq\n",
        capture_output=True,
        text=True,
        check=True,
    )
    assert "x, y = batch" in done.stdout
    assert "TensorShape([8, 4])" in done.stdout
    assert "-> scaled = x * 2.0" in done.stdout
    assert done.stdout.rstrip().endswith("after")
