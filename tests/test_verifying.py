"""A recipe that is killed for real ends with the same bits."""

from pathlib import Path

from loopwright import verifying
from loopwright.checkpoint import Store


def test_a_recipe_that_is_killed_and_started_again_is_exact():
    told: list[str] = []
    verdict = verifying.verify(
        "digits", verifying.command_for_recipe("digits"), kills=1, seed=1, say=told.append
    )
    assert verdict.is_exact
    assert str(verdict) == (
        f"exact: {verdict.steps} steps, killed 1 times and started again: the same bits in the end"
    )
    assert verdict.steps > 30
    assert told[1].startswith("killed, 1 of 1: saved at step")


def test_other_bits_are_named(tmp_path: Path):
    for name, content in (("whole", b"one"), ("killed", b"two")):
        store = Store(tmp_path / name / "checkpoints")
        history = {"history": {"epoch_steps": [5]}}

        def write(into: Path, content: bytes = content) -> None:
            (into / "state.index").write_bytes(content)

        store.write(5, history, write)
    verdict = verifying._compared(tmp_path / "whole", tmp_path / "killed", 1)
    assert verdict.differing == ["state.index"]
    assert "NOT EXACT" in str(verdict)


def test_another_last_step_is_named(tmp_path: Path):
    Store(tmp_path / "whole" / "checkpoints").write(5, {}, lambda into: None)
    verdict = verifying._compared(tmp_path / "whole", tmp_path / "killed", 1)
    assert verdict.differing == ["the last step: 5 and None"]
