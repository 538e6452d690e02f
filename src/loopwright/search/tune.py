"""`lw.tune`: search values for the keys of a config, with trials as processes."""

import contextlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from loopwright import disk
from loopwright.config import file, plain_yaml
from loopwright.config.schema import Config
from loopwright.config.space import first_parameters, from_mapping, with_parameters
from loopwright.errors import ConfigurationError, printable
from loopwright.loop import signals
from loopwright.search.optuna_study import OptunaStudy, require_optuna
from loopwright.search.result import Tuned, best_of, found_trials, write_report
from loopwright.search.study import (
    SPACE,
    STORAGE,
    SearchSpace,
    StudyDirectory,
    locked,
    recorded,
    require_storage,
    storage_explained,
    write_best,
)
from loopwright.search.study_runner import StudyRunner
from loopwright.search.trial_process import refusal_of


def tune(
    config: "str | os.PathLike[str] | Mapping[str, Any]",
    space: Mapping[str, Any],
    *,
    trials: int = 50,
    directory: "str | os.PathLike[str] | None" = None,
    objective: str = "val_loss",
    mode: str = "auto",
    take: str = "best",
    sampler: str = "tpe",
    pruner: str = "median",
    seed: int = 0,
    workers: int = 1,
    settings: str = "auto",
    say: Callable[[str], None] = print,
) -> Tuned:
    """Search values for the keys of a config until the study has `trials` trials.

    `config` is a task, a YAML file, or a config as a dict. `space` maps keys to
    what may vary: `{"optimizer.learning_rate": "float(1e-4,1e-1,log)", "loss": ["mse", "mae"]}`.
    Each trial is a process that trains in `directory/trials/NNNN`. The same call continues a study
    that was interrupted; finished trials are not repeated.
    """
    is_content = isinstance(config, Mapping)
    wanted = SearchSpace(
        config=file.from_content(dict(config)) if is_content else file.load(os.fspath(config)),
        space=from_mapping(space),
        objective=objective,
        mode=mode,
        take=take,
        sampler=sampler,
        pruner=pruner,
        seed=seed,
    )
    path = default_directory(wanted.config) if directory is None else Path(directory)
    return search(wanted, path, trials=trials, workers=workers, settings=settings, say=say)


def default_directory(config: Config) -> Path:
    """Return the directory of a study that was given none."""
    return Path("runs") / f"tune-{config.title}"


def search(
    wanted: SearchSpace,
    path: Path,
    *,
    trials: int,
    workers: int,
    settings: str,
    say: Callable[[str], None],
) -> Tuned:
    """Run the trials of a study to their end; write its report and the best config."""
    require_optuna()
    counts: dict[str, Any] = {"trials": trials, "workers": workers}
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigurationError(
                f"The number of {name} must be a whole number.",
                expected="1 or more",
                received=f"{name}={value!r}"[:200],
                do=f"choose a number of {name}",
            )
    directory = StudyDirectory(path, wanted)
    if directory.is_new():
        _require_trainable(wanted, say)
        directory.create()
    with storage_explained(path):
        require_storage(path, is_new=True)
        with locked(path):
            study = OptunaStudy(path / STORAGE, wanted)
        found_trials(study)
    runner = StudyRunner(
        directory, study, trials=trials, workers=workers, settings=settings, say=say
    )
    try:
        with _signals() as received:
            runner.run(received)
        return _reported(path, wanted.objective, wanted.direction, study)
    except BaseException:
        with contextlib.suppress(Exception):  # what ended the study is raised
            require_storage(path)  # Optuna would wait a minute for a lock
            _reported(path, wanted.objective, wanted.direction, study)
        raise
    finally:
        study.disconnect()


def _reported(path: Path, objective: str, mode: str, study: OptunaStudy) -> Tuned:
    found = Tuned(path, objective, mode, found_trials(study), study.study)
    if found.trials:
        write_report(found)
    return found


def shown(path: Path) -> Tuned:
    """Return the trials of a study in a directory; write its report and best config again."""
    require_storage(path)
    content = recorded(plain_yaml.read_in(path, SPACE))
    with storage_explained(path):
        study = OptunaStudy(path / STORAGE)
        mode = "max" if study.study.direction.name == "MAXIMIZE" else "min"
        found_trials(study)
    name = printable(str(content.get("objective", "score")))[:80]
    try:
        with locked(path), contextlib.suppress(ConfigurationError):  # one trial that is damaged
            best = best_of(found_trials(study), mode)
            if best is not None:
                write_best(path, best.number, None)
        return _reported(path, name, mode, study)
    finally:
        study.disconnect()


@contextlib.contextmanager
def _signals() -> Iterator[Callable[[], bool]]:
    """Note signals while trials run, and obey them afterwards, when all are saved."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    with signals.watched() as noted:
        yield noted.received
    noted.raise_received()


def _require_trainable(wanted: SearchSpace, say: Callable[[str], None]) -> None:
    """Build the first config of the space in a child process; raise if that is refused.

    Arguments of a task or an optimizer are known only to the code that takes them.
    """
    config = with_parameters(wanted.config, wanted.space, first_parameters(wanted.space))
    say("checking that the config can be built with values of the search space")
    with tempfile.TemporaryDirectory(prefix="loopwright-tune-") as scratch:
        text = file.to_yaml(config.model_copy(update={"run_dir": None}))
        disk.write_whole(Path(scratch), "config.yaml", text.encode())
        code, output = refusal_of(Path(scratch) / "config.yaml")
    if code:
        _, _, error = output.rpartition("error: ")
        lines = (error if "error: " in output else output).strip().splitlines()
        raise ConfigurationError(
            "The config cannot be trained with values of the search space. Nothing was "
            "started.\n" + "\n".join(f"    {line}" for line in lines[-20:]),
            received=", ".join(f"{key}={choice}" for key, choice in wanted.space.items()),
            do="correct the key or the config; `loopwright train CONFIG --show` prints it",
        )
    if wanted.objective.startswith("val_") and "validate: never" in output:
        raise ConfigurationError(
            f"There is no validation that could give {wanted.objective[:80]}.",
            expected="an experiment with validation_data or fit.validation_split",
            received="a training without validation",
            do="add fit.validation_split=0.2, or choose a training score: --objective loss",
        )
