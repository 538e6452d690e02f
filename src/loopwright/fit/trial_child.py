"""The child of a settings trial: the same program, whose first `fit` trains on request.

The parent starts its own command again, with other process settings and the variable `TRIAL`. Up
to its first `fit` the child does what the program does; then it trains in memory, in rounds, when
it is asked to. It opens no run directory, calls no callback and no sink, and never returns.
"""

import contextlib
import itertools
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NoReturn, final

from loopwright.errors import first_line
from loopwright.events import Trained
from loopwright.fit.leg import Leg
from loopwright.fit.leg_loop import NoCheckpoints
from loopwright.fit.parts import Parts
from loopwright.fit.request import FitRequest
from loopwright.loop.schedule import Every, Place
from loopwright.plans.launch import Trial
from loopwright.plans.plan import plan_of
from loopwright.plans.plan_history import PlanHistory
from loopwright.plans.settings_candidate import candidate
from loopwright.task.task import class_name

_WARM_UP_CALLS = 3
_MOST_TUNING_SECONDS = 60.0
_ENDLESS = Every(epochs=10**9)


def serve(told: Trial, parts: Parts, request: FitRequest) -> NoReturn:
    """Train in rounds as the parent asks, and end this process when it asks no more."""
    line = _Line(told.asked, told.answered)
    try:
        rounds, selector = _rounds(parts, request, told.plan), parts.selector
        steps, spent = next(rounds)
        found = candidate(selector.settings, selector.facts(spent / max(1, steps)))
        line.answer(
            {
                "identity": selector.identity_by(selector.settings),
                "settings": selector.settings.content(),
                "candidate": None if found is None else found.content(),
                "title": class_name(parts.task),
            }
        )
        for seconds in line.asked():
            steps, spent = rounds.send(seconds)
            line.answer({"steps": steps, "seconds": spent})
    except BaseException as error:
        line.answer({"failure": first_line(error) if isinstance(error, Exception) else repr(error)})
    os._exit(0)


def _rounds(parts: Parts, request: FitRequest, plan: str) -> Any:
    """Yield steps and seconds of the last call when all is compiled, then of each round sent."""
    is_measured = plan == "auto"
    if not is_measured:
        parts.selector.follow(PlanHistory().changed(0, plan_of(plan)))
    alone = replace(
        request, until=_ENDLESS, sets={}, callbacks=[], sinks=[], is_observed=False, run_dir=None
    )
    leg = Leg(parts, alone, first_epoch=0)
    happened = leg.looped(Place(), {}, NoCheckpoints())
    trained = (event for event, _, _ in happened if isinstance(event, Trained))
    *_, last = itertools.islice(trained, _WARM_UP_CALLS)
    spent = 0.0
    while is_measured and not parts.selector.is_settled and spent < _MOST_TUNING_SECONDS:
        last = next(trained)
        spent += last.seconds
    wanted = yield last.steps, last.seconds
    while True:
        steps, seconds = 0, 0.0
        while seconds < wanted:
            event = next(trained)
            steps, seconds = steps + event.steps, seconds + event.seconds
        wanted = yield steps, seconds


@final
class _Line:
    """Lines of JSON between parent and child."""

    def __init__(self, asked: int, answered: int) -> None:
        self._asked, self._answered = asked, answered

    def asked(self) -> Iterator[float]:
        """Yield the seconds of each question, until the parent has no more."""
        with os.fdopen(self._asked, encoding="ascii") as lines:
            yield from map(float, lines)

    def answer(self, content: dict[str, Any]) -> None:
        """Send an answer; nothing happens if the parent is gone."""
        with contextlib.suppress(OSError):  # the parent is gone
            os.write(self._answered, json.dumps(content).encode() + b"\n")
