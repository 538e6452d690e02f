"""The example `seq2seq`: dates come out right, and schedules go on where they were."""

from typing import Any

import numpy as np
import pytest
from tests.examples.conftest import Quick

import loopwright as lw
import seq2seq
from loopwright import testing


def test_it_learns_within_an_epoch(quick: Quick):
    assert quick.scores["exact"] > 0.2
    assert quick.scores["loss"] < 0.5 * np.log(len(seq2seq.OUTPUT))
    assert quick.figures == {"learning.png"}


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """Two characters of each date, read from six: more take long."""
    monkeypatch.setattr(seq2seq, "LENGTH", 2)
    x, y = seq2seq.load()["train"]
    return x[:64, :6], y[:64, :2]


def test_teacher_forcing_and_cycles_resume_exactly(short: tuple[Any, Any]):
    testing.assert_resumes_exactly(
        lambda run_dir: lw.Trainer(
            seq2seq.make_task(forced_steps=8, cycle_steps=6), run_dir=run_dir, plan="eager"
        ),
        *short,
        batch_size=16,
        epochs=1,
        break_at=[2],
    )


def test_the_rate_of_being_told_falls_to_zero_and_stays_there(short: tuple[Any, Any]):
    trainer = lw.Trainer(seq2seq.make_task(forced_steps=4, cycle_steps=6), plan="eager")
    history = trainer.fit(*short, steps_per_epoch=1, epochs=6, verbose=0).history
    assert history["told"] == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.0, 0.0])


def test_the_learning_rate_goes_up_and_down():
    task = seq2seq.make_task(cycle_steps=4)
    rates = [float(task.learning_rate(step)) for step in range(6)]
    assert rates == pytest.approx([5e-4, 2.25e-3, 4e-3, 2.25e-3, 5e-4, 2.25e-3])
    assert float(task.optimizer.learning_rate) == pytest.approx(rates[0])


def test_no_day_of_the_test_is_in_the_training_data():
    data = seq2seq.load()
    days = [{tuple(row) for row in data[name][1]} for name in ("train", "validation", "test")]
    assert [len(part) for part in days] == [8000, 1000, 2000]
    assert not days[2] & (days[0] | days[1])


def test_what_is_told_is_what_the_next_character_is_written_from():
    x, y = (part[:4] for part in seq2seq.load()["train"])
    model = seq2seq.make_task().model
    told, other = np.ones_like(y, bool), (y + 1) % 11
    first, second = (model(x, answers, told).numpy() for answers in (y, other))
    np.testing.assert_array_equal(first[:, 0], second[:, 0])
    assert np.all(np.any(first[:, 1:] != second[:, 1:], -1))
    nothing_told = model(x, other, ~told).numpy()
    np.testing.assert_allclose(nothing_told, model(x).numpy(), rtol=1e-6)
