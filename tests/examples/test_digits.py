"""The task `digits`: it reads most digits, and a run is repeated to the bit."""

from tests.examples.conftest import Quick


def test_most_digits_are_read(quick: Quick):
    assert quick.scores["accuracy"] > 0.85
    assert quick.history["loss"][-1] < 0.5 * quick.history["loss"][0]
    assert quick.figures == {"readings.png"}


def test_a_second_call_says_the_same(quick: Quick):
    assert quick.again().scores == quick.scores
