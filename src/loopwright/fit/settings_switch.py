"""When a run changes its process settings: measured, remembered, or as its record says.

Settings are fixed for a process, so a run that changes them is saved, records the change, and
replaces its process (`restart`). A kill at any moment of this leaves a run that resumes: before the
record is written by the old settings, after it by the new ones.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NoReturn, final

from loopwright.events import Trained
from loopwright.fit.leg import Leg
from loopwright.fit.settings_trial import Child, SettingsTrial
from loopwright.loop import signals as signals_of
from loopwright.loop.signals import Signals
from loopwright.plans import launch, settings_memory
from loopwright.plans.duel import is_worth
from loopwright.plans.settings import Settings
from loopwright.plans.settings_candidate import Candidate, candidate
from loopwright.plans.settings_memory import SettingsChoice
from loopwright.task.task import class_name


@final
@dataclass(frozen=True)
class Switch:
    """What a stop of the run has decided about its settings."""

    note: str
    why: str = ""
    """The rates that decided it, if it was measured."""
    settings: Settings | None = None
    """What the run continues by; None: as before."""
    plan: str | None = None
    """The plan that was measured with them, as a word; None: as recorded, or to be measured."""
    is_missed: bool = False
    """Whether the record of the run asks for settings that this process cannot have."""


@final
class SettingsSwitch:
    """Asked at each stop of a leg whether its process should run by other settings."""

    def __init__(
        self, leg: Leg, signals: Signals, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._leg, self._signals, self._clock = leg, signals, clock
        self._selector = leg.parts.selector
        # Of all threads together: about how long a start takes on a machine with a few cores.
        self._start_seconds = min(time.process_time(), 60.0)
        self._trial: SettingsTrial | None = None
        self._candidate: Candidate | None = None
        self._is_decided = not (_is_alone(leg) and launch.may_restart())
        self._is_missed = self._is_known = False

    def after(self, trained: Trained) -> Switch | None:
        """Return what is to be done after some steps; None: nothing."""
        recorded = self._selector.settings_after(trained.step)
        if recorded is not None:
            if recorded.changed_from(self._selector.settings) and not self._is_missed:
                return self._follow(recorded)
            self._is_known = True
        if self._is_decided:
            return None
        if self._trial is None or self._candidate is None:
            return self._begun(trained)
        outcome = self._trial.after(trained)
        return None if outcome == "open" else self._ended(self._trial, self._candidate, outcome)

    def end(self) -> None:
        """End a trial that is under way."""
        if self._trial is not None:
            self._trial.end()
            self._trial = None

    def _follow(self, recorded: Settings) -> Switch:
        if _is_alone(self._leg) and launch.may_follow(recorded, self._selector.settings):
            return Switch(f"continuing with {recorded.in_words}, as recorded", settings=recorded)
        self._is_missed = True
        now = self._selector.settings.in_words
        note = f"the record of this run continues with {recorded.in_words}, this process with {now}"
        return Switch(note, is_missed=True)

    def _begun(self, trained: Trained) -> Switch | None:
        """Start a trial if it is due; return a change that was measured before."""
        selector = self._selector
        default = None if self._is_known else self._default_of_another_step()
        if default is not None:
            self._is_decided = True
            return Switch(
                "the remembered process settings were measured for another step: restarting "
                f"with {default.in_words}",
                settings=default,
            )
        if not selector.is_settled:
            return None
        self._candidate = candidate(
            selector.settings, selector.facts(trained.seconds / max(1, trained.steps))
        )
        if self._candidate is None:
            self._is_decided = True
            return None
        if not is_worth(self._seconds_left(trained), self._start_seconds):
            return None
        known = settings_memory.for_step(selector.identity_by(selector.settings))
        if known is not None and Candidate(known.other, known.plan) != self._candidate:
            known = None  # edited, or of an earlier version: measured again
        if known is not None and known.is_recent(datetime.now(UTC)):
            self._is_decided = True
            if not known.is_other_faster:
                return None
            return _to(known)
        other = self._candidate.settings
        environment = {**launch.unmarked(os.environ), **other.variables()}
        child = Child(launch.command(), environment, self._candidate.plan)
        self._trial = SettingsTrial(child, self._signals, self._clock)
        return Switch(f"measuring {other.in_words} in another process")

    def _default_of_another_step(self) -> Settings | None:
        """Return the default settings if this process has those measured for another step."""
        launched, selector = launch.own(), self._selector
        if launched is None or not launched.variables:
            return None
        known = settings_memory.for_command(launched.key)
        if known is None or known.identity == selector.identity_by(known.default):
            return None
        settings_memory.forget_command(launched.key)
        return known.default

    def _ended(self, trial: SettingsTrial, tried: Candidate, outcome: str) -> Switch:
        self._is_decided = True
        self.end()
        now = self._selector.settings
        if outcome == "failed":
            return Switch(
                f"{tried.settings.in_words} could not be measured ({trial.failure}): the run "
                f"continues with {now.in_words}"
            )
        launched = launch.own()
        identity, title = self._selector.identity_by(now), class_name(self._leg.parts.task)
        choice = settings_memory.decided(identity, now, tried, trial.duel, title)
        settings_memory.remember(choice, "-" if launched is None else launched.key)
        if choice.is_other_faster:
            return _to(choice)
        return Switch(f"staying with {now.in_words}: {choice.why}")

    def _seconds_left(self, trained: Trained) -> float:
        """Return how long the leg trains on: by its schedule, or as long as it has so far."""
        schedule, first = self._leg.schedule, self._leg.first_step
        if schedule.total_steps is not None:
            left = first + schedule.total_steps - trained.step
            return left * trained.seconds / max(1, trained.steps)
        spent = self._leg.watch.seconds["step"]
        return spent if schedule.until.seconds is None else schedule.until.seconds - spent


def _to(choice: SettingsChoice) -> Switch:
    note = f"restarting with {choice.other.in_words}: {choice.why}"
    return Switch(note, choice.why, settings=choice.other, plan=choice.plan)


def _is_alone(leg: Leg) -> bool:
    """Return whether replacing this process leaves no other worker, replica or thread behind."""
    parts = leg.parts
    is_alone = parts.team.is_alone and parts.strategy.num_replicas_in_sync == 1
    return is_alone and threading.current_thread() is threading.main_thread()


def restart_as_recorded(leg: Leg, signals: Signals) -> None:
    """Replace this process before its first step, if the run recorded other settings for it."""
    selector = leg.parts.selector
    recorded = selector.settings_after(leg.stepper.step)
    if recorded is None or not recorded.changed_from(selector.settings):
        return
    if _is_alone(leg) and launch.may_follow(recorded, selector.settings):
        restart(recorded, signals)


def restart(settings: Settings, signals: Signals) -> NoReturn:
    """Replace this process by itself with other settings; the PID stays.

    A signal that arrives from now on waits for the new process, which blocks it until its run can
    be saved. The handlers stay until then: one that is set to its default would end the process.
    """
    passed_on = signals_of.passed_on()
    signals.raise_received()  # the run is saved
    sys.stdout.flush()
    sys.stderr.flush()
    command = launch.command()
    os.execve(command[0], command, launch.restart_variables(settings) | passed_on)
