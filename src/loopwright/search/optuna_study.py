"""Optuna: its study, samplers and pruners. Only this file knows how Optuna is called."""

import contextlib
import hashlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from loopwright.config.space import Choice, Range, Space
from loopwright.errors import ConfigurationError, message
from loopwright.extras import imported

if TYPE_CHECKING:
    import optuna

    from loopwright.search.study import Asked

_NAME = "study"
_SECONDS_TO_WRITE = 60.0
REASON = "reason"
"""The attribute of a failed trial that says why."""
State = Literal["complete", "pruned", "failed", "running"]


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


def opened(path: Path, asked: "Asked") -> "tuple[optuna.Study, optuna.storages.BaseStorage]":
    """Return the study in a storage, which is created if there is none, and the storage.

    Its sampler is never asked: see `new_parameters`.
    """
    optuna = require_optuna()
    with quiet():
        storage = _storage(path)
        study = optuna.create_study(
            storage=storage,
            sampler=optuna.samplers.RandomSampler(seed=asked.seed),
            pruner=_pruner(asked),
            study_name=_NAME,
            direction="maximize" if asked.mode == "max" else "minimize",
            load_if_exists=True,
        )
    return study, storage


def loaded(path: Path) -> "tuple[optuna.Study, optuna.storages.BaseStorage]":
    """Return the study in a storage, to read it, and the storage."""
    optuna = require_optuna()
    with quiet():
        storage = _storage(path)
        return optuna.load_study(study_name=_NAME, storage=storage), storage


def disconnect(storage: Any) -> None:
    """Close the connections to a storage; a study that is used later opens new ones."""
    storage.remove_session()
    storage.engine.dispose()


def _storage(path: Path) -> Any:
    optuna = require_optuna()
    import sqlalchemy

    url = sqlalchemy.URL.create("sqlite", database=str(path))
    return optuna.storages.RDBStorage(
        url.render_as_string(), engine_kwargs={"connect_args": {"timeout": _SECONDS_TO_WRITE}}
    )


def _pruner(asked: "Asked") -> Any:
    pruners = require_optuna().pruners
    return {
        "median": pruners.MedianPruner,
        "hyperband": pruners.HyperbandPruner,
        "successive-halving": pruners.SuccessiveHalvingPruner,
        "none": pruners.NopPruner,
    }[asked.pruner]()


def _sampler(asked: "Asked", number: int) -> Any:
    """Return a sampler whose random numbers are a function of the seed and the trial.

    A study that is continued in a new process asks the same questions as one that was not stopped.
    """
    samplers = require_optuna().samplers
    digest = hashlib.sha256(f"{asked.seed}/{number}".encode()).digest()
    seed = int.from_bytes(digest[:4], "big")
    if asked.sampler == "grid":
        points = {
            key: one.labels if isinstance(one, Choice) else list(one.points or ())
            for key, one in asked.space.items()
        }
        # The order of the grid is the same for all trials.
        return samplers.GridSampler(points, seed=asked.seed)
    if asked.sampler == "random":
        return samplers.RandomSampler(seed=seed)
    return samplers.TPESampler(seed=seed)


def distributions(space: Space) -> dict[str, Any]:
    """Return the search space in Optuna's classes."""
    kinds = require_optuna().distributions

    def distribution(one: Range | Choice) -> Any:
        if isinstance(one, Choice):
            return kinds.CategoricalDistribution(one.labels)
        if one.kind == "int":
            return kinds.IntDistribution(one.low, one.high, log=one.log, step=one.step or 1)
        return kinds.FloatDistribution(one.low, one.high, log=one.log, step=one.step)

    return {key: distribution(one) for key, one in space.items()}


def new_trial(study: "optuna.Study", asked: "Asked") -> "optuna.trial.FrozenTrial":
    """Create a trial with all its parameters at once, and return it.

    They are asked of a copy of the study in memory: a process killed half-way leaves nothing in the
    storage, and the next one gets the same answer.
    """
    with quiet():
        known = study.get_trials(deepcopy=False)
        copy = _copied(study, asked, len(known))
        copy.ask(distributions(asked.space))
        made = copy.get_trials(deepcopy=False)[-1]
        study.add_trial(made)
        found = study.get_trials(deepcopy=False)[-1]
    if found.number != len(known) or found.params != made.params:
        raise ConfigurationError(
            message(
                "Another program has added a trial to the storage.",
                expected="trials that `loopwright tune` creates",
                received=f"trial {found.number} in place of {len(known)}",
                do="end that program, and run the same command again; every trial is kept",
            )
        )
    return found


def _copied(study: "optuna.Study", asked: "Asked", number: int) -> "optuna.Study":
    """Return a copy of a study in memory, as it is for the sampler and the pruner of a trial."""
    copy = require_optuna().create_study(
        sampler=_sampler(asked, number),
        pruner=_pruner(asked),  # Hyperband has a sampler for each of its brackets
        study_name=study.study_name,
        direction=study.direction,
    )
    copy.add_trials(study.get_trials(deepcopy=False))
    return copy


def running_trial(
    study: "optuna.Study", storage: "optuna.storages.BaseStorage", number: int
) -> "optuna.Trial | None":
    """Return a trial to report scores to; None if it has ended."""
    optuna = require_optuna()
    with quiet():
        found = study.get_trials(deepcopy=False)[number]
        if found.state != optuna.trial.TrialState.RUNNING:
            return None
        own = storage.get_study_id_from_name(study.study_name)
        return optuna.trial.Trial(
            study, storage.get_trial_id_from_study_id_trial_number(own, number)
        )


def is_pruned(study: "optuna.Study", number: int) -> bool:
    """Return whether a trial is not worth its time, after the last score that was reported."""
    with quiet():
        return study.pruner.prune(study, study.get_trials(deepcopy=False)[number])


def reports_of(study: "optuna.Study", number: int) -> int:
    """Return how many scores were reported for a trial."""
    return len(study.get_trials(deepcopy=False)[number].intermediate_values)


def state_of(trial: "optuna.trial.FrozenTrial") -> State:
    """Return the state of a trial in a word."""
    words: dict[str, State] = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}
    return words.get(trial.state.name, "running")
