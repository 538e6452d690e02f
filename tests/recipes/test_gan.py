"""The recipe `gan`: the samples become digits, and a run is repeated to the bit."""

from pathlib import Path

import loopwright as lw
from loopwright import testing
from loopwright.recipes import gan


def test_samples_become_digits_and_a_second_call_says_the_same(tmp_path: Path):
    run_dir = str(tmp_path / "run")
    scores = gan.main(run_dir, plan="graph", quick=True)
    assert scores["recognised"] > scores["at_start"] + 0.05
    assert gan.main(run_dir, plan="graph", quick=True) == scores
    assert (tmp_path / "run" / "figures" / "samples.png").is_file()


def test_two_networks_two_optimizers_and_a_seed_resume_exactly():
    testing.assert_resumes_exactly(
        lambda run_dir: lw.Trainer(gan.make_task(), run_dir=run_dir, plan="graph"),
        gan.load()[:320],
        epochs=2,
        break_at=[7],
    )


def test_a_step_updates_both_networks_once():
    task = gan.make_task()
    lw.Trainer(task, plan="graph").fit(gan.load(), until="3 steps", verbose=0)
    assert int(task.generator_optimizer.iterations.numpy()) == 3
    assert int(task.discriminator_optimizer.iterations.numpy()) == 3
