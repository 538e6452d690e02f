"""A child process that runs a program up to its first `fit`, and trains there to be timed.

The child does what the program does until then; it opens no run directory, calls no callback and no
sink, and never returns from `fit`. Its parent asks for seconds of training, line by line.
"""

import contextlib
import itertools
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NoReturn

import tensorflow as tf

from loopwright import launch, settings
from loopwright.errors import first_line
from loopwright.events import Trained
from loopwright.fit.parts import Parts
from loopwright.fit.request import FitRequest, Start
from loopwright.fit.session import Session
from loopwright.loop.schedule import Every
from loopwright.plans.tuner import TunerState

_WARM_UP_CALLS = 3
_MOST_TUNING_SECONDS = 60.0
_ENDLESS = Every(epochs=10**9)


def serve(parts: Parts, request: FitRequest, run_dir: str) -> NoReturn:
    """Describe the step, train as long as the parent asks for each time, then end this process."""
    parent = socket.socket(fileno=launch.parent_socket())
    with contextlib.suppress(OSError), parent.makefile("rw", encoding="utf-8") as lines:

        def answer(**values: Any) -> None:
            lines.write(json.dumps(values) + "\n")
            lines.flush()

        try:
            alone = replace(
                request, until=_ENDLESS, sets={}, callbacks=[], sinks=[], is_observed=False
            )
            session = Session(parts, alone, Start())
            trained = _settled(session)
            last = next(trained)
            answer(**_facts(session, request.until, last.seconds / max(1, last.steps), run_dir))
            for line in lines:
                steps, seconds = 0, 0.0
                while seconds < json.loads(line)[0]:
                    event = next(trained)
                    steps, seconds = steps + event.steps, seconds + event.seconds
                answer(rate=steps / seconds)
        except BaseException as error:
            answer(failure=first_line(error) if isinstance(error, Exception) else repr(error))
    os._exit(0)


def _settled(session: Session) -> Iterator[Trained]:
    """Return the training from when everything is compiled and the plan is chosen."""
    trained = (event for event, _, _ in session.loop() if isinstance(event, Trained))
    tuner, seconds = session.stepper.tuner, 0.0
    *_, last = itertools.islice(trained, _WARM_UP_CALLS)
    while tuner.state is not TunerState.SETTLED and seconds < _MOST_TUNING_SECONDS:
        last = next(trained)
        seconds += last.seconds
    return itertools.chain([last], trained)


def _facts(session: Session, until: Every, step_seconds: float, run_dir: str) -> dict[str, Any]:
    steps = until.steps
    if until.epochs is not None:
        steps = until.epochs * (session.schedule.steps_per_epoch or 0)
    return {
        "key": launch.own_key() or settings.program_key(launch.program()),
        "step_digest": session.parts.engine.kind(session.feed).digest(),
        "step_seconds": step_seconds,
        "run_seconds": until.seconds or (steps or 0) * step_seconds,
        "has_gpu": bool(tf.config.list_physical_devices("GPU")),
        "run_dir": run_dir,
    }
