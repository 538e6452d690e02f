"""`loopwright run`: a program of the user, by the process settings measured for it.

The program replaces this process, so that its exit code, signals, terminal and arguments are its
own. Nothing here imports TensorFlow.
"""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from loopwright.cli import process_settings
from loopwright.cli.process_settings import SettingsOption, require_word
from loopwright.errors import ConfigurationError, message
from loopwright.fit.settings_trial import Child
from loopwright.plans import launch, settings, settings_candidate, settings_memory
from loopwright.plans.duel import ROUND_SECONDS, Duel

_MOST_START_SECONDS = 600.0
_MOST_ROUND_SECONDS = 120.0


def run(
    program: Annotated[
        list[str],
        typer.Argument(
            metavar="SCRIPT [ARGS]", help="A Python script and its arguments, or -m MODULE [ARGS]."
        ),
    ],
    probe: Annotated[
        bool,
        typer.Option(
            "--probe",
            help="First start the program twice up to its first fit, measure which settings are "
            "faster, and remember it.",
        ),
    ] = False,
    word: SettingsOption = "auto",
) -> None:
    """Run a program with the process settings that were measured for it.

    Example: loopwright run --probe train.py --width 64
    """
    require_word(word)
    command = [sys.executable, *_checked(program)]
    given = launch.unmarked(os.environ)
    if word == "default":
        _replace(command, given)
    key = settings_memory.command_key("run", os.getcwd(), program)
    if probe:
        _probe(command, given, key)
    _replace(command, launch.marked(given, process_settings.remembered(key), key=key))


def _checked(program: Sequence[str]) -> Sequence[str]:
    is_module = program[0] == "-m"
    if is_module and len(program) < 2:
        raise ConfigurationError(
            message(
                "No module to run.",
                expected="loopwright run -m MODULE [ARGS]",
                received="-m alone",
                do="name the module",
            )
        )
    if not is_module and not Path(program[0]).exists():
        raise ConfigurationError(
            message(
                "The program does not exist.",
                expected="a Python script, or -m MODULE",
                received=program[0],
                do="check the path",
            )
        )
    return program


def _replace(command: list[str], environment: Mapping[str, str]) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], command, dict(environment))


def _probe(command: list[str], given: Mapping[str, str], key: str) -> None:
    """Measure other settings for a program and remember the faster; tell why if that fails."""
    measured = (settings.ONEDNN, settings.THREADS["intra_op_threads"])
    if settings.set_in(given).issuperset(measured):
        _say(f"nothing to measure: {' and '.join(measured)} are set")
        return
    children: list[Child] = []
    try:
        children.append(Child(command, given, plan="auto"))
        base = _answer(children[0], _MOST_START_SECONDS)
        now = settings.parsed(base["settings"])
        candidate = settings_candidate.parsed(base["candidate"])
        if candidate is None:
            _say(f"nothing to measure: no settings are likely to be faster than {now.in_words}")
            return
        variables = {**given, **candidate.settings.variables()}
        children.append(Child(command, variables, candidate.plan))
        _answer(children[1], _MOST_START_SECONDS)
        duel = Duel()
        while duel.outcome == "open":
            for child, rates in zip(children, (duel.own, duel.challenger), strict=True):
                child.ask(ROUND_SECONDS)
                found = _answer(child, _MOST_ROUND_SECONDS)
                rates.append(found["steps"] / found["seconds"])
        choice = settings_memory.decided(base["identity"], now, candidate, duel, base["title"])
        settings_memory.remember(choice, key)
        _say(f"{choice.why}: starting with {choice.chosen.in_words}")
    except (ChildProcessError, OSError, ValueError, KeyError, TypeError) as error:
        _say(f"the settings could not be measured ({error})")
    finally:
        for child in children:
            child.end()


def _answer(child: Child, most_seconds: float) -> dict[str, Any]:
    ends = time.monotonic() + most_seconds
    while (found := child.answer(wait_seconds=1.0)) is None:
        if time.monotonic() > ends:
            raise ChildProcessError("the program did not reach its first fit in time")
    return found


def _say(text: str) -> None:
    typer.echo(f"loopwright run: {text}", err=True)
