"""A recipe that is killed for real ends with the same bits."""

import sys
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


TRAINS_AT_ONCE = """
import sys
from pathlib import Path
from loopwright.checkpoint import Store
run_dir, plans, plan = map(Path, sys.argv[1:])
with plans.open("a") as file:
    print(plan, file=file)
content = {"history": {"epoch_steps": [5]}}
write = lambda into: (into / "state.index").write_bytes(b"the same")
Store(run_dir / "checkpoints").write(5, content, write)
"""


def test_the_killed_training_follows_the_plans_of_the_undisturbed_one(tmp_path: Path):
    given = tmp_path / "plans"

    def command(run_dir: Path, plan: str | None) -> list[str]:
        return [sys.executable, "-c", TRAINS_AT_ONCE, str(run_dir), str(given), str(plan)]

    verdict = verifying.verify("it", command, kills=1, seed=1, say=lambda text: None)
    assert verdict.is_exact
    first, *others = given.read_text().splitlines()
    assert first == "None"
    assert others
    assert all(plan.endswith("whole/plan.json") for plan in others)


def test_a_run_is_verified_by_its_own_plan():
    command = verifying.command_for_run(Path("runs/mine"))
    assert not [word for word in command(Path("other"), None) if word.startswith("plan=")]
    assert 'plan="whole/plan.json"' in command(Path("other"), "whole/plan.json")


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
