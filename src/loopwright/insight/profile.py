"""Why is it slow: profile some steps of a scratch leg, and say where the time goes."""

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, final

import tensorflow as tf

from loopwright.compat import xplane
from loopwright.errors import ConfigurationError, message
from loopwright.events import Trained
from loopwright.fit.leg import Leg
from loopwright.fit.leg_loop import NoCheckpoints
from loopwright.fit.options import FitOptions
from loopwright.fit.parts import Parts
from loopwright.insight import figures, flops
from loopwright.insight.profile_events import (
    OperationTime,
    Origins,
    StageTime,
    operation_times,
    stage_times,
)
from loopwright.insight.scratch import request_aside, scratch_leg, with_own_traces
from loopwright.loop.schedule import Every, Place

_WARM_UP_CALLS = 2
_WARM_UP_STEPS = 17
"""The most steps that two calls run: one, then sixteen."""
_MOST_ROWS = 10
_ORIGIN_WIDTH = 29
_FAR_FROM_PEAK = 0.05


@final
@dataclass(frozen=True)
class ProfileOptions:
    """The arguments of `profile`, as they were passed."""

    x: Any = None
    y: Any = None
    sample_weight: Any = None
    _: KW_ONLY
    batch_size: int | None = None
    class_weight: Mapping[int, float] | None = None
    shuffle: bool = True
    steps: int = 50
    directory: str | os.PathLike[str] | None = None

    def for_fit(self) -> FitOptions:
        """Return the options of the `fit` that is profiled; raise if there are no steps."""
        if self.steps < 1:
            raise ConfigurationError(
                message(
                    "A profile needs steps.",
                    expected="a positive number",
                    received=f"steps={self.steps}",
                    do="leave it out for 50 steps",
                )
            )
        return FitOptions(
            self.x,
            self.y,
            self.sample_weight,
            batch_size=self.batch_size,
            class_weight=self.class_weight,
            shuffle=self.shuffle,
            until=Every(steps=self.steps + _WARM_UP_STEPS),
        )


@final
@dataclass(frozen=True)
class Profile:
    """Where the time of some steps went."""

    steps: int
    seconds: float
    examples_per_second: float | None
    plan: str
    parts: Mapping[str, float]
    """Seconds by part: waiting for data, in the step, between calls."""
    operations: tuple[OperationTime, ...]
    """Those that took most time, the longest first."""
    stages: tuple[StageTime, ...]
    """The stages of the tf.data pipeline, the busiest first."""
    gflops: float | None
    """10^9 operations per second of the matrix products and convolutions."""
    machine_gflops: float
    """What a large matrix product reaches on this machine."""
    advice: tuple[str, ...]
    """What to change, the most useful first."""
    directory: Path | None = None
    """Where TensorBoard finds the profile, if it was kept."""

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        step = self.seconds / self.steps
        rate = f"{self.steps / self.seconds:,.0f} steps/s"
        if self.examples_per_second is not None:
            rate += f", {self.examples_per_second:,.0f} examples/s"
        yield f"{self.steps:,} steps in {self.seconds:.2f} s: {_ms(step)} per step ({rate})"
        yield f"plan: {self.plan}"
        yield from figures.wrapped("of a step: " + ", ".join(self._shares()))
        if self.gflops is not None:
            share = self.gflops / self.machine_gflops
            yield (
                f"GFLOP/s: {self.gflops:,.2f}, {share:.1%} of the {self.machine_gflops:,.0f} of a "
                "large matrix product here"
            )
        yield ""
        yield f"{'operation':<26} {'ms/step':>8} {'share':>6} {'calls':>6}  from"
        for one in self.operations:
            yield (
                f"{one.operation[:26]:<26} {1000 * one.seconds_per_step:>8.3f} {one.share:>6.1%} "
                f"{one.calls_per_step:>6.1f}  {_short(one.origin)}"
            )
        if not self.operations:
            yield "(none was recorded: the step ran inside XLA, or in Python)"
        if self.stages:
            yield ""
            yield f"{'stage of the data':<26} {'ms/step':>8}"
            for stage in self.stages:
                mark = "  <- limits" if stage.is_limit else ""
                yield f"{stage.name[:26]:<26} {1000 * stage.seconds_per_step:>8.3f}{mark}"
        yield ""
        for text in self.advice:
            yield from figures.wrapped(f"- {text}", indent="  ")
        if self.directory is not None:
            yield from figures.wrapped(
                f"TensorBoard shows it: pip install xprof, tensorboard --logdir {self.directory}"
            )

    def _shares(self) -> list[str]:
        return [
            f"{_ms(seconds / self.steps)} {name} ({seconds / self.seconds:.0%})"
            for name, seconds in self.parts.items()
        ]


def profile(parts: Parts, options: ProfileOptions) -> Profile:
    """Profile some steps after a warm-up; the task is as before."""
    steps = options.steps
    directory = None if options.directory is None else Path(options.directory)
    machine = flops.of_machine()
    request = request_aside(options.for_fit(), parts)
    parts = with_own_traces(parts)
    with contextlib.ExitStack() as stack:
        where = directory or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        leg = stack.enter_context(scratch_leg(parts, request))
        happened = leg.looped(Place(), {}, NoCheckpoints())
        trained = (event for event, _, _ in happened if isinstance(event, Trained))
        for _ in range(_WARM_UP_CALLS):
            next(trained)
        done, calls = 0, 0
        with xplane.profiling(where):
            before, began = dict(leg.watch.seconds), leg.watch.clock()
            for event in trained:
                done, calls = done + event.steps, calls + 1
                if done >= steps:
                    break
            seconds = leg.watch.clock() - began
        spent = {name: leg.watch.seconds[name] - before[name] for name in before}
        recorded = xplane.recorded(where)
        graph = _graph(leg)
        origins = Origins(parts.task, graph)
        operations = operation_times(recorded, done, origins)
        waited = spent["data wait"] if spent["data wait"] > 0.1 * seconds else 0.0
        stages = stage_times(recorded, done, waited=waited)
        counted = _flops(graph)
        gflops = None if counted is None else counted * done / max(spent["step"], 1e-9) / 1e9
        examples = leg.stepper.examples_per_batch()
        shares = _parts(spent, seconds, calls)
        advice = _advice(leg, spent, seconds, done, operations, gflops, machine / 1e9)
        return Profile(
            steps=done,
            seconds=seconds,
            examples_per_second=None if examples is None else examples * done / seconds,
            plan=leg.parts.selector.plan.in_words,
            parts=shares,
            operations=tuple(operations[:_MOST_ROWS]),
            stages=tuple(stages),
            gflops=gflops,
            machine_gflops=machine / 1e9,
            advice=advice,
            directory=directory,
        )


def _parts(spent: Mapping[str, float], seconds: float, calls: int) -> dict[str, float]:
    inside = spent["step"] + spent["data wait"] + spent["compile"]
    found = {
        "waiting for data": spent["data wait"],
        "in the step": spent["step"],
        "compiling": spent["compile"],
        f"between {calls} {'call' if calls == 1 else 'calls'}": max(0.0, seconds - inside),
    }
    return {name: value for name, value in found.items() if value > 0 or name == "in the step"}


def _batch_spec(leg: Leg) -> Any:
    """Return the spec of a whole batch; None if its size is not known, or if there is no data."""
    feed = leg.feed
    if feed is None:
        return None
    size = leg.stepper.examples_per_batch()
    if size is None and feed.resident is not None:
        size = feed.resident.batch_size
    leaves = tf.nest.flatten(feed.batch_spec)
    if size is None or not all(isinstance(leaf, tf.TensorSpec) for leaf in leaves):
        return feed.batch_spec
    return tf.nest.map_structure(
        lambda leaf: tf.TensorSpec([size, *leaf.shape[1:]], leaf.dtype), feed.batch_spec
    )


def _graph(leg: Leg) -> Any:
    """Return the graph of the step; None if it runs eagerly, where a trace may stop."""
    if leg.parts.selector.plan.step == "eager":
        return None
    return leg.parts.compiled.graph("train_step", _batch_spec(leg))


def _flops(graph: Any) -> float | None:
    if graph is None:
        return None
    counted = flops.of_graph(graph)
    return None if counted.uncounted or not counted.flops else counted.flops


def _advice(
    leg: Leg,
    spent: Mapping[str, float],
    seconds: float,
    steps: int,
    operations: Sequence[OperationTime],
    gflops: float | None,
    machine: float,
) -> tuple[str, ...]:
    """Return what to change: what `fit` would say at its end, then what only a profile shows."""
    inside = sum(spent[name] for name in ("step", "data wait", "compile"))
    whole = {**spent, "Python": max(0.0, seconds - inside)}
    found = list(filter(None, [leg.slow_part(whole, steps)]))
    examples = leg.stepper.examples_per_batch()
    plan = leg.parts.selector.plan
    waits = spent["data wait"] > spent["step"]
    is_far = gflops is not None and gflops < _FAR_FROM_PEAK * machine
    if is_far and plan.step == "graph" and not waits:
        found.append(
            'Most of the step is overhead of many small operations: plan="auto" measures XLA '
            'while it trains; plan="fused" has the loop inside XLA.'
        )
    if is_far and examples is not None and not waits:
        found.append(
            f"Batches of {examples:,} examples keep the machine far below its peak: profile "
            f"batches of {2 * examples:,} to see whether they train more examples per second."
        )
    if operations and operations[0].share > 0.5:
        one = operations[0]
        found.append(f"{one.operation} from {one.origin} is {one.share:.0%} of all operations.")
    return tuple(found) or ("Nothing stands out: the step is as fast as its operations.",)


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"


def _short(origin: str) -> str:
    """Return an origin that fits its column, without the class of the layer if need be."""
    return origin if len(origin) <= _ORIGIN_WIDTH else origin.partition(" (")[0][:_ORIGIN_WIDTH]
