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
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, ClassVar, final

from loopwright import disk, launch, processor
from loopwright.errors import ConfigurationError, LoopwrightError
from loopwright.launch import ONEDNN, THREADS, Settings
from loopwright.plans import cache
from loopwright.plans.comparison import rate_in_words
from loopwright.processes import LineChild
from loopwright.quiet_start import UNQUIET

_ROUNDS, _ROUND_SECONDS = 5, 1.0
_MOST_SECONDS = 600.0
_MUST_BE_FASTER = 1.03  # other settings change bits
_SHORT_SECONDS = 0.0005  # waking a second thread takes as long as the work that it takes over


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


# -- measured --------------------------------------------------------------------------------------


def onednn_is_left_off(environment: Mapping[str, str]) -> bool:
    """Return whether TensorFlow leaves oneDNN off on this processor, and the user has not set it.

    >>> onednn_is_left_off({"TF_ENABLE_ONEDNN_OPTS": "1"})
    False
    """
    return not launch.onednn_by_default() and ONEDNN not in environment


def candidates(
    default: Settings, given: Mapping[str, str], *, step_seconds: float, cores: int
) -> list[Settings]:
    """Return the settings to compare with those of a process; what the user has set stays.

    >>> [other.in_words for other in candidates(Settings(), {}, step_seconds=6e-5, cores=2)]
    ['oneDNN on', 'oneDNN off, 1 intra-op thread']
    >>> candidates(Settings(), {"TF_ENABLE_ONEDNN_OPTS": "0"}, step_seconds=0.1, cores=2)
    []
    """
    others = [] if ONEDNN in given else [replace(default, onednn=not default.onednn)]
    is_open = THREADS["intra_op_threads"] not in given and cores > 1
    if is_open and 0 < step_seconds < _SHORT_SECONDS:
        others.append(replace(default, intra_op_threads=1))
    return others


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
    default = launch.from_environment(given)
    with contextlib.ExitStack() as stack:

        def start(variables: Mapping[str, str]) -> LineChild:
            environment = {**given, **variables, launch.MEASURED: "1"}
            child = LineChild("The measured program", command, environment, _MOST_SECONDS)
            return stack.enter_context(child)

        children = {default: start({})}
        facts = children[default].answer()
        cost_seconds = time.monotonic() - began + 2 * _ROUNDS * _ROUND_SECONDS
        others: list[Settings] = []
        if not (facts["has_gpu"] or (must_pay and 0.2 * facts["run_seconds"] < cost_seconds)):
            seconds, cores = facts["step_seconds"], processor.cores() or 1
            others = candidates(default, given, step_seconds=seconds, cores=cores)
        children |= {other: start(other.variables()) for other in others}
        for other in others:
            children[other].answer()
        rates: dict[Settings, list[float]] = {settings: [] for settings in children}
        for settings, child in [*children.items()] * _ROUNDS if others else ():
            child.ask(_ROUND_SECONDS)
            rates[settings].append(child.answer()["rate"])
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


def _say(text: str) -> None:
    print(f"loopwright: {text}", file=sys.stderr, flush=True)


# -- applied ---------------------------------------------------------------------------------------


def apply(
    key: str,
    command: Sequence[str],
    run_dir: str | None = None,
    plan: str = "",
    *,
    is_auto: bool = True,
) -> None:
    """Set this process up for a training, if it is the command line, before TensorFlow is imported.

    What the user has set in the shell is left alone. Not `is_auto`: nothing is set or measured.
    """
    if not launch.is_command_line():
        return  # another program has called a command: its process is not ours to set up
    if launch.is_measured():
        launch.apply(None, key)
    else:
        launch.apply(*(decide(key, command, run_dir, plan) if is_auto else (None, "-")))


def decide(
    key: str, command: Sequence[str], run_dir: str | None = None, plan: str = ""
) -> tuple[Settings | None, str]:
    """Return the settings to start by, and the key of the choice that they are from.

    Recorded settings come first: in the file `plan`, or in a run directory (None: that of the
    remembered choice). Then remembered ones. Without any, `command` is measured once where
    TensorFlow leaves oneDNN off.
    """
    choice = remembered(key)
    if run_dir is None:
        run_dir = "" if choice is None else choice.run_dir
    given = _in_plan_file(plan) or recorded(run_dir, last_step(run_dir))
    if given is not None:
        return given, "-"
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
    from loopwright.plans.record import recorded as plans_in

    try:
        history = plans_in(Path(directory)) if step else None
    except disk.UnsafeFileError:
        return None  # refused when the run is opened
    return None if history is None else history.settings_after(step - 1)


def _in_plan_file(plan: str) -> Settings | None:
    """Return the settings in the plan history that a config names; they are the same throughout."""
    from loopwright.plans.record import load

    try:
        return load(plan).settings_after(0) if plan.endswith(".json") else None
    except ConfigurationError:
        return None  # refused when the trainer is made
