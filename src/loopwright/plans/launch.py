"""How a process was launched: which variables Loopwright set, and if it may replace itself.

`loopwright train`, `resume` and `run` set process settings before TensorFlow is imported, and mark
the process. A marked process may replace itself by `os.execve`, with other settings: the PID, the
terminal and the arguments stay. Children inherit the variables, but not the mark of this PID.
"""

import os
import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

from loopwright.plans.settings import Settings, set_in

_MOST_RESTARTS = 4
MARK = "LOOPWRIGHT_LAUNCHED"
TRIAL = "LOOPWRIGHT_TRIAL"
"""In the environment of a trial's child: the PID of its parent, two file descriptors, a plan."""


@final
@dataclass(frozen=True)
class Launch:
    """The mark of a process that Loopwright launched.

    >>> Launch(process=7, key="ab", restarts=1, variables=("X",)).text()
    '7 1 ab X'
    """

    process: int
    key: str = "-"
    """What was launched, to remember settings for its next start."""
    restarts: int = 0
    """How often the process has replaced itself."""
    variables: tuple[str, ...] = ()
    """What Loopwright has set; everything else was set by the user."""

    def text(self) -> str:
        """Return the value of the variable `MARK`."""
        return " ".join(map(str, [self.process, self.restarts, self.key, *self.variables]))


def read(environment: Mapping[str, str]) -> Launch | None:
    """Return the mark in these variables, of this process or of one above it."""
    match environment.get(MARK, "").split():
        case [process, restarts, key, *variables] if (process + restarts).isdecimal():
            return Launch(int(process), key, int(restarts), tuple(variables))
        case _:
            return None


def own(environment: Mapping[str, str] = os.environ) -> Launch | None:
    """Return the mark of this process; None if it was started in another way."""
    found = read(environment)
    return found if found is not None and found.process == os.getpid() else None


def may_restart(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether this process may replace itself to be faster: once per start."""
    found = own(environment)
    return found is not None and found.restarts == 0 and not is_interactive()


def is_interactive() -> bool:
    """Return whether someone types into this process: a prompt, IPython, a notebook.

    What was typed so far would be lost in a process that replaces this one, and a trial's child
    would wait for it to be typed again.

    >>> is_interactive()
    False
    """
    return bool(sys.flags.interactive) or hasattr(sys, "ps1")


def may_follow(
    recorded: Settings, now: Settings, environment: Mapping[str, str] = os.environ
) -> bool:
    """Return whether this process may replace itself to follow the record of a run.

    More than once: a run whose newest checkpoint is damaged goes back to earlier settings, and
    then forward again. The limit is for a machine on which a variable has no effect. A variable
    that the user has set is not changed.
    """
    found = own(environment)
    is_open = not recorded.changed_from(now) & set_in(unmarked(environment))
    is_ours = found is not None and found.restarts < _MOST_RESTARTS
    return is_ours and is_open and not is_interactive()


def unmarked(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables as the user has set them, without those of a Loopwright above."""
    found = read(environment)
    ours = set() if found is None else {MARK, *found.variables}
    return {name: value for name, value in environment.items() if name not in ours}


def marked(
    environment: Mapping[str, str],
    settings: Settings | None,
    *,
    key: str = "-",
    restarts: int = 0,
    process: int | None = None,
) -> dict[str, str]:
    """Return variables for a process that runs by these settings; None: as TensorFlow decides.

    What the user has set is left as it is.
    """
    given = unmarked(environment)
    wanted = {} if settings is None else settings.variables()
    ours = {name: value for name, value in wanted.items() if name not in set_in(given)}
    launched = Launch(process or os.getpid(), key, restarts, tuple(ours))
    return {**given, **ours, MARK: launched.text()}


def apply(environment: MutableMapping[str, str], wanted: Mapping[str, str]) -> None:
    """Give this process the variables, before TensorFlow is imported."""
    for name in [name for name in environment if name not in wanted]:
        del environment[name]
    environment.update(wanted)


@final
@dataclass(frozen=True)
class Trial:
    """What the child of a settings trial was told by its parent."""

    asked: int
    """The file descriptor of the questions."""
    answered: int
    plan: str
    """The plan to train by: a word, or "auto" for the best one that can be found."""


def trial() -> Trial | None:
    """Return what this process was told as the child of a trial; its own children are not."""
    parent, *told = os.environ.get(TRIAL, "").split() or [""]
    if parent != str(os.getppid()) or len(told) != 3:
        return None
    return Trial(int(told[0]), int(told[1]), told[2])


def command() -> list[str]:
    """Return the command that started this process, with its interpreter and all options."""
    return [sys.executable, *sys.orig_argv[1:]]


def is_command_line() -> bool:
    """Return whether this process is the program `loopwright`, and not one that calls it.

    >>> is_command_line()
    False
    """
    path = Path(sys.argv[0]) if sys.argv else Path()
    return path.stem == "loopwright" or path.parts[-2:] == ("loopwright", "__main__.py")


def restart_variables(settings: Settings) -> dict[str, str]:
    """Return the variables with which this process replaces itself."""
    found = own()
    key = "-" if found is None else found.key
    restarts = 1 if found is None else found.restarts + 1
    return marked(os.environ, settings, key=key, restarts=restarts)
