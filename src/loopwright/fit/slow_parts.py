"""Which part of a leg was slow, why, and what to do about it."""

import functools
from collections.abc import Mapping

from loopwright.data.source import Feed
from loopwright.engine.step_cost import slow_step
from loopwright.engine.stepper import Stepper
from loopwright.fit.leg_loop import Validation
from loopwright.fit.parts import Parts
from loopwright.fit.request import FitRequest
from loopwright.loop import verdict
from loopwright.loop.clock import Stopwatch
from loopwright.sinks.keras_callbacks import CallbackBridge


def slow_part(
    spent: Mapping[str, float],
    steps: int,
    parts: Parts,
    request: FitRequest,
    feed: Feed | None,
    stepper: Stepper,
    validation: Validation,
    bridge: CallbackBridge,
    watch: Stopwatch,
) -> str:
    """Return a sentence about the slowest part of `steps` steps; empty if none stands out."""
    if not steps:
        return ""
    is_data_slower = spent["data wait"] > spent["step"]
    bottleneck = functools.partial(feed.bottleneck, is_data_slower) if feed is not None else str
    built, plan = parts.compiled.trains_built(), parts.selector.plan
    examples, seconds = stepper.examples_per_batch(), spent["step"] / steps
    waits = 2 * validation.waited_seconds > spent["validation"]
    validate_every, save_every = request.validate_every, request.save_every
    causes = {
        "data wait": lambda: verdict.slow_data(steps, spent, bottleneck()),
        "step": lambda: slow_step(plan, built[-1] if built else None, examples, seconds),
        "validation": lambda: verdict.slow_validation(spent, validate_every, waits=waits),
        "checkpoint": lambda: verdict.slow_saving(save_every, watch.times["checkpoint"]),
        "callbacks": lambda: verdict.slow_callbacks(watch.largest("callbacks")),
        "logging": lambda: verdict.slow_logging(watch.largest("logging")),
        "caller": lambda: ": do less for each event",
        "tuning": lambda: verdict.slow_tuning(repr(plan)),
        "compile": lambda: verdict.slow_compiling(len(built), is_xla=plan.step == "xla"),
        "Python": lambda: verdict.slow_python(bridge.called_each_step),
    }
    return verdict.verdict(spent, causes)
