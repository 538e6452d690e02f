"""A quick run of an example, shared by the tests of its module."""

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import loopwright as lw
from loopwright.experiment import concluded


@dataclass(frozen=True)
class Quick:
    """What became of a quick run."""

    example: Any
    trainer: lw.Trainer
    scores: dict[str, float]
    run_dir: Path

    @property
    def history(self) -> dict[str, list[float]]:
        return self.trainer.history.history

    @property
    def figures(self) -> set[str]:
        return {path.name for path in (self.run_dir / "figures").iterdir()}

    def again(self) -> "Quick":
        """The same program, started once more in the same directory."""
        return quick_run(self.example, self.run_dir)


@pytest.fixture(scope="module")
def quick(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Quick:
    name = request.module.__name__.rpartition("test_")[2]
    example = importlib.import_module("loopwright.digits" if name == "digits" else name)
    return quick_run(example, tmp_path_factory.mktemp(name) / "run")


def quick_run(example: Any, run_dir: Path) -> Quick:
    """Trains an example quickly, by a fixed plan: which one is chosen is not the point."""
    made = example.experiment(quick=True)
    trainer = lw.Trainer(made.task, run_dir=run_dir, plan="graph")
    # Saved at the end only: how often is not the point either.
    trainer.fit(**{**made.fit, "save_every": "1 hour", "verbose": 0})
    return Quick(example, trainer, concluded(made, trainer, str(run_dir)), run_dir)
