"""Time a process from its start to the speed of its best plan: `python -m benchmarks.full_speed`.

Imports stand where they happen: their time is measured.
"""

import itertools
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

_WINDOW_SECONDS = 0.5
_SHARE = 0.9

Stop = tuple[float, int]
"""When control was back in Python, and after which step."""


def main(began: str, workload: str, until: str, seconds: str, run_dir: str, kills: str) -> None:
    """Train for some seconds after the first step; print the stops in seconds since `began`.

    With a run directory a checkpoint is saved every second; with `kills` the process then kills
    itself after the first one that follows the choice of a plan.
    """
    import loopwright as lw
    from benchmarks.contenders import short_word
    from benchmarks.workloads import WORKLOADS

    work = WORKLOADS[workload]()
    saves: dict[str, Any] = {"save_every": "1 second"} if run_dir else {}
    trainer = lw.Trainer(work.task(), run_dir=run_dir or None)
    stops: list[Stop] = []
    is_chosen = False
    for event in trainer.events(**work.given(), until=until, **saves):
        if isinstance(event, lw.Trained):
            stops.append((time.monotonic() - float(began), event.step))
            if stops[-1][0] - stops[0][0] > float(seconds):
                break
        elif isinstance(event, lw.PlanChosen):
            is_chosen = True
        elif isinstance(event, lw.Saved) and is_chosen and kills:
            os.kill(os.getpid(), signal.SIGKILL)
    print(json.dumps({"stops": stops, "plan": short_word(trainer.plan)}))


def rates(stops: Sequence[Stop]) -> list[tuple[float, float]]:
    """Return the steps per second of each window between stops, and when it began.

    >>> rates([(0.0, 1), (0.5, 6), (1.5, 26)])
    [(0.0, 10.0), (0.5, 20.0)]
    """
    found: list[tuple[float, float]] = []
    for place, (began, before) in enumerate(stops):
        for ended, after in itertools.islice(stops, place + 1, None):
            if ended - began >= _WINDOW_SECONDS:
                found.append((began, (after - before) / (ended - began)))
                break
    return found


def last_rate(stops: Sequence[Stop]) -> float:
    """Return the usual steps per second in the last third of the windows."""
    known = [rate for _, rate in rates(stops)]
    return statistics.median(known[-max(1, len(known) // 3) :])


def seconds_to_full_speed(stops: Sequence[Stop]) -> float:
    """Return after how many seconds, from the first step on, steps ran nearly as fast as at last.

    >>> seconds_to_full_speed([(4.0, 1), (5.0, 6), (6.0, 26), (7.0, 46), (8.0, 66)])
    1.0
    """
    enough = _SHARE * last_rate(stops)
    return next(began for began, rate in rates(stops) if rate >= enough) - stops[0][0]


if __name__ == "__main__":
    main(*sys.argv[1:])
