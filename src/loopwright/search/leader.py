"""Lead the trials of a study: claim, start, watch, prune, resume and conclude them.

Several processes may lead trials of one study. A trial belongs to the process that has locked its
claim. One that is `running` in the storage while no process holds its claim was interrupted:
the process that claims it resumes its run.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from loopwright.checkpoints.lock import Lock
from loopwright.errors import ConfigurationError, LoopwrightError, message
from loopwright.runs import RunRecord, mapping, number
from loopwright.search import optuna_study
from loopwright.search.result import Trial, best_of, found_trials
from loopwright.search.study import StudyDirectory, locked, trial_path, unusable_storage, write_best
from loopwright.search.trial_process import (
    TrialProcess,
    is_running,
    reason_of,
    same_reason,
    was_interrupted,
)

if TYPE_CHECKING:
    import optuna

_SECONDS_BETWEEN_POLLS = 0.1
_SECONDS_TO_SAVE = 600.0
_MOST_RESTARTS = 3
"""For a process that something else kills; then its trial has failed."""
_VALIDATION = "val_"
_MOST_SAME_FAILURES = 3
"""The first trials that fail for one reason end the study."""


@final
@dataclass
class _Led:
    """A trial that this process leads."""

    number: int
    claim: Lock
    optuna: "optuna.Trial"
    start: Callable[[], TrialProcess]
    scores: "Scores"
    read_bytes: int = 0
    """How much of its journal was read."""
    process: TrialProcess | None = None
    reported: int = 0
    restarts: int = 0
    has_old_reports: bool = False
    is_waiting: bool = False
    is_concluded: bool = False


@final
class Leader:
    """Leads up to `workers` trials at a time until a study has `trials` of them."""

    def __init__(
        self,
        directory: StudyDirectory,
        study: "optuna.Study",
        storage: "optuna.storages.BaseStorage",
        *,
        trials: int,
        workers: int,
        settings: str,
        say: Callable[[str], None],
    ) -> None:
        most = directory.asked.most_trials
        self._directory, self._study, self._asked = directory, study, directory.asked
        self._storage = storage
        self._trials = trials if most is None else min(trials, most)
        self._workers, self._settings, self._say = workers, settings, say
        self._led: list[_Led] = []

    def run(self, is_interrupted: Callable[[], bool]) -> None:
        """Lead trials until there are none left, or until a signal; then all are saved."""
        try:
            with optuna_study.quiet(), _storage_errors(self._directory):
                self.write_best()
                while not is_interrupted():
                    self._fill()
                    if not self._led:
                        self.write_best()
                        return
                    for led in list(self._led):
                        self._look_after(led)
                    time.sleep(_SECONDS_BETWEEN_POLLS)
        finally:
            self._stop_all()

    def _fill(self) -> None:
        while len(self._led) < self._workers:
            led = self._next()
            if led is None:
                return
            self._led.append(led)

    def _next(self) -> _Led | None:
        """Return a trial to lead: one that was interrupted, or a new one; None if there is none."""
        with locked(self._directory.path):
            trials = found_trials(self._study)
            own = {led.number for led in self._led}
            for trial in trials:
                if trial.state == "running" and trial.number not in own:
                    claim = self._directory.claimed(trial.number)
                    led = None if claim is None else self._made(trial.number, claim)
                    if led is not None:
                        self._say(f"trial {trial.number} was interrupted; resuming it")
                        return led
            if len(trials) >= self._trials:
                return None
            claim = self._directory.claimed(len(trials))
            if claim is None:
                return None
            made = optuna_study.new_trial(self._study, self._asked)
            return self._made(made.number, claim)

    def _made(self, number: int, claim: Lock) -> _Led | None:
        trial = optuna_study.running_trial(self._study, self._storage, number)
        if trial is None:  # it was concluded between our look at it and our claim
            claim.release()
            return None
        config = self._directory.config_of(number, trial.params)

        def start() -> TrialProcess:
            return TrialProcess(self._directory.write_trial(number, config), self._settings)

        led = _Led(number, claim, trial, start, Scores(self._asked.objective))
        led.reported = optuna_study.reports_of(self._study, number)
        led.has_old_reports = bool(led.reported)
        return led

    def _look_after(self, led: _Led) -> None:
        path = trial_path(self._directory.path, led.number)
        if led.process is None:
            # A process whose leader was killed saves and ends; until then the run is its own.
            if not is_running(path):
                led.process = led.start()
            elif not led.is_waiting:
                led.is_waiting = True
                self._say(
                    f"trial {led.number}: waiting for the process that still trains in {path}"
                )
            return
        code = led.process.exit_code()  # before the journal: nothing is written after the end
        if not led.is_concluded:
            for end, event in RunRecord(path).events(after=led.read_bytes):
                led.read_bytes = end
                led.scores.add(event)
            self._require_objective(led)
            if self._is_pruned(led):
                self._conclude(led, "pruned")
                led.process.stop()
        if code is None:
            return
        if not led.is_concluded:
            if was_interrupted(code) and led.restarts < _MOST_RESTARTS:
                led.restarts += 1
                led.process, led.read_bytes = None, 0
                return
            self._conclude_ended(led, code)
        self._led.remove(led)
        led.claim.release()

    def _is_pruned(self, led: _Led) -> bool:
        """Report new scores in their order; return whether the trial is not worth its time.

        The decision after each score depends on no later one: it is the same for a trial that is
        watched while it trains, and for one whose scores are all there already.
        """
        if led.has_old_reports:  # a process was killed between a report and what follows from it
            led.has_old_reports = False
            if optuna_study.is_pruned(self._study, led.number):
                return True
        for at, score in enumerate(led.scores.in_order[led.reported :], led.reported + 1):
            led.optuna.report(score, at)
            led.reported = at
            if optuna_study.is_pruned(self._study, led.number):
                return True
        return False

    def _conclude_ended(self, led: _Led, code: int) -> None:
        scores = led.scores.in_order
        score = final_score(scores, self._asked.take, self._asked.mode)
        if code:
            self._fail(led, reason_of(code, trial_path(self._directory.path, led.number)))
        elif score is None:
            self._fail(led, f"{self._asked.objective} was never a finite number")
        else:
            self._conclude(led, "complete", score)

    def _fail(self, led: _Led, reason: str) -> None:
        led.optuna.set_user_attr(optuna_study.REASON, reason[:1000])
        self._conclude(led, "failed")
        trials = found_trials(self._study)
        failed = [trial for trial in trials if trial.state == "failed"]
        is_hopeless = all(trial.state in ("failed", "running") for trial in trials)
        same = [trial for trial in failed if same_reason(trial.reason, reason)]
        if is_hopeless and len(same) == len(failed) and len(same) >= _MOST_SAME_FAILURES:
            raise LoopwrightError(
                message(
                    f"The first {len(same)} trials failed for the same reason.",
                    expected="a config that trains",
                    received=reason,
                    do=f"read {trial_path(self._directory.path, led.number) / 'output.log'}, "
                    "correct the cause, and run the same command again",
                )
            )

    def _conclude(self, led: _Led, state: Any, score: float | None = None) -> None:
        states = optuna_study.require_optuna().trial.TrialState
        told = {"complete": states.COMPLETE, "pruned": states.PRUNED, "failed": states.FAIL}[state]
        self._study.tell(led.number, score, state=told)
        led.is_concluded = True
        best = self.write_best()
        ended = found_trials(self._study)[led.number]
        self._say(_line(ended, self._asked.objective, is_best=best is not None and best == ended))

    def write_best(self) -> Trial | None:
        """Write the config of the best trial, as the study has it now, and return the trial.

        A process may have been killed between the end of a trial and its config. Locked: of two
        processes, the last to write has read the later study.
        """
        with locked(self._directory.path):
            best = best_of(found_trials(self._study), self._asked.mode)
            if best is not None:
                config = self._directory.config_of(best.number, best.parameters)
                write_best(self._directory.path, best.number, config)
        return best

    def _require_objective(self, led: _Led) -> None:
        if not led.scores.is_unknown:
            return
        name = self._asked.objective
        led.optuna.set_user_attr(optuna_study.REASON, f"no score with the name {name}")
        self._conclude(led, "failed")
        raise ConfigurationError(
            message(
                f"The trials have no score with the name {name[:80]}.",
                expected=f"one of: {', '.join(led.scores.known)[:300]}",
                received=f"the objective {name[:80]}",
                do="name one of these with --objective (in code: objective=...), and another study "
                "directory",
            )
        )

    def _stop_all(self) -> None:
        for led in self._led:
            if led.process is not None:
                led.process.stop()
        try:
            for led in self._led:
                if led.process is not None:
                    led.process.wait(_SECONDS_TO_SAVE)
        finally:  # a second Ctrl-C does not wait
            for led in self._led:
                if led.process is not None:
                    led.process.kill()
                led.claim.release()


def _line(trial: Trial, objective: str, *, is_best: bool) -> str:
    """Return what is said when a trial has ended."""
    score = "" if trial.score is None else f" {objective} {trial.score:.6g}"
    what = trial.reason if trial.state == "failed" else trial.described
    mark = " (best so far)" if is_best else ""
    return f"trial {trial.number}: {trial.state}{score}{mark}: {what}"


@contextlib.contextmanager
def _storage_errors(directory: StudyDirectory) -> Iterator[None]:
    """Explain what Optuna says when its storage cannot be written."""
    optuna = optuna_study.require_optuna()
    try:
        yield
    except optuna.exceptions.StorageInternalError as error:
        cause = error.__cause__ or error
        raise unusable_storage(directory.path / "study.db", str(cause).splitlines()[0]) from None


@final
class Scores:
    """The scores of a trial by one name, in the order of its steps."""

    def __init__(self, objective: str) -> None:
        self._objective = objective
        self.by_step: dict[int, float] = {}
        self.known: list[str] = []
        """The names that the run reports, once it has reported any."""

    def add(self, event: Mapping[str, Any]) -> None:
        """Take the scores of an event; what is not a finite number is left out."""
        step, named = number(event.get("step")), _named(event)
        if step is None:
            return
        self.known += [name for name in named if name not in self.known]
        score = number(named.get(self._objective))
        if score is not None:
            self.by_step[int(step)] = score

    @property
    def in_order(self) -> list[float]:
        """All scores, the first first."""
        return [self.by_step[step] for step in sorted(self.by_step)]

    @property
    def is_unknown(self) -> bool:
        """Whether the run has reported its scores, and none by this name."""
        kind = self._objective.startswith(_VALIDATION)
        same = [name for name in self.known if name.startswith(_VALIDATION) == kind]
        return bool(same) and self._objective not in same


def final_score(scores: list[float], take: str, mode: str) -> float | None:
    """Return the score of a trial; None if there is none.

    >>> final_score([0.3, 0.1, 0.2], "best", "min"), final_score([0.3, 0.1, 0.2], "last", "min")
    (0.1, 0.2)
    """
    if not scores or take == "last":
        return scores[-1] if scores else None
    return max(scores) if mode == "max" else min(scores)


def _named(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scores of an event under the names of the history."""
    found = mapping(event.get("metrics"))
    if event.get("event") == "validated":
        return {f"{_VALIDATION}{name}": value for name, value in found.items()}
    return found if event.get("event") == "epoch_ended" else {}
