"""Process settings of a config, applied before TensorFlow is imported."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from loopwright import settings

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
    """Set this process up for a training: by its record, by what is remembered, or as it is."""
    content = config.model_dump(mode="json")
    # What decides the step of a config: not where, how long or from what seed it trains.
    parts = {name: content[name] for name in _OF_THE_STEP}
    code = str(Path.cwd()) if config.code else ""
    settings.apply(
        settings.command_key("train", parts, content["fit"]["batch_size"], code),
        "" if fresh else config.directory,
        config.plan,
        is_auto=word == "auto",
        may_measure=may_measure and not config.quick,
    )
