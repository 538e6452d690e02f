"""Process settings of a command, applied before TensorFlow is imported."""

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from loopwright import disk
from loopwright.cli import settings_command
from loopwright.distribute.supervisor import python
from loopwright.errors import ConfigurationError
from loopwright.plans import launch, plan_history, settings_memory
from loopwright.plans.settings import Settings, onednn_by_default

if TYPE_CHECKING:
    from loopwright.config import schema

_OF_THE_STEP = (
    *("task", "quick", "model", "data", "optimizer", "loss", "metrics"),
    *("precision", "strategy"),
)

SettingsWord = Literal["auto", "default"]
SettingsOption = Annotated[
    SettingsWord,
    typer.Option(
        "--settings",
        help="Process settings such as oneDNN: auto uses those of the run, or the fastest known; "
        "default leaves them as TensorFlow decides.",
    ),
]


def prepare(
    config: "schema.Config", word: SettingsWord, *, fresh: bool, may_measure: bool = True
) -> None:
    """Set this process up for a training: by its record, by what is remembered, or as it is.

    What the user has set in the shell is left alone. With "default" nothing is set or measured.
    """
    if not launch.is_command_line():
        return  # another program has called a command: its process is not ours to set up
    key = _key(config)
    if launch.is_measured():
        launch.apply(None, key)
    elif word == "default":
        launch.apply(None)
    else:
        step = 0 if fresh else last_step(Path(config.directory))
        given = _asked_for(config.plan, step) or recorded(config.directory, step)
        may_measure = may_measure and not config.quick
        command = [*python(), *sys.orig_argv[1:]] if may_measure else []
        launch.apply(*decide(given, key, command))


def decide(
    given: Settings | None, key: str, command: list[str], *, is_on: bool | None = None
) -> tuple[Settings | None, str]:
    """Return the settings to start by, and the key of the choice that they are from.

    Recorded settings come first, then remembered ones. `command` is measured if there are none.
    """
    if given is not None:
        return given, "-"
    choice = settings_memory.remembered(key)
    if choice is None and command:
        is_on = onednn_by_default() if is_on is None else is_on
        choice = settings_command.measure_once(command, is_on=is_on)
    if choice is None:
        return None, "-"
    return None if choice.chosen == choice.default else choice.chosen, key


def last_step(directory: Path) -> int:
    """Return the step of the newest checkpoint of a run, by its name; 0 if there is none."""
    try:
        names = disk.names(directory, "checkpoints")
    except OSError:
        return 0
    return max((int(n[5:]) for n in names if re.fullmatch("step-[0-9]{8,}", n)), default=0)


def recorded(directory: str | os.PathLike[str], step: int) -> Settings | None:
    """Return the settings that a run has recorded for the steps after `step`, if any."""
    try:
        history = plan_history.recorded(Path(directory)) if step else None
    except disk.UnsafeFileError:
        return None  # refused when the run is opened
    return None if history is None else history.settings_after(step)


def _asked_for(plan: str, step: int) -> Settings | None:
    """Return the settings in the plan history that a config names, for the steps after `step`."""
    if not plan.endswith(".json"):
        return None
    try:
        return plan_history.load(plan).settings_after(step)
    except ConfigurationError:
        return None  # refused when the trainer is made


def _key(config: "schema.Config") -> str:
    """Return the key of what decides a config's step: not where, how long or from what seed."""
    content = config.model_dump(mode="json")
    code = str(Path.cwd()) if config.code else ""
    parts = {name: content[name] for name in _OF_THE_STEP}
    return settings_memory.command_key("train", parts, content["fit"]["batch_size"], code)
