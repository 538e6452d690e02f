"""How a process was launched: which settings Loopwright gave it, and by which command.

Settings are decided before TensorFlow is imported, or not at all. `train`, `resume` and `run` set
variables and mark the process by its PID: an exec keeps the mark, children do not count as marked.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from loopwright.plans.settings import Settings

MARK = "LOOPWRIGHT_SETTINGS"
"""The PID of the process, the key of a remembered choice or "-", the variables that were set."""
PARENT = "LOOPWRIGHT_PARENT"
"""In the environment of a child that answers: the PID of its parent, and a socket to it."""
MEASURED = "LOOPWRIGHT_MEASURED"
"""Set for a child that answers how fast it trains."""


def unmarked(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables as the user has set them, without those of a Loopwright above."""
    ours = [*environment.get(MARK, "").split()[2:], MARK, PARENT, MEASURED]
    return {name: value for name, value in environment.items() if name not in ours}


def marked(
    environment: Mapping[str, str], settings: Settings | None, key: str = "-"
) -> dict[str, str]:
    """Return variables for this process with these settings; None: as TensorFlow decides.

    What the user has set is left as it is. `key`: of the remembered choice that is applied.

    >>> given = {"TF_ENABLE_ONEDNN_OPTS": "0"}
    >>> marked(given, Settings(True, intra_op_threads=1))["TF_ENABLE_ONEDNN_OPTS"]
    '0'
    """
    given = unmarked(environment)
    wanted = {} if settings is None else settings.variables()
    ours = {name: value for name, value in wanted.items() if name not in given}
    return {**given, **ours, MARK: " ".join([str(os.getpid()), key, *ours])}


def apply(settings: Settings | None, key: str = "-") -> None:
    """Give this process the settings, before TensorFlow is imported."""
    variables = marked(os.environ, settings, key)
    for name in {*os.environ} - {*variables, PARENT, MEASURED}:
        del os.environ[name]
    os.environ.update(variables)


def own_key() -> str | None:
    """Return the key of the choice that this process has; "-": none; None: not started by us."""
    words = os.environ.get(MARK, "").split()
    return words[1] if len(words) > 1 and words[0] == str(os.getpid()) else None


def parent_socket() -> int | None:
    """Return the socket of this process to its parent; None unless it was started to answer."""
    parent, _, descriptor = os.environ.get(PARENT, "").partition(" ")
    return int(descriptor) if parent == str(os.getppid()) and descriptor.isdecimal() else None


def is_measured() -> bool:
    """Return whether this process was started to answer how fast it trains."""
    return MEASURED in os.environ and parent_socket() is not None


def program() -> list[str]:
    """Return the program of this process and its arguments, as `loopwright run` takes them."""
    words = sys.orig_argv[1:]
    while words and words[0].startswith("-") and words[0] != "-m":
        words = words[2 if words[0] in ("-X", "-W") else 1 :]
    return words


def is_command_line() -> bool:
    """Return whether this process is the program `loopwright`, and not one that calls it.

    >>> is_command_line()
    False
    """
    path = Path(sys.argv[0]) if sys.argv else Path()
    return path.stem == "loopwright" or path.parts[-2:] == ("loopwright", "__main__.py")
