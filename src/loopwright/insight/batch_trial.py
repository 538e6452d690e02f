"""The child of `find_batch_size`: the same program, which trains with each size asked for.

Whatever it trains is thrown away. If memory runs out, the kernel ends this process first.
"""

import contextlib
import os
import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import tensorflow as tf

from loopwright.compat.out_of_memory import is_out_of_memory
from loopwright.errors import first_line
from loopwright.events import Trained
from loopwright.fit.leg import Leg
from loopwright.fit.leg_loop import NoCheckpoints
from loopwright.fit.parts import Parts
from loopwright.fit.request import FitRequest
from loopwright.fit.trial_child import Line
from loopwright.insight.batch_sizes import BatchSizeOptions
from loopwright.insight.scratch import request_aside, scratch_leg
from loopwright.loop.schedule import Every, Place
from loopwright.plans.launch import Trial

_WARM_UP_CALLS = 2
_ROUNDS = 3
_ENDLESS = Every(epochs=10**9)


def serve_batch_sizes(told: Trial, parts: Parts, options: BatchSizeOptions) -> NoReturn:
    """Answer how fast each size trains, and end this process when nothing more is asked."""
    line = Line(told.asked, told.answered)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    line.answer({"ready": True})
    try:
        for seconds, size in line.asked():
            request = request_aside(options.for_fit(int(size)), parts)
            line.answer(_measured(parts, request, int(size), seconds))
    except BaseException as error:
        is_memory = any(map(is_out_of_memory, _chain(error)))
        text = first_line(error) if isinstance(error, Exception) else repr(error)
        line.answer({"out_of_memory": text} if is_memory else {"failure": text})
    os._exit(0)


def _measured(parts: Parts, request: FitRequest, size: int, seconds: float) -> dict[str, Any]:
    _reset_peak()
    with scratch_leg(parts, replace(request, sets={}), until=_ENDLESS) as leg:
        happened = leg.looped(Place(), {}, NoCheckpoints())
        trained = (event for event, _, _ in happened if isinstance(event, Trained))
        for _ in range(_WARM_UP_CALLS):
            next(trained)
        # The best of some rounds: other programs on the machine only slow it down.
        steps, spent = max(
            (_round(trained, seconds / _ROUNDS) for _ in range(_ROUNDS)),
            key=lambda one: one[0] / one[1],
        )
        found = {"examples": steps * _examples(leg, size), "steps": steps, "seconds": spent}
        return {**found, "bytes": _peak_bytes()}


def _round(trained: Iterator[Trained], seconds: float) -> tuple[int, float]:
    """Return how many steps were trained in about `seconds`, and in how many exactly."""
    steps, spent = 0, 0.0
    while spent < seconds:
        event = next(trained)
        steps, spent = steps + event.steps, spent + event.seconds
    return steps, spent


def _examples(leg: Leg, size: int) -> float:
    """Return how many examples a batch has: the last one of an epoch may be smaller."""
    resident = None if leg.feed is None else leg.feed.resident
    if resident is None:
        return size
    return resident.examples / -(-resident.examples // resident.batch_size)


def _chain(error: BaseException | None) -> list[BaseException]:
    return [] if error is None else [error, *_chain(error.__cause__)]


def _reset_peak() -> None:
    for number in range(len(tf.config.list_logical_devices("GPU"))):
        tf.config.experimental.reset_memory_stats(f"GPU:{number}")
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _peak_bytes() -> int:
    """Return the most memory held since the last reset: of the first GPU, or of this process."""
    if tf.config.list_logical_devices("GPU"):
        return int(tf.config.experimental.get_memory_info("GPU:0")["peak"])
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        peak = next(line for line in lines if line.startswith("VmHWM:"))
        return 1024 * int(peak.split()[1])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
