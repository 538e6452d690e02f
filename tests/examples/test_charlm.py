"""The example `charlm`: the perplexity falls, and it is the one that is meant."""

import numpy as np
import pytest
from tests.examples.conftest import Quick

import charlm


def test_it_learns_and_beats_counting_letters(quick: Quick):
    assert quick.scores["perplexity"] < 0.7 * charlm.load()["counted"]["letters"]
    assert quick.scores["perplexity"] == pytest.approx(np.exp(quick.scores["loss"]), rel=1e-4)
    assert quick.history["perplexity"][-1] < 0.8 * quick.history["perplexity"][0]
    assert quick.figures == {"perplexity.png"}


def test_each_label_is_the_character_after_its_input():
    data = charlm.load()
    for x, y in (data["train"], data["test"]):
        np.testing.assert_array_equal(x[:, 1:], y[:, :-1])
        np.testing.assert_array_equal(x[1:, 0], y[:-1, -1])
    assert len(data["alphabet"]) == 1 + len(np.unique(data["train"][0]))
