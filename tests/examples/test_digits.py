"""The task `digits`: it reads most digits, and a run is repeated to the bit."""

from tests.examples.conftest import Quick

import loopwright as lw
from loopwright import digits, testing


def test_most_digits_are_read(quick: Quick):
    assert quick.scores["accuracy"] > 0.85
    assert quick.history["loss"][-1] < 0.5 * quick.history["loss"][0]
    assert quick.figures == {"readings.png"}


def test_a_second_call_says_the_same(quick: Quick):
    assert quick.again().scores == quick.scores


def test_its_training_resumes_exactly():
    images, labels = digits.load()["train"]
    testing.assert_resumes_exactly(
        lambda run_dir: lw.Trainer(digits.make_task(), run_dir=run_dir, plan="eager"),
        images[:128],
        labels[:128],
        epochs=2,
        break_at=[5],
    )
