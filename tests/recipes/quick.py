"""A quick run of a recipe, to be shared by the tests of its module."""

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import loopwright as lw
from loopwright.experiment import concluded


@dataclass(frozen=True)
class Quick:
    """What became of a quick run."""

    trainer: lw.Trainer
    scores: dict[str, float]
    run_dir: Path

    @property
    def history(self) -> dict[str, list[float]]:
        return self.trainer.history.history

    @property
    def figures(self) -> set[str]:
        return {path.name for path in (self.run_dir / "figures").iterdir()}

    def again(self, recipe: ModuleType) -> "Quick":
        """The same program, started once more in the same directory."""
        return quick_run(recipe, self.run_dir)


def quick_run(recipe: ModuleType, run_dir: Path) -> Quick:
    """Trains a recipe quickly, by a fixed plan: which one is chosen is not the point."""
    made: Any = recipe.experiment(quick=True)
    trainer = lw.Trainer(made.task, run_dir=run_dir, plan="graph")
    # Saved at the end only: how often is not the point either.
    trainer.fit(**{**made.fit, "save_every": "1 hour", "verbose": 0})
    return Quick(trainer, concluded(made, trainer, str(run_dir)), run_dir)
