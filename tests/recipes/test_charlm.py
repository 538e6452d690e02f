"""The recipe `charlm`: the perplexity falls, and it is the one that is meant."""

from pathlib import Path

import numpy as np
import pytest

import loopwright as lw
from loopwright import testing
from loopwright.recipes import charlm


def test_it_beats_counting_letters_and_a_second_call_says_the_same(tmp_path: Path):
    run_dir = str(tmp_path / "run")
    scores = charlm.main(run_dir, plan="graph", quick=True)
    assert scores["perplexity"] < 0.7 * charlm.load()["counted"]["letters"]
    assert scores["perplexity"] == pytest.approx(np.exp(scores["loss"]), rel=1e-4)
    assert charlm.main(run_dir, plan="graph", quick=True) == scores
    assert (tmp_path / "run" / "figures" / "perplexity.png").is_file()


def test_its_training_resumes_exactly():
    x, y = charlm.load()["train"]
    testing.assert_resumes_exactly(
        lambda run_dir: lw.Trainer(charlm.make_task(), run_dir=run_dir, plan="graph"),
        x[:48, :16],
        y[:48, :16],
        batch_size=8,
        epochs=1,
        break_at=[4],
    )


def test_perplexity_is_the_exponential_of_the_mean_and_not_the_mean_of_exponentials():
    perplexity = charlm.Perplexity()
    perplexity.update_state([0.0])
    perplexity.update_state([2.0])
    assert float(perplexity.result()) == pytest.approx(np.e)


def test_each_label_is_the_character_after_its_input():
    data = charlm.load()
    for x, y in (data["train"], data["test"]):
        np.testing.assert_array_equal(x[:, 1:], y[:, :-1])
        np.testing.assert_array_equal(x[1:, 0], y[:-1, -1])
    assert len(data["alphabet"]) == 1 + len(np.unique(data["train"][0]))
