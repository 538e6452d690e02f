"""Calls of `fit` without a run directory: begun, or continued where one was interrupted."""

import contextlib
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import final

from loopwright.checkpoints.snapshot import Snapshot, difference
from loopwright.data.source import changed_data
from loopwright.events import Event
from loopwright.fit.checkpointing import MemoryCheckpoints
from loopwright.fit.parts import Parts
from loopwright.fit.request import FitRequest, Start, accepted_data
from loopwright.fit.resume import barrier_after, is_further
from loopwright.fit.session import Session
from loopwright.fit.snapshots import at_start_of_epoch, restarts_epoch
from loopwright.loop.schedule import every
from loopwright.loop.signals import Signals, deferred, interrupts
from loopwright.task import variables


@final
class MemoryRun:
    """The calls of `fit` of a trainer without a run directory.

    Ctrl-C, or the interrupt of a notebook, ends a call at its next stop. What is not in the task
    is held: the position in the data, running numbers, history, callbacks. The next call with the
    same data continues there; weights and learning rates are those that the task has then.
    """

    def __init__(self) -> None:
        self._held: Snapshot | None = None
        self.first_epoch = 0
        """The first epoch of the current call."""

    def begin(
        self, parts: Parts, request: FitRequest, first_epoch: int, *, watches: bool
    ) -> Generator[Event]:
        """Return the events of a call whose step is built; `watches`: Ctrl-C waits for a stop."""
        parts.state.trains()
        signals, held = Signals(), self._held
        with contextlib.ExitStack() as opened:
            opened.enter_context(parts.team.losses_explained())
            opened.enter_context(barrier_after(parts.team))
            with deferred():
                session = None if held is None else _continue(parts, request, signals, held)
                if not isinstance(session, Session):
                    notes = [] if session is None else [session]
                    start = Start(first_epoch=first_epoch, notes=notes)
                    session = Session(
                        parts, request, start, checkpoints=MemoryCheckpoints(), signals=signals
                    )
                    parts.state.start_from_given_weights()
            self._held, self.first_epoch = None, session.first_epoch
            data = request.data
            if watches and parts.team.is_alone and (data is None or data.can_be_read_again):
                opened.enter_context(self._holding(session, signals))
            return session.events(opened.pop_all())

    @contextlib.contextmanager
    def _holding(self, session: Session, signals: Signals) -> Iterator[None]:
        """Let Ctrl-C wait for a stop, and hold the moment of the session then."""
        with interrupts(signals):
            yield
        if isinstance(session.checkpoints, MemoryCheckpoints):
            self._held = session.checkpoints.snapshot
        signals.raise_received()


def _continue(parts: Parts, request: FitRequest, signals: Signals, held: Snapshot) -> Session | str:
    """Return the session that continues the interrupted one; or why none does."""
    before = every(held.until)
    if request.until != before and not is_further(request.until, before):
        return _not_continued(f"{request.until} asked for, {before} then")
    data = {} if request.data is None else request.data.fingerprint()
    other = changed_data(held.data, data) if bool(held.data) == bool(data) else "other data"
    if other:
        return _not_continued(other)
    if restarts_epoch(held, accepted_data(request, "best_effort")):
        held = at_start_of_epoch(held)
    checkpoints = MemoryCheckpoints()
    session = Session(
        parts, request, Start(snapshot=held), checkpoints=checkpoints, signals=signals
    )
    named = parts.team.everywhere(session.named)
    if difference(held.variables, variables.table(named)) is not None:
        return _not_continued("the task has other variables")
    if session.callbacks.check(held.callbacks) is not None:
        note = "other callbacks than in the interrupted call of fit: they start as they are"
        session.notes.append(note)
        held = replace(held, callbacks=[])
    session.apply(held, checkpoints.select(session))
    return session


def _not_continued(why: str) -> str:
    return f"the interrupted call of fit is not continued, its weights are: {why}"
