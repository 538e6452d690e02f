"""Run the trials of a study: claim, start, watch, prune, resume and conclude them.

Several processes may run trials of one study. A trial belongs to the process that has locked its
claim. One that is `running` in the storage while no process holds its claim was interrupted:
the process that claims it resumes its run.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from loopwright.checkpoints.lock import Lock, is_held
from loopwright.config.schema import Config
from loopwright.errors import ConfigurationError, LoopwrightError
from loopwright.runs import RunRecord, mapping, number
from loopwright.search import optuna_study
from loopwright.search.optuna_study import OptunaStudy
from loopwright.search.result import Trial, best_of, found_trials
from loopwright.search.study import (
    StudyDirectory,
    locked,
    storage_explained,
    trial_path,
    write_best,
)
from loopwright.search.trial_process import TrialProcess, reason_of, same_reason, was_interrupted

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
class RunningTrial:
    """A trial that this process runs."""

    number: int
    path: Path
    config: Config
    claim: Lock
    optuna: "optuna.Trial"
    reported: int
    """How many of its scores the storage has."""
    has_old_reports: bool
    """Whether another process has reported scores, and may not have pruned it."""
    read_bytes: int = 0
    """How much of its journal was read."""
    scores: dict[int, float] = field(default_factory=dict[int, float])
    """Its finite scores by step."""
    known: dict[str, Any] = field(default_factory=dict[str, Any])
    """The last scores of the run by name."""
    process: TrialProcess | None = None
    restarts: int = 0
    is_waiting: bool = False
    is_concluded: bool = False

    def read_scores(self, objective: str) -> list[float]:
        """Read what its run has reported since the last call; return all scores in order."""
        for end, event in RunRecord(self.path).events(after=self.read_bytes):
            self.read_bytes = end
            step, named = number(event.get("step")), _named(event)
            if step is None:
                continue
            self.known |= named
            score = number(named.get(objective))
            if score is not None:
                self.scores[int(step)] = score
        return [self.scores[step] for step in sorted(self.scores)]


@final
class StudyRunner:
    """Runs up to `workers` trials at a time until a study has `trials` of them."""

    def __init__(
        self,
        directory: StudyDirectory,
        study: OptunaStudy,
        *,
        trials: int,
        workers: int,
        settings: str,
        say: Callable[[str], None],
    ) -> None:
        self._directory, self._study, self._space = directory, study, directory.space
        self._trials = min(trials, self._space.most_trials or trials)
        self._workers, self._settings, self._say = workers, settings, say
        self._running: list[RunningTrial] = []

    def run(self, is_interrupted: Callable[[], bool]) -> None:
        """Run trials until there are none left, or until a signal; then all are saved."""
        unwritable = optuna_study.require_optuna().exceptions.StorageInternalError
        try:
            with optuna_study.quiet(), storage_explained(self._directory.path, unwritable):
                self.write_best()
                while not is_interrupted():
                    while len(self._running) < self._workers and (trial := self._next()):
                        self._running.append(trial)
                    if not self._running:
                        self.write_best()
                        return
                    for trial in list(self._running):
                        self._look_after(trial)
                    time.sleep(_SECONDS_BETWEEN_POLLS)
        finally:
            self._stop_all()

    def _next(self) -> RunningTrial | None:
        """Return a trial to run: one that was interrupted, or a new one; None if there is none."""
        with locked(self._directory.path):
            trials = found_trials(self._study)
            own = {trial.number for trial in self._running}
            for trial in trials:
                if trial.state == "running" and trial.number not in own:
                    claim = self._directory.claimed(trial.number)
                    claimed = None if claim is None else self._claimed(trial.number, claim)
                    if claimed is not None:
                        self._say(f"trial {trial.number} was interrupted; resuming it")
                        return claimed
            if len(trials) >= self._trials:
                return None
            claim = self._directory.claimed(len(trials))
            if claim is None:
                return None
            return self._claimed(self._study.new_trial(self._space), claim)

    def _claimed(self, number: int, claim: Lock) -> RunningTrial | None:
        trial = self._study.running_trial(number)
        if trial is None:  # it was concluded between our look at it and our claim
            claim.release()
            return None
        config = self._directory.config_of(number, trial.params)
        path = trial_path(self._directory.path, number)
        reported = len(self._study.trials()[number].intermediate_values)
        return RunningTrial(number, path, config, claim, trial, reported, bool(reported))

    def _look_after(self, trial: RunningTrial) -> None:
        if trial.process is None:
            # A process whose parent was killed saves and ends; until then the run is its own.
            if not is_held(trial.path / "lock"):
                written = self._directory.write_trial(trial.number, trial.config)
                trial.process = TrialProcess(written, self._settings)
            elif not trial.is_waiting:
                trial.is_waiting = True
                where = f"the process that still trains in {trial.path}"
                self._say(f"trial {trial.number}: waiting for {where}")
            return
        code = trial.process.exit_code()  # before the journal: nothing is written after the end
        if not trial.is_concluded:
            scores = trial.read_scores(self._space.objective)
            self._require_objective(trial)
            if self._is_pruned(trial, scores):
                self._conclude(trial, "pruned")
                trial.process.stop()
            elif code is not None and was_interrupted(code) and trial.restarts < _MOST_RESTARTS:
                trial.restarts += 1
                trial.process, trial.read_bytes = None, 0
                return
            elif code is not None:
                self._conclude_ended(trial, code, scores)
        if code is not None:
            self._running.remove(trial)
            trial.claim.release()

    def _is_pruned(self, trial: RunningTrial, scores: list[float]) -> bool:
        """Report new scores in their order; return whether the trial is not worth its time.

        The decision after each score depends on no later one: it is the same for a trial that is
        watched while it trains, and for one whose scores are all there already.
        """
        if trial.has_old_reports:  # a process was killed between a report and what follows from it
            trial.has_old_reports = False
            if self._study.is_pruned(trial.number) or self._study.would_be_pruned(
                trial.number, self._space
            ):
                return True
        for at, score in enumerate(scores[trial.reported :], trial.reported + 1):
            trial.optuna.report(score, at)
            trial.reported = at
            if self._study.is_pruned(trial.number):
                return True
        return False

    def _conclude_ended(self, trial: RunningTrial, code: int, scores: list[float]) -> None:
        if code:
            self._fail(trial, reason_of(code, trial.path))
        elif not scores:
            self._fail(trial, f"{self._space.objective} was never a finite number")
        else:
            best = max(scores) if self._space.direction == "max" else min(scores)
            self._conclude(trial, "complete", best if self._space.take == "best" else scores[-1])

    def _fail(self, trial: RunningTrial, reason: str) -> None:
        trial.optuna.set_user_attr(optuna_study.REASON, reason[:1000])
        self._conclude(trial, "failed")
        ended = [other for other in found_trials(self._study) if other.state != "running"]
        is_hopeless = all(
            other.state == "failed" and same_reason(other.reason, reason) for other in ended
        )
        if is_hopeless and len(ended) >= _MOST_SAME_FAILURES:
            raise LoopwrightError(
                f"The first {len(ended)} trials failed for the same reason.",
                expected="a config that trains",
                received=reason,
                do=f"read {trial.path / 'output.log'}, correct the cause, and run the same "
                "command again",
            )

    def _conclude(
        self, trial: RunningTrial, state: optuna_study.State, score: float | None = None
    ) -> None:
        self._study.conclude(trial.number, state, score)
        trial.is_concluded = True
        best = self.write_best()
        ended = found_trials(self._study)[trial.number]
        text = "" if ended.score is None else f" {self._space.objective} {ended.score:.6g}"
        text += " (best so far)" if ended == best else ""
        what = ended.reason if state == "failed" else ended.described
        self._say(f"trial {ended.number}: {state}{text}: {what}")

    def write_best(self) -> Trial | None:
        """Write the config of the best trial, as the study has it now, and return the trial.

        A process may have been killed between the end of a trial and its config. Locked: of two
        processes, the last to write has read the later study.
        """
        with locked(self._directory.path):
            best = best_of(found_trials(self._study), self._space.direction)
            if best is not None:
                config = self._directory.config_of(best.number, best.parameters)
                write_best(self._directory.path, best.number, config)
        return best

    def _require_objective(self, trial: RunningTrial) -> None:
        """Raise if the run has reported scores of this kind, and none by this name."""
        name = self._space.objective
        is_validation = name.startswith(_VALIDATION)
        known = [other for other in trial.known if other.startswith(_VALIDATION) == is_validation]
        if not known or name in known:
            return
        trial.optuna.set_user_attr(optuna_study.REASON, f"no score with the name {name}")
        self._conclude(trial, "failed")
        raise ConfigurationError(
            f"The trials have no score with the name {name[:80]}.",
            expected=f"one of: {', '.join(trial.known)[:300]}",
            received=f"the objective {name[:80]}",
            do="name one of these with --objective (in code: objective=...), and another study "
            "directory",
        )

    def _stop_all(self) -> None:
        processes = [trial.process for trial in self._running if trial.process is not None]
        for process in processes:
            process.stop()
        try:
            for process in processes:
                process.wait(_SECONDS_TO_SAVE)
        finally:  # a second Ctrl-C does not wait
            for process in processes:
                process.kill()
            for trial in self._running:
                trial.claim.release()


def _named(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scores of an event under the names of the history."""
    found = mapping(event.get("metrics"))
    if event.get("event") == "validated":
        return {f"{_VALIDATION}{name}": value for name, value in found.items()}
    return found if event.get("event") == "epoch_ended" else {}
