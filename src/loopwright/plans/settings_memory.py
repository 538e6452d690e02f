"""The memory of process settings: which were the fastest for a command on this machine.

A step is known only after TensorFlow was imported, when it is too late to choose. So a choice is
remembered by command, machine and versions, with the digest of its step to be checked later.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

from loopwright.plans import cache, processor
from loopwright.plans.settings import Settings


@final
@dataclass(frozen=True)
class SettingsChoice:
    """The settings to start a command by."""

    __pydantic_config__: ClassVar[Any] = cache.STRICT
    step_digest: str
    """Of the step that it trains first; empty if the command could not be measured."""
    default: Settings
    """What the process had without a choice."""
    chosen: Settings
    """The fastest; `default` if none was faster, or the run is too short to compare them."""
    gain: float = 1.0
    """How many times as fast the chosen settings were."""
    run_dir: str = ""
    """Where the command trains: what is recorded there comes first."""


def command_key(kind: str, *parts: Any) -> str:
    """Return the name under which the settings of a command are remembered.

    Machines that share a home directory share this memory, but not what is remembered.

    >>> command_key("run", "train.py", ["--wide"]).partition("-")[0]
    'run'
    """
    from importlib import metadata  # slow to import; --help does not need it

    versions = [metadata.version(name) for name in ("loopwright", "tensorflow", "keras")]
    machine = [processor.name(), processor.vectors(), processor.cores()]
    text = json.dumps([versions, machine, *parts], sort_keys=True, default=str)
    return f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def program_key(program: Sequence[str]) -> str:
    """Return the key of a program of the user, started in this directory."""
    return command_key("run", os.getcwd(), list(program))


def remembered(key: str) -> SettingsChoice | None:
    """Return the choice remembered for a command; None if there is none that can be read."""
    return cache.read("settings", key, SettingsChoice)


def remember(key: str, choice: SettingsChoice) -> None:
    """Write a choice for a command; do nothing where that is not possible."""
    cache.write("settings", key, choice)


def forget(key: str) -> None:
    """Forget the choice of a command: its step has changed."""
    cache.delete("settings", key)
