"""Process settings of a command, set before TensorFlow is imported."""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loopwright import disk
from loopwright.errors import ConfigurationError, message
from loopwright.plans import launch, plan_history, settings_memory
from loopwright.plans.settings import Settings

if TYPE_CHECKING:
    from loopwright.config import schema

_WORDS = ("auto", "default")
_OF_THE_STEP = (
    *("task", "quick", "model", "data", "optimizer", "loss", "metrics"),
    *("precision", "strategy"),
)

SettingsOption = Annotated[
    str,
    typer.Option(
        "--settings",
        metavar="auto|default",
        help="Process settings such as oneDNN: auto measures them and uses the fastest; default "
        "leaves them as TensorFlow decides.",
    ),
]


def require_word(word: str) -> None:
    """Raise for an unknown value of --settings."""
    if word not in _WORDS:
        raise ConfigurationError(
            message(
                "Unknown process settings.",
                expected=" or ".join(_WORDS),
                received=f"--settings {word}",
                do="omit --settings; to set oneDNN yourself, set TF_ENABLE_ONEDNN_OPTS to 0 or 1",
            )
        )


def prepare(config: "schema.Config", word: str, *, fresh: bool) -> None:
    """Set this process up for a training: by its record, by what is remembered, or as it is.

    What the user has set in the shell is left alone. With "default" nothing is set or measured.
    """
    require_word(word)
    launched = launch.own()
    if launched is not None and launched.restarts:
        return  # it has replaced itself, and has the settings that it wants
    if not launch.is_command_line():
        return  # another program has called a command: it is not ours to replace
    if word == "default":
        launch.apply(os.environ, launch.unmarked(os.environ))
        return
    key = _key(config)
    directory = Path(config.directory)
    step = 0 if fresh else last_step(directory)
    found = asked_for(config.plan, step) or (recorded(directory, step) if step else None)
    launch.apply(os.environ, launch.marked(os.environ, found or remembered(key), key=key))


def remembered(key: str) -> Settings | None:
    """Return the settings that were measured to be faster for a command; None: TensorFlow's own.

    A file of another version, or a damaged one, is ignored with a line that says so.
    """
    known = settings_memory.for_command(key)
    if known is None and (why := settings_memory.ignored_for_command(key)):
        typer.echo(f"loopwright: {why}", err=True)
    return known.chosen if known is not None and known.is_other_faster else None


def last_step(directory: Path) -> int:
    """Return the step of the newest checkpoint of a run, by its name; 0 if there is none."""
    try:
        names = disk.names(directory, "checkpoints")
    except OSError:
        return 0
    return max((int(n[5:]) for n in names if re.fullmatch("step-[0-9]{8,}", n)), default=0)


def recorded(directory: Path, step: int) -> Settings | None:
    """Return the settings that a run has recorded for the steps after `step`, if any."""
    try:
        history = plan_history.recorded(directory)
    except disk.UnsafeFileError:
        return None  # refused when the run is opened
    return None if history is None else history.settings_after(step)


def asked_for(plan: str, step: int) -> Settings | None:
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
