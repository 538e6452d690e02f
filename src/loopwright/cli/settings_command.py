"""Process settings, measured: the same program in child processes that take turns.

`loopwright find settings` prints a table and remembers the fastest. Nothing imports TensorFlow.
"""

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Annotated, Any, final

import typer

from loopwright.cli.line_child import LineChild
from loopwright.compat.quiet_start import UNQUIET
from loopwright.distribute.supervisor import python
from loopwright.errors import LoopwrightError
from loopwright.plans import launch, processor, settings, settings_memory
from loopwright.plans.memory import rate_in_words
from loopwright.plans.settings import Settings
from loopwright.plans.settings_memory import SettingsChoice

_ROUNDS, _ROUND_SECONDS = 5, 1.0
_MOST_SECONDS = 600.0
_MUST_BE_FASTER = 1.03  # other settings change bits


@final
@dataclass(frozen=True)
class Measured:
    """The choice for a command, and the rates that decided it."""

    key: str
    choice: SettingsChoice
    rates: Mapping[Settings, Sequence[float]] = field(default_factory=dict[Settings, list[float]])
    """Steps per second in each round; empty if there was nothing to compare."""

    def table(self) -> str:
        """Return a line for each of the settings, with the rates."""
        words = {s: f"{s.in_words}{' (default)' * (s == self.choice.default)}" for s in self.rates}
        width = max(map(len, words.values()))
        rows = [f"{words[s]:{width}}  {rate_in_words(tuple(r))}" for s, r in self.rates.items()]
        return "\n".join([f"{'settings':{width}}  steps/s", *rows])


def fastest(default: Settings, rates: Mapping[Settings, Sequence[float]]) -> tuple[Settings, float]:
    """Return the settings to choose and their gain: others only if faster in every round.

    Both turns of a round follow each other: what slows the machine for seconds slows both.

    >>> fastest(Settings(), {Settings(): [48.0, 47.0], Settings(onednn=True): [70.0, 66.0]})[0]
    Settings(onednn=True, xla_flags=(), intra_op_threads=0, inter_op_threads=0)
    """
    gains = {
        other: [theirs / own for theirs, own in zip(turns, rates[default], strict=True)]
        for other, turns in rates.items()
    }
    best = max(gains, key=lambda other: median(gains[other]))
    is_faster = min(gains[best]) > 1 and median(gains[best]) > _MUST_BE_FASTER
    return (best, median(gains[best])) if is_faster else (default, 1.0)


def measure(
    command: Sequence[str], *, is_worth: Callable[[float, float], bool] = lambda run, start: True
) -> Measured:
    """Return the fastest settings for a command; raise if it cannot be measured.

    `is_worth`: whether to compare at all, given the seconds of the run and of a start.
    """
    given, began = launch.unmarked(os.environ), time.monotonic()
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(_child(command, given))
        facts = _answer(first)
        default = settings.parsed(facts["settings"])
        choice = SettingsChoice(facts["identity"], default, default, run_dir=facts["run_dir"])
        others = settings.candidates(
            default, given, step_seconds=facts["step_seconds"], cores=processor.cores() or 1
        )
        is_pointless = facts["has_gpu"] or not others
        if is_pointless or not is_worth(facts["run_seconds"], time.monotonic() - began):
            return Measured(facts["key"], choice)
        children = {default: first} | {
            other: stack.enter_context(_child(command, {**given, **other.variables()}))
            for other in others
        }
        for other in others:
            _answer(children[other])
        rates: dict[Settings, list[float]] = {each: [] for each in children}
        for _ in range(_ROUNDS):
            for each, child in children.items():
                child.ask(_ROUND_SECONDS)
                rates[each].append(_answer(child)["rate"])
    chosen, gain = fastest(default, rates)
    choice = SettingsChoice(choice.identity, default, chosen, gain, choice.run_dir)
    return Measured(facts["key"], choice, rates)


def measure_once(command: Sequence[str], *, is_on: bool) -> SettingsChoice | None:
    """Measure a command with nothing remembered where TensorFlow leaves oneDNN off; say so.

    Not again: also that the run is too short to pay for it is remembered.
    """
    given = launch.unmarked(os.environ)
    is_one_of_several = "TF_CONFIG" in given or UNQUIET in given  # a worker; a trial of a search
    if is_on or settings.ONEDNN in given or is_one_of_several:
        return None
    _say("TensorFlow leaves oneDNN off on this processor; measuring once what is faster")

    def is_worth(run_seconds: float, start_seconds: float) -> bool:
        return 0.2 * run_seconds > start_seconds + 2 * _ROUNDS * _ROUND_SECONDS

    try:
        measured = measure(command, is_worth=is_worth)
    except (LoopwrightError, OSError, ValueError, KeyError) as error:
        _say(f"the settings could not be measured ({error})")
        return None
    settings_memory.remember(measured.key, measured.choice)
    return measured.choice


def find_settings(
    program: Annotated[
        list[str],
        typer.Argument(
            metavar="PROGRAM",
            help="A script and its arguments, -m MODULE [ARGS], or train and its arguments.",
        ),
    ],
) -> None:
    """Measure which process settings train a program fastest, and remember it.

    Starts the program two or three times up to its first fit; nothing is written. Afterwards
    `loopwright run` and `loopwright train` start it by the fastest settings.

    Example: loopwright find settings train.py --width 64
    """
    from loopwright.cli.run_command import command_of

    is_train = program[0] == "train"
    command = [*python(), "-m", "loopwright", *program] if is_train else command_of(program)
    measured = measure(command)
    if not measured.rates:
        _say(f"nothing to compare with {measured.choice.default.in_words}")
        return
    typer.echo(measured.table())
    settings_memory.remember(measured.key, measured.choice)
    typer.echo(f"remembered: {measured.choice.chosen.in_words}")


def _child(command: Sequence[str], environment: Mapping[str, str]) -> LineChild:
    variables = {**environment, launch.MEASURED: "1"}
    return LineChild("The measured program", command, variables, _MOST_SECONDS)


def _answer(child: LineChild) -> dict[str, Any]:
    found = child.answer()
    if "failure" in found:
        raise LoopwrightError(f"The measured program failed: {found['failure']}")
    return found


def _say(text: str) -> None:
    typer.echo(f"loopwright: {text}", err=True)
