"""The memory of process settings: which were the fastest for a command on this machine.

A step is known only after TensorFlow was imported, when it is too late to choose. So a choice is
remembered by command, machine and versions, with the digest of its step to be checked later.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

from loopwright import disk
from loopwright.plans import memory, processor, settings
from loopwright.plans.settings import Settings

_FORMAT = 2
_MOST_BYTES = 100_000
_UNREADABLE = (OSError, ValueError, RecursionError, disk.UnsafeFileError)


@final
@dataclass(frozen=True)
class SettingsChoice:
    """The settings to start a command by."""

    identity: str
    """Of its first step, by the settings in `default`."""
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
    with contextlib.suppress(*_UNREADABLE):
        place = _directory()
        if place is not None:
            return parsed(json.loads(disk.read(place, f"{key}.json", _MOST_BYTES)))
    return None


def parsed(content: Any) -> SettingsChoice:
    """Return the choice in the values of a file; raise ValueError for others."""
    from loopwright.plans import records

    found = records.read(records.ChoiceRecord, content)
    default, chosen = map(settings.of_record, (found.default, found.chosen))
    return SettingsChoice(found.identity, default, chosen, found.gain, found.run_dir)


def remember(key: str, choice: SettingsChoice) -> None:
    """Write a choice for a command; do nothing where that is not possible."""
    named = {"default": choice.default.content(), "chosen": choice.chosen.content()}
    content = json.dumps({"format": _FORMAT, **asdict(choice), **named}, indent=2) + "\n"
    with contextlib.suppress(*_UNREADABLE):
        place = _directory()
        if place is not None:
            disk.make_run_directory(place)
            disk.write_whole(place, f"{key}.json", content.encode(), shared=True)


def forget(identity: str) -> None:
    """Forget the choices of all commands that train this kind of step first."""
    place = _directory()
    for key in [] if place is None else [name.removesuffix(".json") for name in disk.names(place)]:
        choice = remembered(key)
        if choice is not None and choice.identity == identity:
            forget_command(key)


def forget_command(key: str) -> None:
    """Forget the choice of a command: its step has changed."""
    place = _directory()
    with contextlib.suppress(*_UNREADABLE):
        if place is not None:
            disk.delete(place, f"{key}.json")


def _directory() -> Path | None:
    plans = memory.cache_directory()
    return None if plans is None else plans.parent / "settings"
