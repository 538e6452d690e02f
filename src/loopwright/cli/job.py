"""Launching: a config becomes an experiment and a trainer, and is trained, scored or asked."""

import contextlib
import importlib
import inspect
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from loopwright import recipes
from loopwright.checkpoints.retention import (
    DEFAULT_KEEP,
    KeepBest,
    KeepLatest,
    Rule,
)
from loopwright.checkpoints.run_directory import Run
from loopwright.checkpoints.store import Store
from loopwright.cli import registry
from loopwright.cli import registry as signatures
from loopwright.cli.registry import function, importable
from loopwright.compat.quiet_start import quiet_start
from loopwright.config import changes, file
from loopwright.config.schema import Config, Fit
from loopwright.data.adapter import training_data
from loopwright.data.source import Epochs
from loopwright.distribute.strategy import strategy_for
from loopwright.distribute.team import Team
from loopwright.errors import ConfigurationError, message
from loopwright.experiment import Experiment, concluded
from loopwright.export.exporter import newest, worded
from loopwright.loop.schedule import Every, Schedule, every
from loopwright.sinks.notify import attempted
from loopwright.sinks.report import write_report
from loopwright.trainer import Trainer

_PARTS: dict[str, Callable[[Config], Any]] = {
    "optimizer": lambda config: registry.optimizer(config.optimizer) if config.optimizer else None,
    "loss": lambda config: registry.loss(config.loss, Path.cwd()) if config.loss else None,
    "metrics": lambda config: registry.metrics(config.metrics or [], Path.cwd()),
}
"""What a config makes by name and hands to the function that makes the task."""


@dataclass(frozen=True)
class Launch:
    """A config with everything that it stands for."""

    config: Config
    """With the experiment's own numbers where it said nothing."""
    experiment: Experiment
    trainer: Trainer


def train(
    config: Config, *, fresh: bool = False, say: Callable[[str], None] = print
) -> dict[str, float]:
    """Trains a config in its run directory, or goes on there; its scores."""
    with launched(config) as launch:
        trainer = launch.trainer
        if trainer.is_chief:
            enter(launch.config, say, fresh=fresh)
        trainer.fit(**_fit_arguments(launch))
        # All conclude, because they score together; one of them writes.
        directory = config.directory if trainer.is_chief else None
        with _heard_once(trainer):
            scores = concluded(launch.experiment, trainer, directory)
        if directory is None:
            return scores
        _export(config, trainer, say)
    with attempted("The report"):
        write_report(Path(directory))  # again, for what was concluded
    return scores


def _heard_once(trainer: Trainer) -> contextlib.AbstractContextManager[object]:
    """What is printed by all workers alike, the chief alone says."""
    if trainer.is_chief:
        return contextlib.nullcontext()
    return contextlib.redirect_stdout(io.StringIO())


def _export(config: Config, trainer: Trainer, say: Callable[[str], None]) -> None:
    """Exports as the config says, unless this very step was exported before."""
    wanted = config.export
    if wanted is None:
        return
    step = trainer.restore(wanted.checkpoint)
    before = newest(Path(config.directory), wanted.format)
    if before is not None and before.step == step:
        say(f"export: {before.path} is of this step already")
        return
    done = trainer.export(format=wanted.format, averaged=wanted.averaged)
    say(f"export: {worded(done)}")


@contextlib.contextmanager
def launched(config: Config) -> Iterator[Launch]:
    """The trainer of a config, while its precision is that of Keras."""
    before = keras.config.dtype_policy()
    if before.name != config.precision:
        keras.config.set_dtype_policy(config.precision)
    used = contextlib.ExitStack()
    if config.task is not None or config.sinks:
        # A person named code of this directory, and trusts what lies in it.
        used.enter_context(importable(Path.cwd()))
    try:
        with quiet_start():
            tf.config.list_physical_devices()  # they are looked for once, and loudly
        # Before any data: workers have to be connected before TensorFlow is used.
        strategy = strategy_for(config.strategy)
        with quiet_start():
            tf.config.list_logical_devices()
        experiment = experiment_of(config)
        trainer = _trainer(config, experiment, strategy)
        yield Launch(settled(config, experiment), experiment, trainer)
        Team(strategy).barrier()
    finally:
        used.close()
        if before.name != config.precision:
            keras.config.set_dtype_policy(before)


def experiment_of(config: Config) -> Experiment:
    """What a config is about, with its data loaded."""
    if config.task is not None:
        make = function(config.task, Path.cwd())
    else:
        make = _recipe(config.recipe or "").experiment
    options: dict[str, Any] = dict(config.data)
    if config.quick:
        options["quick"] = True
    found = _called("data", make, options)
    if not isinstance(found, Experiment):
        raise ConfigurationError(
            message(
                f"{config.title} is not an experiment.",
                expected="a function that returns lw.Experiment(make_task, fit={...})",
                received=f"one that returns {type(found).__name__}",
                do="return an lw.Experiment",
            )
        )
    return found


def settled(config: Config, experiment: Experiment) -> Config:
    """The config with the experiment's own numbers where it says nothing."""
    own = {}
    for name in Fit.model_fields:
        value = experiment.fit.get(name)
        if isinstance(value, bool | int | float | str | Every) and name != "verbose":
            own[name] = str(value) if isinstance(value, Every) else value
    given = config.fit.model_dump(exclude_none=True)
    for one, other in (("epochs", "until"), ("until", "epochs")):
        if one in given:
            own.pop(other, None)
    return file.from_content({**file.plain(config), "fit": {**own, **given}})


def schedule_of(launch: Launch) -> Schedule:
    """When what will happen, as far as that is known before the start."""
    arguments = {"x": None, "y": None, "sample_weight": None, **_fit_arguments(launch)}
    data, held_out = training_data(
        arguments["x"],
        arguments["y"],
        arguments["sample_weight"],
        arguments.get("batch_size"),
        None,
        arguments.get("validation_split", 0.0),
        arguments.get("validation_data"),
    )
    fit = launch.config.fit
    length = fit.steps_per_epoch
    if data is not None:
        # Neither seed nor order changes the number of steps.
        feed = data.training(Epochs(steps_per_epoch=fit.steps_per_epoch))
        length = feed.steps_per_epoch
    return Schedule(
        steps_per_epoch=length,
        until=every(fit.until) if fit.until else Every(epochs=fit.epochs or 1),
        validate_every=every(fit.validate_every or "1 epoch") if held_out is not None else None,
        save_every=every(fit.save_every or "10 minutes"),
    )


def enter(config: Config, say: Callable[[str], None], *, fresh: bool = False) -> None:
    """Writes `config.yaml`; in a run that goes on, says what changed and refuses what may not.

    `fresh` moves the previous run aside.
    """
    run = Run(config.directory, (), fresh=fresh)
    directory = run.directory
    with run.opened():
        before = file.saved_in(directory) if Store(directory / "checkpoints").all() else None
        if before is not None:
            found = changes.changes(before, config)
            told = [change for change in found if change.key != "run_dir"]
            for change in told:
                say(f"config: {change}")
            if config.on_change == "start_over" and not all(change.is_allowed for change in told):
                say(f"starting over; previous run moved to {run.start_over(0)}")
            else:
                changes.refuse_changes(told)
        file.save(config, directory)


def _trainer(config: Config, experiment: Experiment, strategy: tf.distribute.Strategy) -> Trainer:
    def make_task() -> Any:
        options: dict[str, Any] = dict(config.model)
        parameters = inspect.signature(experiment.task).parameters
        keras.utils.set_random_seed(config.seed)
        if "seed" in parameters:
            options.setdefault("seed", config.seed)
        for name, make in _PARTS.items():
            if getattr(config, name) is not None:
                _require_taken(name, config, experiment)
                options[name] = make(config)
        return _called("model", experiment.task, options)

    return Trainer(
        make_task,
        run_dir=config.directory,
        plan=config.plan,
        strategy=strategy,
        seed=config.seed,
        sinks=[function(named, Path.cwd()) for named in config.sinks],
        keep=_rules(config),
        on_nan=config.on_nan,
        exact=config.exact,
        on_change=config.on_change,
    )


def _require_taken(name: str, config: Config, experiment: Experiment) -> None:
    parameters = inspect.signature(experiment.task).parameters
    if name in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return
    raise ConfigurationError(
        message(
            f"{config.title} takes no `{name}` from a config.",
            expected=f"a function that makes the task, with an argument `{name}`",
            received=f"arguments: {', '.join(parameters) or 'none'}",
            do=f"remove `{name}` from the config, or add the argument to the function",
        )
    )


def _rules(config: Config) -> Sequence[Rule]:
    rules = [
        KeepLatest(keep.latest)
        if keep.latest is not None
        else KeepBest(keep.best or "", keep.count, keep.mode)
        for keep in config.keep
    ]
    # A config is saved with its default rules, which nobody asked for.
    return DEFAULT_KEEP if rules == list(DEFAULT_KEEP) else rules


def _fit_arguments(launch: Launch) -> dict[str, Any]:
    config, own = launch.config, dict(launch.experiment.fit)
    given = config.fit.model_dump(exclude_none=True)
    if "until" in given:
        own.pop("epochs", None)
    callbacks = [registry.callback(part, Path(config.directory)) for part in config.callbacks]
    return {**own, **given, "callbacks": [*own.get("callbacks", ()), *callbacks]}


def _called(part: str, make: Callable[..., Any], options: dict[str, Any]) -> Any:
    """Calls a person's function with the arguments of the config, if they fit."""
    problem = signatures.misfit(make, options) or signatures.mistaken_truth(make, options)
    if problem is not None:
        known = ", ".join(inspect.signature(make).parameters) or "no arguments"
        raise ConfigurationError(
            message(
                f"The {part} of this config cannot be made with these options.",
                expected=f"arguments of {getattr(make, '__name__', 'the function')}: {known}",
                received=problem,
                do=f"correct `{part}`, or leave it out",
            )
        )
    return make(**options)


def _recipe(name: str) -> Any:
    recipes.require(name)
    try:
        return importlib.import_module(f"loopwright.recipes.{name}")
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            message(
                f"The recipe {name} needs more than the library does.",
                expected="pip install 'loopwright[recipes]'",
                received=str(error),
                do="install it, or train a task of your own: MODULE:FUNCTION",
            )
        ) from error
