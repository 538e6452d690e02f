"""The example `gan`: the samples become digits, and a run is repeated to the bit."""

from tests.examples.conftest import Quick

import gan
import loopwright as lw


def test_samples_become_digits(quick: Quick):
    assert quick.scores["recognised"] > quick.scores["at_start"] + 0.05
    assert quick.figures == {"samples.png"}


def test_a_second_call_says_the_same_and_draws_every_row_again(quick: Quick):
    figure = quick.run_dir / "figures" / "samples.png"
    before = figure.read_bytes()
    figure.unlink()
    assert quick.again().scores == quick.scores
    assert figure.read_bytes() == before


def test_the_generator_is_exported(quick: Quick):
    exported = quick.trainer.export()
    assert exported.signatures == ["serve"]
    assert exported.largest_difference < 1e-5


def test_a_step_updates_both_networks_once():
    task = gan.make_task()
    lw.Trainer(task, plan="eager").fit(gan.load(), until="3 steps", verbose=0)
    assert int(task.generator_optimizer.iterations.numpy()) == 3
    assert int(task.discriminator_optimizer.iterations.numpy()) == 3
