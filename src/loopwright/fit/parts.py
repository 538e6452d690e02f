"""The parts that a trainer makes once, and that each call of `fit` uses."""

from dataclasses import dataclass

import tensorflow as tf

from loopwright.distribute.team import Team
from loopwright.engine.compiled_steps import CompiledSteps
from loopwright.engine.inference import Inference
from loopwright.engine.nan import OnNan
from loopwright.engine.plan_selector import PlanSelector
from loopwright.engine.scorer import Scorer
from loopwright.fit.restore import HeldState
from loopwright.task.task import Task


@dataclass(frozen=True)
class Parts:
    """What all calls of `fit` of a trainer have in common."""

    task: Task
    strategy: tf.distribute.Strategy
    team: Team
    compiled: CompiledSteps
    selector: PlanSelector
    scorer: Scorer
    inference: Inference
    state: HeldState
    seed: int
    on_nan: OnNan
