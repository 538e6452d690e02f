"""Scores and predictions of data as users pass it, without disturbing the training."""

import time
from typing import Any, final

from loopwright.data.adapter import as_data
from loopwright.distribute.team import Agreement, Team
from loopwright.engine.plan_selector import PlanSelector
from loopwright.engine.predictor import Predictor
from loopwright.engine.scorer import Scorer
from loopwright.loop.schedule import require_positive
from loopwright.loop.signals import Signals
from loopwright.task.task import Task, require_step


@final
class Inference:
    """`evaluate` and `predict` with the weights that a task holds, by the plan in force."""

    def __init__(
        self, task: Task, team: Team, selector: PlanSelector, scorer: Scorer, predictor: Predictor
    ) -> None:
        self._task, self._team, self._selector = task, team, selector
        self._scorer, self._predictor = scorer, predictor

    def evaluate(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        batch_size: int | None = None,
        steps: int | None = None,
    ) -> dict[str, Any]:
        """Return the scores on a data set."""
        require_step(self._task, "test_step")
        require_positive(steps=steps)
        with self._team.losses_explained():
            data = as_data(x, y, sample_weight, batch_size=batch_size)
            alone = Agreement(self._team, time.perf_counter, Signals())
            own = data.of(self._team.size, self._team.index)
            return self._scorer.score(own, steps, alone) or {}

    def predict(self, x: Any, *, batch_size: int | None = None, steps: int | None = None) -> Any:
        """Return the predictions for a data set, as NumPy arrays."""
        require_step(self._task, "predict_step")
        require_positive(steps=steps)
        data = as_data(x, batch_size=batch_size)
        return self._predictor.predict(data, steps=steps, plan=self._selector.plan_in_force)
