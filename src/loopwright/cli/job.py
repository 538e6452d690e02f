"""Build an experiment and a trainer from a config, and train it."""

import contextlib
import inspect
import io
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopwright.quiet_start import quiet_start

# Every command that needs TensorFlow imports it here: the process is ours, so its start is quiet.
with quiet_start():
    import keras
    import tensorflow as tf

from loopwright import launch
from loopwright.checkpoints.retention import DEFAULT_KEEP, KeepBest, KeepLatest, Rule
from loopwright.checkpoints.run_directory import Run
from loopwright.checkpoints.store import Store
from loopwright.cli import registry
from loopwright.config import changes, file
from loopwright.config.export_formats import require_installed
from loopwright.config.names import DIGITS, OWN, is_program
from loopwright.config.schema import Config, Fit
from loopwright.data.adapter import as_data
from loopwright.dispatch import attempted
from loopwright.distribute.strategy import strategy_for
from loopwright.distribute.team import Team
from loopwright.errors import ConfigurationError, LoopwrightError
from loopwright.events import Sink
from loopwright.experiment import Experiment, concluded
from loopwright.export.exporter import newest, worded
from loopwright.extras import install_command
from loopwright.insight.rehearsal_report import Rehearsal
from loopwright.loop.schedule import Every
from loopwright.sinks.outbox import Tracker
from loopwright.sinks.report import write_report
from loopwright.task.keras_model import CompiledModel
from loopwright.task.optimizers import optimizers
from loopwright.task.task import Task
from loopwright.trainer import Trainer


@dataclass(frozen=True)
class Job:
    """A config with its experiment and its trainer."""

    config: Config
    """Complete: what the config leaves out comes from the experiment."""
    experiment: Experiment
    trainer: Trainer
    sinks: Sequence[Sink]


def train(
    config: Config, *, fresh: bool = False, say: Callable[[str], None] = print
) -> dict[str, float]:
    """Train a config in its run directory, or resume there; return the scores."""
    _require_extras(config)
    with open_job(config) as job:
        trainer = job.trainer
        if trainer.is_chief and not launch.is_measured():
            write_config(job.config, say, fresh=fresh)
        trackers = [sink for sink in job.sinks if isinstance(sink, Tracker)]
        for tracker in trackers:
            tracker.waits_for_files = True  # figures and exports are written after the training
        trainer.fit(**fit_arguments(job))
        # Every worker concludes, because scoring is collective; only the chief writes files.
        directory = config.directory if trainer.is_chief else None
        # A worker's own lines would repeat those of the chief.
        output = contextlib.redirect_stdout(sys.stdout if trainer.is_chief else io.StringIO())
        with output:
            scores = concluded(job.experiment, trainer, directory)
        if directory is None:
            return scores
        failed = _export(job, say)
    with attempted("The report"):
        write_report(Path(directory))  # again, with the conclusion
    for tracker in trackers:
        tracker.end("completed" if failed is None else "failed")
    if failed is not None:
        raise failed
    return scores


def rehearse(
    config: Config,
    *,
    fresh: bool = False,
    callbacks: bool = False,
    overfit: str | None = None,
) -> Rehearsal:
    """Rehearse the training of a config; nothing is written."""
    _require_extras(config)
    before = None if fresh else _config_of_run(Path(config.directory))
    with open_job(config, fresh=fresh) as job:
        if before is not None and config.on_change != "start_over":
            changes.refuse_changes(_changes(before, job.config))
        verbose = 0 if config.fit.verbose == 0 else 1
        return job.trainer.rehearse(
            **{**fit_arguments(job), "verbose": verbose},
            rehearse_callbacks=callbacks,
            overfit=overfit,
        )


def _export(job: Job, say: Callable[[str], None]) -> LoopwrightError | None:
    """Export as configured, except what has been exported of this step already.

    An export that fails does not take the others along; the first failure is returned.
    """
    failed: LoopwrightError | None = None
    for wanted in job.config.export:
        step = job.trainer.restore(wanted.checkpoint)
        target = wanted.target
        before = newest(Path(job.config.directory), target, averaged=wanted.averaged)
        if before is not None and before.step == step:
            held = before.holds or "what it holds was not recorded"
            say(f"export: {before.path} ({held}) already contains step {step}, skipped")
            continue
        try:
            done = job.trainer.export(**vars(target), averaged=wanted.averaged)
            say(f"export: {worded(done)}")
        except LoopwrightError as error:
            failed = failed or error
            again = f"loopwright export {job.config.directory} --format {target.format}"
            say(f"export: {target.format} failed; the run is complete. To try again: {again}")
    return failed


def _require_extras(config: Config) -> None:
    """Raise before anything is loaded if a configured export lacks its packages."""
    for wanted in config.export:
        require_installed(wanted.format)


@contextlib.contextmanager
def open_job(config: Config, *, fresh: bool = False) -> Iterator[Job]:
    """Build the trainer of a config; Keras uses the config's precision meanwhile."""
    before = keras.config.dtype_policy()
    if before.name != config.precision:
        keras.config.set_dtype_policy(config.precision)
    resources = contextlib.ExitStack()
    if config.code or config.sinks:
        # The user named code of this directory, and so trusts its modules.
        resources.enter_context(registry.importable(Path.cwd()))
    if is_program(config.task):
        resources.enter_context(registry.importable(Path(config.task).parent))
    try:
        with quiet_start():
            tf.config.list_physical_devices()  # prints messages at the first call
        # Before any data: workers must connect before TensorFlow runs anything.
        strategy = strategy_for(config.strategy)
        with quiet_start():
            tf.config.list_logical_devices()
        # Before the data, which may take minutes: a tracker refuses wrong options, a missing extra.
        sinks = [registry.sink(part, Path.cwd()) for part in config.sinks]
        experiment = load_experiment(config)
        trainer = _trainer(config, experiment, strategy, sinks, fresh=fresh)
        yield Job(complete(config, experiment), experiment, trainer, sinks)
        Team(strategy).barrier()
    finally:
        resources.close()
        if before.name != config.precision:
            keras.config.set_dtype_policy(before)


def load_experiment(config: Config) -> Experiment:
    """Return the experiment of a config, with its data loaded."""
    is_own = config.task != DIGITS
    make = registry.load_function(config.task, Path.cwd()) if is_own else _digits()
    options: dict[str, Any] = dict(config.data)
    if config.quick:
        options["quick"] = True
    found = _call("data", make, options)
    if not isinstance(found, Experiment):
        raise ConfigurationError(
            f"{config.title} is not an experiment.",
            expected="a function that returns lw.Experiment(make_task, fit={...})",
            received=f"a function that returns {type(found).__name__}",
            do="return an lw.Experiment",
        )
    return found


def complete(config: Config, experiment: Experiment) -> Config:
    """Return the config with missing values of `fit` taken from the experiment."""
    own = {}
    for name in Fit.model_fields:
        value = experiment.fit.get(name)
        if isinstance(value, bool | int | float | str | Every) and name != "verbose":
            own[name] = str(value) if isinstance(value, Every) else value
    given = config.fit.model_dump(exclude_none=True)
    for one, other in (("epochs", "until"), ("until", "epochs")):
        if one in given:
            own.pop(other, None)
    return file.from_content({**file.to_dict(config), "fit": {**own, **given}})


def data_for_export(job: Job) -> dict[str, Any]:
    """Return the run's own data as arguments of `Trainer.export`."""
    own = job.experiment.fit
    if own.get("x") is None:
        return {}
    return {"data": as_data(own["x"], own.get("y"), own.get("sample_weight"))}


def write_config(config: Config, say: Callable[[str], None], *, fresh: bool = False) -> None:
    """Write `config.yaml`; in a resumed run, report changes and refuse those not allowed.

    `fresh` moves the previous run aside.
    """
    run = Run(config.directory, (), fresh=fresh)
    directory = run.directory
    with run.opened():
        before = _config_of_run(directory)
        if before is not None:
            found = _changes(before, config)
            for change in found:
                say(f"config: {change}")
            if config.on_change == "start_over" and not all(change.is_allowed for change in found):
                say(f"starting over; previous run moved to {run.start_over(0)}")
            else:
                changes.refuse_changes(found)
        file.save(config, directory)


def _config_of_run(directory: Path) -> Config | None:
    """Return the config of a run that has checkpoints; None if there is no such run."""
    return file.saved_in(directory) if Store(directory / "checkpoints").all() else None


def _changes(before: Config, now: Config) -> list[changes.Change]:
    return [change for change in changes.changes(before, now) if change.key != "run_dir"]


def _trainer(
    config: Config,
    experiment: Experiment,
    strategy: tf.distribute.Strategy,
    sinks: Sequence[Sink],
    *,
    fresh: bool,
) -> Trainer:
    def make_task() -> Any:
        options: dict[str, Any] = dict(config.model)
        parameters = inspect.signature(experiment.task).parameters
        keras.utils.set_random_seed(config.seed)
        if "seed" in parameters:
            options.setdefault("seed", config.seed)
        for name in ("loss", "metrics", "optimizer"):
            if getattr(config, name) is not None:
                _require_parameter(name, config, experiment)
        if config.loss is not None:
            options["loss"] = registry.loss(config.loss, Path.cwd())
        if config.metrics is not None:
            options["metrics"] = registry.metrics(config.metrics, Path.cwd())
        if config.optimizer is not None:
            own = None
            if config.optimizer.name == OWN:
                own = _only_optimizer(_call("model", experiment.task, options), config)
                keras.utils.set_random_seed(config.seed)
            options["optimizer"] = registry.optimizer(config.optimizer, own)
        return _call("model", experiment.task, options)

    return Trainer(
        make_task,
        run_dir=config.directory,
        plan=config.plan,
        strategy=strategy,
        seed=config.seed,
        sinks=sinks,
        keep=_rules(config),
        on_nan=config.on_nan,
        exact=config.exact,
        on_change=config.on_change,
        fresh=fresh,
    )


def _only_optimizer(made: Any, config: Config) -> keras.optimizers.Optimizer:
    """Return the optimizer that a task makes by itself, whose options a config changes."""
    held = list(optimizers(made if isinstance(made, Task) else CompiledModel(made)).values())
    if len(held) == 1:
        return held[0]
    raise ConfigurationError(
        f"{config.title} has no single optimizer whose options could be changed.",
        expected="one optimizer, or the name of another: optimizer.name=adam",
        received=f"{len(held)} optimizers",
        do="name the optimizer, or make its options arguments of the task function: model.rate",
    )


def _require_parameter(name: str, config: Config, experiment: Experiment) -> None:
    parameters = inspect.signature(experiment.task).parameters
    if name in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return
    raise ConfigurationError(
        f"{config.title} does not accept `{name}` from a config.",
        expected=f"a task function with an argument `{name}`",
        received=f"arguments: {', '.join(parameters) or 'none'}",
        do=f"remove `{name}` from the config, or add the argument to the function",
    )


def _rules(config: Config) -> Sequence[Rule]:
    rules = [
        KeepLatest(keep.latest)
        if keep.latest is not None
        else KeepBest(keep.best or "", keep.count, keep.mode)
        for keep in config.keep
    ]
    # A saved config contains the default rules, although the user did not ask for them.
    return DEFAULT_KEEP if rules == list(DEFAULT_KEEP) else rules


def fit_arguments(job: Job) -> dict[str, Any]:
    """Return the arguments of `Trainer.fit`: those of the experiment, then those of the config."""
    config, own = job.config, dict(job.experiment.fit)
    given = config.fit.model_dump(exclude_none=True)
    if "until" in given:
        own.pop("epochs", None)
    callbacks = [registry.callback(part, Path(config.directory)) for part in config.callbacks]
    return {**own, **given, "callbacks": [*own.get("callbacks", ()), *callbacks]}


def _call(part: str, make: Callable[..., Any], options: dict[str, Any]) -> Any:
    """Call a user's function with the arguments of the config, if they fit."""
    problem = registry.argument_error(make, options)
    problem = problem or registry.type_error(make, options, is_custom=True)
    if problem is not None:
        known = ", ".join(inspect.signature(make).parameters) or "no arguments"
        raise ConfigurationError(
            f"Invalid options in `{part}` of the config.",
            expected=f"arguments of {getattr(make, '__name__', 'the function')}: {known}",
            received=problem,
            do=f"correct `{part}`, or omit it",
        )
    return make(**options)


def _digits() -> Callable[..., Experiment]:
    try:
        from loopwright import digits
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "The task digits needs packages that are not installed.",
            expected=install_command("examples"),
            received=str(error),
            do="install them, or train your own task: FILE.py or MODULE:FUNCTION",
        ) from error
    return digits.experiment
