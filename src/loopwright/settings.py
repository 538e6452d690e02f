"""Which process settings a command starts by: recorded, remembered, or measured.

Nothing here imports TensorFlow, which reads them when it is imported. A step is known only after
that, when it is too late to choose: so the fastest settings are remembered by command, machine and
versions, with the digest of their step to be checked later.
"""

import contextlib
import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, ClassVar, final

from loopwright import disk, launch, processor
from loopwright.errors import ConfigurationError, LoopwrightError
from loopwright.launch import Settings, candidates, from_environment
from loopwright.launch import onednn_is_left_off as onednn_is_left_off
from loopwright.plans import cache, plan_history
from loopwright.plans.comparison import rate_in_words
from loopwright.processes import LineChild, python
from loopwright.quiet_start import UNQUIET

_ROUNDS, _ROUND_SECONDS = 5, 1.0
_MOST_SECONDS = 600.0
_MUST_BE_FASTER = 1.03  # other settings change bits


# -- the memory ----------------------------------------------------------------------------------


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


# -- the choice ----------------------------------------------------------------------------------


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
    command: Sequence[str], *, must_pay: bool = False
) -> tuple[SettingsChoice, dict[Settings, list[float]]]:
    """Remember the fastest settings of a command; return them with the rates of each round.

    `must_pay`: nothing is compared if the run is too short to gain by it. That is remembered too.
    """
    given, began = launch.unmarked(os.environ), time.monotonic()
    default = from_environment(given)
    with contextlib.ExitStack() as stack:
        children = {default: stack.enter_context(_child(command, given))}
        facts = _answer(children[default])
        cost_seconds = time.monotonic() - began + 2 * _ROUNDS * _ROUND_SECONDS
        cores = processor.cores() or 1
        others = candidates(default, given, step_seconds=facts["step_seconds"], cores=cores)
        if facts["has_gpu"] or (must_pay and 0.2 * facts["run_seconds"] < cost_seconds):
            others = []
        for other in others:
            child = _child(command, {**given, **other.variables()})
            children[other] = stack.enter_context(child)
        for other in others:
            _answer(children[other])
        rates: dict[Settings, list[float]] = {settings: [] for settings in children}
        for settings, child in [*children.items()] * _ROUNDS if others else ():
            child.ask(_ROUND_SECONDS)
            rates[settings].append(_answer(child)["rate"])
    chosen, gain = fastest(default, rates) if others else (default, 1.0)
    choice = SettingsChoice(facts["step_digest"], default, chosen, gain, facts["run_dir"])
    remember(facts["key"], choice)
    return choice, rates


def find(command: Sequence[str]) -> str:
    """Measure a command and remember its fastest settings; return a table of the rates."""
    choice, rates = measure(command)
    words = {s: f"{s.in_words}{' (default)' * (s == choice.default)}" for s in rates}
    width = max(map(len, words.values()))
    rows = [f"{words[s]:{width}}  {rate_in_words(turns)}" for s, turns in rates.items() if turns]
    rows = rows or ["nothing to compare: there is a GPU, or the shell has set the variables"]
    last = f"remembered: {choice.chosen.in_words}"
    return "\n".join([f"{'settings':{width}}  steps/s", *rows, last])


def measure_once(command: Sequence[str], key: str) -> SettingsChoice:
    """Measure a command that nothing is remembered of, and say so; it is not measured again."""
    _say("TensorFlow leaves oneDNN off on this processor; measuring once what is faster")
    try:
        return measure(command, must_pay=True)[0]
    except (LoopwrightError, OSError, ValueError, KeyError) as error:
        _say(f"the settings could not be measured ({error})")
        nothing = SettingsChoice("", Settings(), Settings())
        remember(key, nothing)
        return nothing


def apply(key: str, run_dir: str, plan: str, *, is_auto: bool, may_measure: bool) -> None:
    """Set this process up for a training, if it is the command line, before TensorFlow is imported.

    What the user has set in the shell is left alone. Not `is_auto`: nothing is set or measured.
    """
    if not launch.is_command_line():
        return  # another program has called a command: its process is not ours to set up
    if launch.is_measured() or not is_auto:
        launch.apply(None, key if launch.is_measured() else "-")
        return
    given = _in_plan_file(plan) or recorded(run_dir, last_step(run_dir))
    launch.apply(*decide(given, key, [*python(), *sys.orig_argv[1:]] if may_measure else []))


def variables_for(program: Sequence[str], command: Sequence[str]) -> dict[str, str]:
    """Return the variables by which this process replaces itself with a program of the user."""
    key = program_key(program)
    choice = remembered(key)
    given = None if choice is None else recorded(choice.run_dir, last_step(choice.run_dir))
    return launch.marked(os.environ, *decide(given, key, command))


def decide(given: Settings | None, key: str, command: Sequence[str]) -> tuple[Settings | None, str]:
    """Return the settings to start by, and the key of the choice that they are from.

    Recorded settings come first, then remembered ones. Without any, `command` is measured once
    where TensorFlow leaves oneDNN off.
    """
    if given is not None:
        return given, "-"
    choice = remembered(key)
    # Not a worker or a trial of a search: they are one of several.
    is_alone = "TF_CONFIG" not in os.environ and UNQUIET not in os.environ
    if choice is None and command and is_alone and onednn_is_left_off(os.environ):
        choice = measure_once(command, key)
    if choice is None:
        return None, "-"
    return None if choice.chosen == choice.default else choice.chosen, key


def last_step(directory: str | os.PathLike[str]) -> int:
    """Return the step of the newest checkpoint of a run, by its name; 0 if there is none."""
    try:
        names = disk.names(Path(directory), "checkpoints") if directory else []
    except OSError:
        return 0
    return max((int(n[5:]) for n in names if re.fullmatch("step-[0-9]{8,}", n)), default=0)


def recorded(directory: str | os.PathLike[str], step: int) -> Settings | None:
    """Return the settings that a run has recorded for a step, if any."""
    try:
        history = plan_history.recorded(Path(directory)) if step else None
    except disk.UnsafeFileError:
        return None  # refused when the run is opened
    return None if history is None else history.settings_after(step - 1)


def _in_plan_file(plan: str) -> Settings | None:
    """Return the settings in the plan history that a config names; they are the same throughout."""
    try:
        return plan_history.load(plan).settings_after(0) if plan.endswith(".json") else None
    except ConfigurationError:
        return None  # refused when the trainer is made


def _child(command: Sequence[str], environment: Mapping[str, str]) -> LineChild:
    variables = {**environment, launch.MEASURED: "1"}
    return LineChild("The measured program", command, variables, _MOST_SECONDS)


def _answer(child: LineChild) -> dict[str, Any]:
    answer = child.answer()
    if "failure" in answer:
        raise LoopwrightError(f"The measured program failed: {answer['failure']}")
    return answer


def _say(text: str) -> None:
    print(f"loopwright: {text}", file=sys.stderr, flush=True)
