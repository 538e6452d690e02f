"""A call of `fit` without a run directory: begun, or continued where it was interrupted."""

from collections.abc import Generator
from dataclasses import replace
from typing import Any, final

from loopwright.checkpoints import tensors
from loopwright.checkpoints.snapshot import difference
from loopwright.data.source import changed_data
from loopwright.events import Event, Finished, Metrics
from loopwright.fit.leg import Leg
from loopwright.fit.leg_loop import Checkpoints
from loopwright.fit.moment import at_start_of_epoch, restarts_epoch, restore_parts, taken
from loopwright.fit.parts import Parts
from loopwright.fit.request import FitRequest, accepted_data
from loopwright.fit.resume import is_further
from loopwright.fit.saved_leg import Moment
from loopwright.loop.schedule import Place, every
from loopwright.loop.signals import Signals, deferred, interrupts
from loopwright.loop.train import Happened
from loopwright.task import variables


@final
class MemoryLegs:
    """The calls of `fit` of a trainer without a run directory.

    Ctrl-C, or the interrupt of a notebook, ends a call at its next stop. What is not in the task
    is held: the position in the data, running numbers, history, callbacks. The next call with the
    same data continues there; weights and learning rates are those that the task has then.
    """

    def __init__(self) -> None:
        self._held: Moment | None = None
        self.first_epoch = 0
        """The first epoch of the current call."""

    @deferred()
    def events(
        self, parts: Parts, request: FitRequest, first_epoch: int, *, watches: bool
    ) -> Generator[Event]:
        """Return the events of a call whose step is built; `watches`: Ctrl-C waits for a stop."""
        signals, held = Signals(), self._held
        continued = None if held is None else _continued(parts, request, signals, held)
        if isinstance(continued, tuple):
            leg, place, scores = continued
        else:
            leg = Leg(parts, request, first_epoch=first_epoch, signals=signals)
            parts.state.start_from_given_weights()
            place, scores = Place(), {}
            leg.notes = [] if continued is None else [continued]
        data = leg.request.data
        self.first_epoch = leg.first_epoch
        can_hold = parts.team.is_alone and (data is None or data.can_be_read_again)
        return self._run(leg, place, scores, signals if watches and can_hold else None)

    def _run(
        self, leg: Leg, place: Place, scores: Metrics, signals: Signals | None
    ) -> Generator[Event]:
        self._held, checkpoints = None, _Held(leg)
        if signals is None:
            yield from leg.told(leg.looped(place, scores, checkpoints))
            return
        with interrupts(signals):
            yield from leg.told(_unsaved(leg.looped(place, scores, checkpoints)))
        self._held = checkpoints.moment
        signals.raise_received()


def _unsaved(happened: Generator[Happened]) -> Generator[Happened]:
    """Yield the same, with an end that does not say that something was saved."""
    for event, place, scores in happened:
        yield replace(event, saved=False) if isinstance(event, Finished) else event, place, scores


@final
class _Held(Checkpoints):
    """Holds the moment at which a leg is interrupted: nothing else is saved in memory."""

    def __init__(self, leg: Leg) -> None:
        self._leg = leg
        # Now: while callbacks are called, the model holds the optimizer too.
        self._named = variables.named(leg.parts.task)
        self.moment: Moment | None = None

    def save(self, place: Place, scores: Metrics, *, is_due: bool = True) -> None:
        """Hold this moment, except for what the task itself holds."""
        if place.step == 0:
            return
        leg = self._leg
        leg.inexact = accepted_data(leg.request, "best_effort")
        leg.reasons = leg.inexact.reasons
        read, position = leg.stepper.position()
        snapshot = taken(leg, 0, place, scores, read, self._named, None, {}, {}, [])
        held = tensors.snapshot(_looked_at(leg.parts, self._named))
        held |= leg.callbacks.tensors() | position
        self.moment = Moment(snapshot, held)


def _looked_at(parts: Parts, named: dict[str, Any]) -> dict[str, Any]:
    """Return the variables that change when a model is only looked at: metrics, seeds."""
    if parts.strategy.num_replicas_in_sync > 1:
        return {}
    untrained = {id(variable) for variable in variables.untrained_variables(parts.task)}
    return {name: variable for name, variable in named.items() if id(variable) in untrained}


def _continued(
    parts: Parts, request: FitRequest, signals: Signals, held: Moment
) -> tuple[Leg, Place, Metrics] | str:
    """Return the leg that continues the interrupted one, its place and scores; or why none does."""
    snapshot = held.snapshot
    before = every(snapshot.until)
    if request.until != before and not is_further(request.until, before):
        return _not_continued(f"{request.until} asked for, {before} then")
    data = {} if request.data is None else request.data.fingerprint()
    other = changed_data(snapshot.data, data) if bool(snapshot.data) == bool(data) else "other data"
    if other:
        return _not_continued(other)
    if restarts_epoch(snapshot, accepted_data(request, "best_effort")):
        snapshot = at_start_of_epoch(snapshot)
    leg = Leg(parts, request, first_epoch=0, snapshot=snapshot, signals=signals)
    named = variables.named(parts.task)
    if difference(snapshot.variables, variables.table(parts.team.everywhere(named))) is not None:
        return _not_continued("the task has other variables")
    if leg.callbacks.objection(snapshot.callbacks) is not None:
        leg.notes = ["other callbacks than in the interrupted call of fit: they start as they are"]
        snapshot = replace(snapshot, callbacks=[])
    restore_parts(leg, _looked_at(parts, named), snapshot, held.held)
    return leg, snapshot.place, snapshot.scores


def _not_continued(why: str) -> str:
    return f"the interrupted call of fit is not continued, its weights are: {why}"
