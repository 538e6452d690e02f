"""The recipe `digits`: it reads most digits, and a run is repeated to the bit."""

from pathlib import Path

import loopwright as lw
from loopwright import testing
from loopwright.recipes import digits


def test_most_digits_are_read_and_a_second_call_says_the_same(tmp_path: Path):
    run_dir = str(tmp_path / "run")
    scores = digits.main(run_dir, plan="graph", quick=True)
    assert scores["accuracy"] > 0.85
    assert digits.main(run_dir, plan="graph", quick=True) == scores
    assert (tmp_path / "run" / "figures" / "readings.png").is_file()


def test_its_training_resumes_exactly():
    images, labels = digits.load()["train"]
    testing.assert_resumes_exactly(
        lambda run_dir: lw.Trainer(digits.make_task(), run_dir=run_dir, plan="graph"),
        images[:256],
        labels[:256],
        epochs=2,
        break_at=[9],
    )
