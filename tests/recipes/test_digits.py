"""The recipe `digits`: it reads most digits, and a run is repeated to the bit."""

import pytest
from tests.recipes.quick import Quick, quick_run

import loopwright as lw
from loopwright import testing
from loopwright.recipes import digits


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Quick:
    return quick_run(digits, tmp_path_factory.mktemp("digits") / "run")


def test_most_digits_are_read(quick: Quick):
    assert quick.scores["accuracy"] > 0.85
    assert quick.history["loss"][-1] < 0.5 * quick.history["loss"][0]
    assert quick.figures == {"readings.png"}


def test_a_second_call_says_the_same(quick: Quick):
    assert quick.again(digits).scores == quick.scores


def test_its_training_resumes_exactly():
    images, labels = digits.load()["train"]
    testing.assert_resumes_exactly(
        lambda run_dir: lw.Trainer(digits.make_task(), run_dir=run_dir, plan="eager"),
        images[:128],
        labels[:128],
        epochs=2,
        break_at=[5],
    )
