"""Which plan runs the next steps of a trainer: given, recorded, remembered or measured."""

import hashlib
import os
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, final

import tensorflow as tf

from loopwright import __version__
from loopwright.compat import xla_rewrites
from loopwright.compat.environment import for_digest
from loopwright.data.source import Feed
from loopwright.engine.compiled_steps import CompiledSteps
from loopwright.engine.trace import Built
from loopwright.errors import ConfigurationError, message
from loopwright.events import PlanChosen
from loopwright.loop.clock import Stopwatch
from loopwright.plans import memory
from loopwright.plans import settings as settings_of
from loopwright.plans.plan import WORDS, Plan, Terms, objection, plan_of, refuse, settled
from loopwright.plans.plan_history import (
    Pilot,
    PlanHistory,
    PlanRecorder,
    Recorded,
    Replayed,
    load,
)
from loopwright.plans.settings import Settings
from loopwright.plans.tuner import Candidate, Compiler, Remembered, Tuner
from loopwright.plans.worth import Budget
from loopwright.task import variables
from loopwright.task.task import class_name


def candidates(built: Built, feed: Feed | None, terms: Terms) -> list[Candidate]:
    """Return the plans that may be faster than the graph loop, the most promising first."""
    leaves = [] if feed is None else tf.nest.flatten(feed.batch_spec)
    if any(None in leaf.shape[1:] for leaf in leaves):
        return []  # XLA would compile again for each length
    savings = {Plan("xla", "fused"): 0.5, Plan("xla", "graph"): 0.1}
    if built.has_convolutions and not tf.config.list_physical_devices("GPU"):
        # Inside XLA's loop they run many times slower, and nothing can interrupt a step.
        savings = {Plan("xla", "graph"): 0.3}
    return [
        Candidate(settled(plan, terms), saving)
        for plan, saving in savings.items()
        if objection(plan, terms) is None
    ]


def read_alike(one: Plan, other: Plan) -> bool:
    """Return whether training can switch between two plans while its data is open."""
    return (one.feed == "resident") == (other.feed == "resident")


@final
@dataclass(frozen=True)
class _Batches:
    """What a kind of step depends on of its data; the data itself is not held."""

    spec: Any
    resident_size: int | None
    terms: Terms


def _batches(feed: Feed | None, terms: Terms) -> _Batches:
    if feed is None:
        return _Batches(None, None, terms)
    resident = feed.resident
    return _Batches(feed.batch_spec, None if resident is None else resident.batch_size, terms)


def identity(task: Any, built: Built, feed: Feed | None, terms: Terms) -> str:
    """Return a digest of step, shapes, machine and versions, the same in any process."""
    return _digest(task, built, _batches(feed, terms), settings_of.current())


def _digest(task: Any, built: Built, batches: _Batches, settings: Settings) -> str:
    held = [
        variable for part in variables.parts(task) for variable in variables.variables(part.value)
    ]
    known = [
        built.digest,
        sorted(f"{variable.dtype.name}{tuple(variable.shape)}" for variable in held),
        None if batches.spec is None else str(batches.spec),
        batches.resident_size,
        batches.terms,
        for_digest(settings),
    ]
    return hashlib.sha256(repr(known).encode()).hexdigest()


def title(task: Any, feed: Feed | None) -> str:
    """Return the name of a kind of step for people: `Supervised, functional, batch 32x20 32x1`."""
    model = getattr(getattr(task, "model", None), "name", None)
    shapes = [] if feed is None else [leaf.shape for leaf in tf.nest.flatten(feed.batch_spec)]
    rows = feed.resident.batch_size if feed is not None and feed.resident is not None else None
    sizes = [
        "x".join("?" if size is None else str(size) for size in (shape[0] or rows, *shape[1:]))
        for shape in shapes
        if shape.rank
    ]
    words = [class_name(task), str(model or ""), f"batch {' '.join(sizes)}" if sizes else ""]
    return ", ".join(filter(None, words))


def asked_for(plan: "Plan | PlanHistory | str | os.PathLike[str]") -> PlanHistory | None:
    """Return the plan that the user asked for as a history to follow; None: measure."""
    if isinstance(plan, PlanHistory):
        return plan
    if isinstance(plan, os.PathLike) or (isinstance(plan, str) and plan.endswith(".json")):
        return _without_changes(load(plan), os.fspath(plan))
    return None if plan == "auto" else PlanHistory().changed(0, plan_of(plan))


def _without_changes(history: PlanHistory, path: str) -> PlanHistory:
    """Return the history of a file; raise if its process settings changed in mid-run."""
    if len(history.settings) < 2:
        return history
    changes = [f"{c.settings.in_words} from step {c.step + 1:,}" for c in history.settings]
    raise ConfigurationError(
        message(
            f"{path} changes its process settings in mid-run, which no process can.",
            expected="a plan history with the same process settings for all steps",
            received="; ".join(changes),
            do='leave plan out: the run directory resumes by its own record, and "auto" measures',
        )
    )


@final
class PlanSelector:
    """Selects the plans of one trainer: asked for, recorded, remembered or measured."""

    def __init__(self, asked: PlanHistory | None, compiled: CompiledSteps, task: Any) -> None:
        self._asked, self._compiled, self._task = asked, compiled, task
        self._tuners: dict[Any, Tuner] = {}
        self._tuner: Tuner | None = None
        self._identity = self._title = ""
        self._recorder: PlanRecorder | None = None
        self._done_before: PlanHistory | None = None
        self._replayed: PlanHistory | None = None
        """What the steps of this call of `fit` repeat, until its last change."""
        self._is_continued = self._is_unwritten = False
        self._batches = _Batches(None, None, Terms("none"))
        self._identities: dict[Settings, str] = {}
        """Of the step of this call of `fit`, by settings: a digest takes milliseconds."""
        self._recorded: PlanHistory | None = None
        """What the run has recorded, also of steps that are run again."""
        self._notes = list[str]()
        self.settings = settings_of.current()
        """What this process runs by."""
        self.history = PlanHistory()

    @property
    def plan(self) -> Plan:
        """The plan in use, or the one that training begins with."""
        if self.history.changes:
            return self.history.changes[-1].plan
        return WORDS["graph"] if self._asked is None else self._asked.changes[-1].plan

    @property
    def plan_in_force(self) -> Plan:
        """The plan to score and predict by: the plan in use, or the one before its trial.

        It follows from the record alone, so that a run that is repeated scores by the same plans.
        """
        return self.history.in_force or self.plan

    def begin(
        self, feed: Feed | None, compiler: Compiler, watch: Stopwatch, budget: Budget
    ) -> Pilot:
        """Return what chooses the plans of one call of `fit`."""
        self._batches = _batches(feed, self._compiled.terms(feed))
        self._identities = {}
        pilot = self._pilot(feed, compiler, watch, budget)
        before, self._done_before, self._is_continued = self._done_before, None, False
        self._replayed = self._asked
        terms = self._compiled.terms(feed)
        # On other devices than before, what was recorded may not run any more.
        if before is None or any(objection(c.plan, terms) is not None for c in before.changes):
            return pilot
        self._replayed = before
        return Replayed(before, pilot)

    def _pilot(
        self, feed: Feed | None, compiler: Compiler, watch: Stopwatch, budget: Budget
    ) -> Pilot:
        self._tuner = None
        terms = self._compiled.terms(feed)
        if self._asked is not None:
            for change in self._asked.changes:
                refuse(change.plan, terms)
            return Recorded(self._asked.with_plans(lambda plan: settled(plan, terms)))
        start = settled(WORDS["graph"], terms)
        if self._compiled.workers > 1:
            # What each of them measures or remembers is another thing.
            return Recorded(PlanHistory().changed(0, start))
        spec = None if feed is None else feed.batch_spec
        built = self._compiled.built("train_step", spec)
        faster = candidates(built, feed, terms)
        self._identity = self.identity_by(self.settings)
        self._title = title(self._task, feed)
        if self._identity not in self._tuners:
            remembered = self._recalled(start, terms, [each.plan for each in faster])
            known = None if remembered is None else remembered.choice
            if known is not None and remembered is not None and remembered.entry is None:
                is_in_use = known.plan in (start, self._plan_before)
                if is_in_use or not read_alike(start, known.plan):
                    self._tuner = Tuner(known.plan, deque(), remembered=remembered)
                    return self._tuner
            self._tuners[self._identity] = Tuner(
                start, deque(faster), self._note, remembered=remembered
            )
        self._tuner = self._tuners[self._identity]
        self._tuner.begin(compiler, watch, budget)
        return self._tuner

    def _recalled(self, start: Plan, terms: Terms, faster: list[Plan]) -> Remembered | None:
        """Return what is known of this kind of step, and record the answer."""
        found = memory.recall(
            self.history, self._identity, start, faster, is_continued=self._is_continued
        )
        self._is_unwritten |= found.history is not self.history
        self.history, choice, entry = found.history, found.choice, found.entry
        self._notes += [found.note] if found.note else []
        if choice is not None and objection(choice.plan, terms) is not None:
            return None
        if choice is None and entry is None:
            return None
        if choice is not None:
            choice = replace(choice, why=f"measured before: {choice.why}")
            if not read_alike(start, choice.plan):
                entry = None  # its data would have to be opened in another way
        check = "not due" if entry is None else entry.check(time.time())
        return Remembered(choice, entry, check)

    @property
    def _plan_before(self) -> Plan | None:
        """The plan that the run had switched to, also after the checkpoint it resumes from."""
        return (self._done_before or self.history).in_force

    def take_notes(self) -> list[str]:
        """Return what people should know of the memory since the last call."""
        notes, self._notes = self._notes, []
        return notes

    def aside(
        self, plan: Plan | PlanHistory | None = None, compiled: CompiledSteps | None = None
    ) -> "PlanSelector":
        """Return a selector for steps that are no part of a run: it measures and records nothing.

        They run by `plan`, or by the plan that this selector was given or uses.
        """
        asked = self._asked if plan is None else plan
        if not isinstance(asked, PlanHistory):
            asked = PlanHistory().changed(0, asked or self.plan)
        return PlanSelector(asked, compiled or self._compiled, self._task)

    def prospects(self, feed: Feed | None, compiled: CompiledSteps) -> tuple[list[Plan], str]:
        """Return the plans that training on this feed would try, and why it would try none."""
        if self._asked is not None:
            return [], "the plan was given"
        if compiled.workers > 1:
            return [], "several workers share one plan"
        terms = compiled.terms(feed)
        built = compiled.built("train_step", None if feed is None else feed.batch_spec)
        start = settled(WORDS["graph"], terms)
        known = identity(self._task, built, feed, terms)
        faster = [each.plan for each in candidates(built, feed, terms)]
        found = memory.recall(self.history, known, start, faster, is_continued=False)
        if found.choice is not None:
            return [], f"measured before: {found.choice.plan.in_words}"
        return faster, "none may be faster"

    def follow(self, plans: PlanHistory) -> None:
        """Follow these plans from now on."""
        self._asked = plans

    def resume(self, history: PlanHistory, step: int, *, is_continued: bool) -> None:
        """Resume a run after `step` steps; `history` may include later ones, not saved.

        A leg that `is_continued` follows this record, not what the cache has learned since.
        """
        self.history, self._is_continued = history.until(step), is_continued
        self._recorded = history
        if self._asked is None:
            self._done_before = history
        else:
            # Asked for by name, a plan leaves open what a run in its middle has settled.
            self._asked = self._asked.with_rewrites_of(history)

    def go_back(self, step: int) -> None:
        """Forget the plans after `step` steps: these steps run again."""
        self.history = self.history.until(step)

    def record_to(self, recorder: PlanRecorder) -> None:
        """Write each change to a recorder before it is used."""
        self._recorder = recorder

    def record_plan(self, step: int, plan: Plan) -> None:
        """Record that the steps after `step` run by this plan."""
        for note in xla_rewrites.notes() if plan.step == "xla" else ():
            if note not in self.history.notes:
                self._note(note)
        self._record_choice()
        changed = self.history.changed(step, plan, is_trial=self._is_trial(step, plan))
        changed = changed.with_settings(step, self.settings)
        if changed is not self.history or self._is_unwritten:
            self.history, self._is_unwritten = changed, False
            self._write(changed)

    # -- process settings ----------------------------------------------------------------------

    @property
    def is_tuning(self) -> bool:
        """Whether plans are measured here, and something is left to try."""
        return self._tuner is not None and not self._tuner.is_settled

    def identity_by(self, settings: Settings) -> str:
        """Return the identity of the step in a process with these settings."""
        if settings not in self._identities:
            built = self._compiled.built("train_step", self._batches.spec)
            found = _digest(self._task, built, self._batches, settings)
            self._identities[settings] = found
        return self._identities[settings]

    def settings_after(self, step: int) -> Settings | None:
        """Return the settings to run the steps after `step` by: asked for or recorded, if any."""
        is_asked = self._asked is not None and bool(self._asked.settings)
        followed = self._asked if is_asked else self._recorded
        return None if followed is None else followed.settings_after(step)

    def other_settings_after(self, step: int) -> Settings | None:
        """Return the settings that the run has recorded for steps after `step`, if they change."""
        later = [] if self._recorded is None else self._recorded.settings
        return next((change.settings for change in later if change.step > step), None)

    def _is_trial(self, step: int, plan: Plan) -> bool:
        replayed = self._replayed
        last = replayed.changes[-1].step if replayed is not None and replayed.changes else -1
        if replayed is not None and (replayed is self._asked or step < last):
            return replayed.is_trial_at(step)
        return self._tuner is not None and self._tuner.is_trying(plan)

    def pending_events(self, step: int) -> Iterable[PlanChosen]:
        """Return what has been chosen since the last call."""
        self._record_choice()
        if self._is_unwritten and self.history.changes:
            self._is_unwritten = False
            self._write(self.history)
        choice = None if self._tuner is None else self._tuner.take_choice()
        if choice is not None:
            yield PlanChosen(step, choice.plan.in_words, choice.why, f"plan={choice.plan!r}")

    def _record_choice(self) -> None:
        """Record what was measured: in the history of the run, and in the memory of the machine."""
        tuner = self._tuner
        if tuner is None:
            return
        remembered = None if tuner.remembered is None else tuner.remembered.choice
        if tuner.choice is not None and tuner.choice != remembered:
            chosen = self.history.chosen(self._identity, tuner.choice)
            self._is_unwritten |= chosen != self.history
            self.history = chosen
        news = tuner.take_news()
        if news is not None:
            choice, tried, is_all_new = news
            entry = None if tuner.remembered is None else tuner.remembered.entry
            date = time.time() if entry is None or is_all_new else entry.date
            load = memory.load_per_core()
            found = memory.Entry(choice, tried, date, load, __version__, self._title)
            memory.write(self._identity, found)

    def end(self) -> None:
        """End a call of `fit`."""
        if self._tuner is not None:
            self._tuner.end()
            list(self.pending_events(0))

    def _write(self, history: PlanHistory) -> None:
        if self._recorder is not None:
            self._recorder.write_plans(history)

    def _note(self, text: str) -> None:
        self.history = self.history.noted(text)
