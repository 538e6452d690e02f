"""Loopwright: you write the step, Loopwright owns everything around it.

    import loopwright as lw

    task = lw.Supervised(model, loss="mse", optimizer="adam")
    history = lw.Trainer(task).fit(x, y, epochs=10)

Names are loaded when they are first used: `import loopwright` does not import TensorFlow.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loopwright import components as components
    from loopwright import sinks as sinks
    from loopwright import testing as testing
    from loopwright.checkpoints.retention import KeepBest as KeepBest
    from loopwright.checkpoints.retention import KeepLatest as KeepLatest
    from loopwright.data.arrays import Arrays as Arrays
    from loopwright.data.shards import Shares as Shares
    from loopwright.data.stream import Stream as Stream
    from loopwright.errors import CheckpointError as CheckpointError
    from loopwright.errors import ConfigurationError as ConfigurationError
    from loopwright.errors import DataError as DataError
    from loopwright.errors import LoopwrightError as LoopwrightError
    from loopwright.errors import LoopwrightWarning as LoopwrightWarning
    from loopwright.errors import MissingStepError as MissingStepError
    from loopwright.errors import NotFiniteError as NotFiniteError
    from loopwright.errors import RetraceWarning as RetraceWarning
    from loopwright.errors import StepError as StepError
    from loopwright.errors import StepWarning as StepWarning
    from loopwright.errors import WorkerLostError as WorkerLostError
    from loopwright.events import BatchSkipped as BatchSkipped
    from loopwright.events import EpochEnded as EpochEnded
    from loopwright.events import EpochStarted as EpochStarted
    from loopwright.events import Event as Event
    from loopwright.events import Finished as Finished
    from loopwright.events import GradientsWatched as GradientsWatched
    from loopwright.events import ImagesDrawn as ImagesDrawn
    from loopwright.events import Noted as Noted
    from loopwright.events import PlanChosen as PlanChosen
    from loopwright.events import RunFacts as RunFacts
    from loopwright.events import Saved as Saved
    from loopwright.events import Sink as Sink
    from loopwright.events import Started as Started
    from loopwright.events import Trained as Trained
    from loopwright.events import Validated as Validated
    from loopwright.experiment import Experiment as Experiment
    from loopwright.fit.history import History as History
    from loopwright.insight.history_state import first_difference as first_difference
    from loopwright.insight.rehearsal_report import Rehearsal as Rehearsal
    from loopwright.loop.schedule import Every as Every
    from loopwright.loop.signals import Preempted as Preempted
    from loopwright.plans.plan import Plan as Plan
    from loopwright.plans.record import PlanHistory as PlanHistory
    from loopwright.search.result import Trial as Trial
    from loopwright.search.result import Tuned as Tuned
    from loopwright.search.tune import tune as tune
    from loopwright.task.gradient_check import check_gradients as check_gradients
    from loopwright.task.scheduled import Scheduled as Scheduled
    from loopwright.task.supervised import Supervised as Supervised
    from loopwright.task.task import Mean as Mean
    from loopwright.task.task import Task as Task
    from loopwright.trainer import Trainer as Trainer

__version__ = "0.1.0"

_HOMES = {
    "checkpoints.retention": ["KeepBest", "KeepLatest"],
    "data.arrays": ["Arrays"],
    "data.shards": ["Shares"],
    "data.stream": ["Stream"],
    "errors": [
        "CheckpointError",
        "ConfigurationError",
        "DataError",
        "LoopwrightError",
        "LoopwrightWarning",
        "MissingStepError",
        "NotFiniteError",
        "RetraceWarning",
        "StepError",
        "StepWarning",
        "WorkerLostError",
    ],
    "events": [
        "BatchSkipped",
        "EpochEnded",
        "EpochStarted",
        "Event",
        "Finished",
        "GradientsWatched",
        "ImagesDrawn",
        "Noted",
        "PlanChosen",
        "RunFacts",
        "Saved",
        "Sink",
        "Started",
        "Trained",
        "Validated",
    ],
    "experiment": ["Experiment"],
    "fit.history": ["History"],
    "insight.history_state": ["first_difference"],
    "insight.rehearsal_report": ["Rehearsal"],
    "loop.schedule": ["Every"],
    "loop.signals": ["Preempted"],
    "plans.plan": ["Plan"],
    "plans.record": ["PlanHistory"],
    "search.result": ["Trial", "Tuned"],
    "search.tune": ["tune"],
    "task.gradient_check": ["check_gradients"],
    "task.scheduled": ["Scheduled"],
    "task.supervised": ["Supervised"],
    "task.task": ["Mean", "Task"],
    "trainer": ["Trainer"],
}
_MODULES = ["components", "sinks", "testing"]
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [*sorted([*_HOME_OF, *_MODULES])]  # noqa: PLE0604  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"loopwright.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'loopwright' has no attribute {name!r}")
    return getattr(importlib.import_module(f"loopwright.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
