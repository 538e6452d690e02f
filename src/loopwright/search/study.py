"""A study: what it searches, and its directory with Optuna's storage and its runs.

study.yaml     what is searched; another search is refused
study.db       Optuna's storage (SQLite): parameters, scores and states of all trials
study.lock     held while a trial is created
trials/0007/   the run directory of a trial; `claim` is locked by the process that leads it
best.yaml      the config of the best trial
report.html    Optuna's plots
"""

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

from loopwright import disk, untrusted
from loopwright.checkpoints import lock
from loopwright.config import file, plain_yaml
from loopwright.config.schema import Config
from loopwright.config.space import Space, differences, grid_size, require_fits, with_parameters
from loopwright.errors import (
    ConfigurationError,
    LoopwrightError,
    disk_explained,
    printable,
)
from loopwright.metric_direction import larger_is_better

_OPTIONS = {
    "sampler": ("tpe", "random", "grid"),
    "pruner": ("median", "hyperband", "successive-halving", "none"),
    "mode": ("auto", "min", "max"),
    "take": ("best", "last"),
}
_MOST_SEED = 2**32
SPACE, STORAGE, BEST = "study.yaml", "study.db", "best.yaml"
_LOCK, _TRIALS, _CLAIM, _TRIAL = "study.lock", "trials", "claim", "trial.yaml"
_MOST_DIFFERENCES = 8
SECONDS_FOR_STORAGE = 10.0
"""How long to wait for another program that has locked the storage."""


@final
@dataclass(frozen=True, kw_only=True)
class SearchSpace:
    """What a study searches, and how; it must not change while the study grows."""

    config: Config
    space: Space
    objective: str
    mode: str
    take: str
    """The score of a trial: of all its validations the best, or the last."""
    sampler: str
    pruner: str
    seed: int

    def __post_init__(self) -> None:
        """Raise for anything that could not be done."""
        for option, known in _OPTIONS.items():
            value = getattr(self, option)
            if value not in known:
                raise ConfigurationError(
                    f"Unknown {option}.",
                    expected=" or ".join(known),
                    received=f"{option} {value!r:.80}",
                    do=f"choose one of these, or omit it: the default is {known[0]}",
                )
        seed = self.seed
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < _MOST_SEED:
            raise ConfigurationError(
                "The seed of a study must be a whole number.",
                expected=f"0 to {_MOST_SEED - 1}",
                received=f"seed={seed!r}"[:200],
                do="omit it, or choose another number",
            )
        require_fits(self.config, self.space)
        _ = self.direction, self.most_trials  # raise for an unknown one, and a grid without steps

    @property
    def direction(self) -> Literal["min", "max"]:
        """Whether smaller or larger scores are better."""
        if self.mode == "min" or self.mode == "max":
            return self.mode
        is_larger = larger_is_better(self.objective)
        if is_larger is None:
            raise ConfigurationError(
                f"The direction of {self.objective[:80] or 'a score without a name'} is unknown.",
                expected="min if smaller values are better, max if larger ones are",
                received="a name that says neither",
                do="add --mode min or --mode max; in code mode='min' or mode='max'",
            )
        return "max" if is_larger else "min"

    @property
    def most_trials(self) -> int | None:
        """The number of different trials; None: there is no end to them."""
        return grid_size(self.space) if self.sampler == "grid" else None

    def content(self) -> dict[str, Any]:
        """Return plain values, which two starts of the same study have in common."""
        config = file.to_dict(self.config)
        config.pop("run_dir", None)
        options = {name: getattr(self, name) for name in ("take", "sampler", "pruner", "seed")}
        return {
            "objective": self.objective,
            "mode": self.direction,
            **options,
            "space": {key: str(dimension) for key, dimension in self.space.items()},
            "config": config,
        }


def recorded(content: Any) -> Mapping[str, Any]:
    """Return the content of a `study.yaml`, which may come from anyone; empty if it is none."""
    is_study = isinstance(content, dict) and isinstance(content.get("objective"), str)
    return content if is_study and content.get("mode") in ("min", "max") else {}


@final
class StudyDirectory:
    """The directory of a study that this process may continue."""

    def __init__(self, path: Path, space: SearchSpace) -> None:
        self.path, self.space = path, space

    def is_new(self) -> bool:
        """Return whether there is no study here; raise if it searches something else."""
        if disk.status(self.path, SPACE) is None:
            return True
        before = recorded(plain_yaml.read_in(self.path, SPACE))
        found = differences(before, self.space.content())
        if not found:
            return False
        listed = [f"    {line}"[:160] for line in found[:_MOST_DIFFERENCES]]
        if len(found) > _MOST_DIFFERENCES:
            listed.append(f"    ... and {len(found) - _MOST_DIFFERENCES} more")
        what = f"{self.path} is a study that was asked for something else."
        raise ConfigurationError(
            printable("\n".join([what, *listed])),
            do="undo the difference to continue it, or start another study with --dir DIR "
            "(in code: directory=...)",
        )

    def create(self) -> None:
        """Make the directory and record what is searched, unless another process has."""
        with disk_explained(self.path, "The study cannot be written"):
            disk.make_run_directory(self.path)
            with locked(self.path):
                if self.is_new():
                    text = plain_yaml.dump(self.space.content())
                    disk.write_whole(self.path, SPACE, text.encode(), durable=True)
                disk.make_directory(self.path, _TRIALS)

    def claimed(self, number: int) -> lock.Lock | None:
        """Return the lock on a trial; None if another process has it."""
        with disk_explained(self.path, f"Trial {number} cannot be begun"):
            disk.make_directory(self.path, f"{_TRIALS}/{number:04d}")
        path = trial_path(self.path, number) / _CLAIM
        return None if lock.is_held(path) else lock.Lock(path)

    def config_of(self, number: int, parameters: Mapping[str, Any]) -> Config:
        """Return the config of a trial; raise if its parameters are not of this study."""
        space = self.space.space
        is_own = parameters.keys() == space.keys()
        if not is_own or not all(space[key].contains(parameters[key]) for key in space):
            raise ConfigurationError(
                f"{self.path / STORAGE} has a trial {number} of another search.",
                expected=", ".join(f"{key}={choice}" for key, choice in space.items())[:300],
                received=printable(f"{dict(parameters)}")[:300],
                do="move the study directory away, or choose a different directory with --dir",
            )
        config = with_parameters(self.space.config, space, parameters)
        return config.model_copy(update={"run_dir": str(trial_path(self.path, number))})

    def write_trial(self, number: int, config: Config) -> Path:
        """Write the config that a trial is started with, and return its path."""
        path = trial_path(self.path, number)
        with disk_explained(path, f"Trial {number} cannot be begun"):
            disk.write_whole(path, _TRIAL, file.to_yaml(config).encode(), durable=True)
        return path / _TRIAL


def trial_path(path: Path, number: int) -> Path:
    """Return the run directory of a trial.

    >>> str(trial_path(Path("runs/tune-digits"), 7))
    'runs/tune-digits/trials/0007'
    """
    return path / _TRIALS / f"{number:04d}"


def is_led(path: Path, number: int) -> bool:
    """Return whether a process leads a trial now."""
    return lock.is_held(trial_path(path, number) / _CLAIM)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a study: one process at a time creates a trial."""
    handle = disk.opened(path, _LOCK, os.O_RDWR | os.O_CREAT)
    try:
        disk.lock(handle, wait=True)
        yield
    finally:
        os.close(handle)


def write_best(path: Path, number: int, config: Config | None) -> None:
    """Write the config of the best trial: as its run has saved it, without its run directory."""
    complete = file.saved_in(trial_path(path, number)) or config
    if complete is not None:
        text = file.to_yaml(complete.model_copy(update={"run_dir": None}))
        disk.write_whole(path, BEST, text.encode(), durable=True, shared=True)


def require_storage(path: Path, *, is_new: bool = False) -> None:
    """Raise if the storage of a study cannot be written now.

    `is_new`: it may be missing. SQLite follows symlinks, deletes what a journal names, and waits
    for locks: all are looked at before Optuna opens the file.
    """
    untrusted.require_sqlite(path / STORAGE)
    if disk.status(path, STORAGE) is None:
        if is_new:
            return
        raise ConfigurationError(
            f"{path} is not the directory of a study.",
            expected=f"a directory with a {STORAGE}, as `loopwright tune` writes it",
            received="no such file",
            do="check the path",
        )
    try:
        with contextlib.closing(
            sqlite3.connect(path / STORAGE, timeout=SECONDS_FOR_STORAGE, isolation_level=None)
        ) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
    except sqlite3.Error as error:
        raise _unusable_storage(path / STORAGE, str(error)) from None


@contextlib.contextmanager
def storage_explained(path: Path, kind: type[Exception] = Exception) -> Iterator[None]:
    """Explain what Optuna raises if the storage of a study is locked, damaged or strange."""
    try:
        yield
    except LoopwrightError:
        raise
    except kind as error:
        reason = printable(str(error.__cause__ or error).partition("\n")[0])
        raise _unusable_storage(path / STORAGE, reason) from None


def _unusable_storage(path: Path, reason: str) -> ConfigurationError:
    """Return the error for a storage that is locked, damaged or not writable."""
    if "locked" in reason or "busy" in reason:
        return ConfigurationError(
            f"The storage {path} is locked by another program.",
            expected=f"a storage that can be written within {SECONDS_FOR_STORAGE:.0f} seconds",
            received=reason[:200],
            do=f"end the program that has it open (fuser {path} names it), then run the same "
            "command again; every trial is kept",
        )
    return ConfigurationError(
        f"The storage {path} cannot be used.",
        expected="an SQLite file of Optuna that this process may write",
        received=reason[:200],
        do="make it writable, or move the study directory away and start again; the trials "
        "stay readable as run directories",
    )
