"""Optuna: its study, samplers and pruners. Only this file knows how Optuna is called."""

import contextlib
import hashlib
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, final

from loopwright.config.space import Choice, Range
from loopwright.errors import ConfigurationError
from loopwright.extras import imported

if TYPE_CHECKING:
    import optuna

    from loopwright.search.study import SearchSpace

_NAME = "study"
_SECONDS_TO_WRITE = 60.0
REASON = "reason"
"""The attribute of a failed trial that says why."""
State = Literal["complete", "pruned", "failed", "running"]
_STATES: Mapping[str, State] = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}


def require_optuna() -> Any:
    """Return Optuna; raise with the command that installs it."""
    return imported("tune", "A search", instead="train one config: loopwright train")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep Optuna's own log messages and notices of experimental features off the terminal."""
    optuna = require_optuna()
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)


def state_of(trial: "optuna.trial.FrozenTrial") -> State:
    """Return the state of a trial in a word."""
    return _STATES.get(trial.state.name, "running")


@final
class OptunaStudy:
    """Optuna's study in a storage, and the storage."""

    def __init__(self, path: Path, space: "SearchSpace | None" = None) -> None:
        """Open the study; with a search space, one that is missing is created.

        Its own sampler is never asked: see `new_trial`.
        """
        optuna = require_optuna()
        import sqlalchemy

        url = sqlalchemy.URL.create("sqlite", database=str(path)).render_as_string()
        waits = {"connect_args": {"timeout": _SECONDS_TO_WRITE}}
        with quiet():
            self._storage: Any = optuna.storages.RDBStorage(url, engine_kwargs=waits)
            if space is None:
                self.study = optuna.load_study(study_name=_NAME, storage=self._storage)
            else:
                self.study = optuna.create_study(
                    storage=self._storage,
                    sampler=optuna.samplers.RandomSampler(seed=space.seed),
                    pruner=_pruner(space),
                    study_name=_NAME,
                    direction="maximize" if space.direction == "max" else "minimize",
                    load_if_exists=True,
                )

    def disconnect(self) -> None:
        """Close the connections to the storage; a study that is used later opens new ones."""
        self._storage.remove_session()
        self._storage.engine.dispose()

    def trials(self) -> "list[optuna.trial.FrozenTrial]":
        """Return all trials in the order of their numbers."""
        return self.study.get_trials(deepcopy=False)

    def new_trial(self, space: "SearchSpace") -> int:
        """Create a trial with all its parameters at once, and return its number.

        They are asked of a copy of the study in memory: a process killed half-way leaves nothing in
        the storage, and the next one gets the same answer.
        """
        known = self.trials()
        copy = self._copy(known, space)
        copy.ask({key: _distribution(dimension) for key, dimension in space.space.items()})
        made = copy.get_trials(deepcopy=False)[-1]
        self.study.add_trial(made)
        added = self.trials()[-1]
        if added.number != len(known) or added.params != made.params:
            raise ConfigurationError(
                "Another program has added a trial to the storage.",
                expected="trials that `loopwright tune` creates",
                received=f"trial {added.number} in place of {len(known)}",
                do="end that program, and run the same command again; every trial is kept",
            )
        return added.number

    def _copy(self, trials: "list[optuna.trial.FrozenTrial]", space: "SearchSpace") -> Any:
        """Return a study in memory with these trials and a sampler for the next one."""
        copy = require_optuna().create_study(
            sampler=_sampler(space, len(trials)),
            pruner=_pruner(space),  # Hyperband has a sampler for each of its brackets
            study_name=self.study.study_name,
            direction=self.study.direction,
        )
        copy.add_trials(trials)
        return copy

    def running_trial(self, number: int) -> "optuna.Trial | None":
        """Return a trial to report scores to; None if it has ended."""
        if state_of(self.trials()[number]) != "running":
            return None
        own = self._storage.get_study_id_from_name(self.study.study_name)
        trial_id = self._storage.get_trial_id_from_study_id_trial_number(own, number)
        return require_optuna().trial.Trial(self.study, trial_id)

    def is_pruned(self, number: int) -> bool:
        """Return whether a trial is not worth its time, after the last score that was reported."""
        return self.study.pruner.prune(self.study, self.trials()[number])

    def would_be_pruned(self, number: int, space: "SearchSpace") -> bool:
        """Decide once more after each score of a trial whose process was killed.

        Successive halving writes into the storage that a trial has reached a rung, and decides once
        per rung: a process killed right after that loses the decision. A copy has no such entries.
        """
        known = self.trials()
        copy = self._copy(known[:number], space)
        trial = copy.ask()
        copy.add_trials(known[number + 1 :])
        for at, score in sorted(known[number].intermediate_values.items()):
            trial.report(score, at)
            if copy.pruner.prune(copy, copy.get_trials(deepcopy=False)[number]):
                return True
        return False

    def conclude(self, number: int, state: State, score: float | None) -> None:
        """Note how a trial has ended."""
        states = require_optuna().trial.TrialState
        name = next(name for name, word in _STATES.items() if word == state)
        self.study.tell(number, score, state=states[name])


def _pruner(space: "SearchSpace") -> Any:
    pruners = require_optuna().pruners
    return {
        "median": pruners.MedianPruner,
        "hyperband": pruners.HyperbandPruner,
        "successive-halving": pruners.SuccessiveHalvingPruner,
        "none": pruners.NopPruner,
    }[space.pruner]()


def _sampler(space: "SearchSpace", number: int) -> Any:
    """Return a sampler whose random numbers are a function of the seed and the trial.

    A study that is continued in a new process asks the same questions as one that was not stopped.
    """
    samplers = require_optuna().samplers
    digest = hashlib.sha256(f"{space.seed}/{number}".encode()).digest()
    seed = int.from_bytes(digest[:4], "big")
    if space.sampler == "grid":
        points = {
            key: dimension.labels if isinstance(dimension, Choice) else list(dimension.points or ())
            for key, dimension in space.space.items()
        }
        # The order of the grid is the same for all trials.
        return samplers.GridSampler(points, seed=space.seed)
    if space.sampler == "random":
        return samplers.RandomSampler(seed=seed)
    return samplers.TPESampler(seed=seed)


def _distribution(dimension: Range | Choice) -> Any:
    """Return a dimension of the search space in Optuna's classes."""
    kinds = require_optuna().distributions
    if isinstance(dimension, Choice):
        return kinds.CategoricalDistribution(dimension.labels)
    low, high, log, step = dimension.low, dimension.high, dimension.log, dimension.step
    if dimension.kind == "int":
        return kinds.IntDistribution(low, high, log=log, step=step or 1)
    return kinds.FloatDistribution(low, high, log=log, step=step)
