"""What a session says when it begins: callbacks, exactness, averages, process settings.

Settings never change inside a process, so a note names the command that starts it by them.
"""

import itertools
import os
import shlex
import sys
from typing import TYPE_CHECKING

from loopwright import launch, settings
from loopwright.data.source import Feed
from loopwright.engine.engine import Engine
from loopwright.events import Noted
from loopwright.plans import cache
from loopwright.task.optimizers import uses_averages

if TYPE_CHECKING:
    from loopwright.fit.session import Session

_AVERAGED = (
    "use_ema: scores and checkpoints are of the trained weights; when fit ends, the model gets the "
    'averaged weights, which restore("last") gives too'
)
_legs = itertools.count()  # of this process: the first was measured, and it is not traced if eager


def notes(session: "Session", step: int) -> list[Noted]:
    """Return what there is to say when a session begins."""
    engine, request = session.parts.engine, session.request
    about_settings = _about_settings(engine, session.feed, step, continues=session.continues)
    texts = [*session.callbacks.needs.notes, *session.notes, *about_settings]
    if uses_averages(session.parts.task) and (request.sets or request.run_dir):
        texts.append(_AVERAGED)
    return [Noted(step, text) for text in texts]


def _about_settings(engine: Engine, feed: Feed | None, step: int, *, continues: bool) -> list[str]:
    """Return what there is to say about process settings; about remembered ones only once."""
    plans = engine.plans
    key, now = launch.own_key(), plans.log.settings
    asked = None if plans.asked is None else plans.asked.settings_after(0)
    if asked is not None and asked.variables() != now.variables() and not continues:
        return [
            f"the record asks for {asked.in_words}, this process runs with {now.in_words}: "
            f"other bits from step {step + 1:,} on"
        ]
    is_later = next(_legs) > 0
    if is_later or key == "-" or launch.is_measured() or plans.plan.step == "eager":
        return []
    choice = settings.remembered(key or settings.program_key(launch.program()))
    if choice is None or not choice.step_digest:
        return []
    chosen, is_same_step = choice.chosen, choice.step_digest == engine.kind(feed).digest()
    if key is not None and not is_same_step:
        cache.delete("settings", key)
        if chosen != choice.default:
            return [
                f"the remembered process settings ({chosen.in_words}) belong to a different model "
                "or batch shape and are forgotten; this process keeps them"
            ]
    is_open = any(name not in os.environ for name in chosen.variables())
    is_other = chosen.variables() != now.variables() and asked is None and not continues
    if key is None and is_same_step and is_other and is_open:
        program = shlex.join(launch.program()) if sys.argv[0].endswith(".py") else "PROGRAM"
        return [
            f"this step ran {choice.gain:.1f}x as fast with {chosen.in_words}: start it with "
            f"`loopwright run {program}`"
        ]
    return []
