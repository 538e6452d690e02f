"""Why is it slow: profile some steps of a scratch leg, and say where the time goes."""

import contextlib
import functools
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, final

import keras
import tensorflow as tf

from loopwright.compat import xplane
from loopwright.compat.lines import place_of_node
from loopwright.compat.xplane import Recorded
from loopwright.errors import ConfigurationError
from loopwright.fit.parts import Parts
from loopwright.fit.session import Session
from loopwright.fit.step_cost import examples_per_batch, slow_part
from loopwright.insight.rehearsal_report import wrapped
from loopwright.insight.scratch import request_aside, scratch_session, trained_events
from loopwright.task import variables
from loopwright.task.optimizers import optimizers

if TYPE_CHECKING:
    from loopwright.fit.options import ProfileOptions
    from loopwright.fit.parts import Parts

_OPERATION = re.compile(r"^[^\s:]+:(_?[A-Z]\w*)$")
_CONTROL = re.compile(
    r"While|If|Case|\w*PartitionedCall|\w*Iterator\w*|\w*Optional\w*|\w*Dataset\w*|_?Xla\w*|"
    r"_Arg|_Retval|NoOp|Switch|Merge|Enter|Exit|NextIteration|LoopCond"
)
_ASYNCHRONOUS = ("Prefetch", "ParallelMap", "MapAndBatch", "ParallelInterleave", "ParallelBatch")
_LIMITING = 0.3
_WHOLE_BATCH = 0.02
"""Stages below this share of the busiest are left out."""


@final
@dataclass(frozen=True)
class OperationTime:
    """The time of one kind of operation at one place."""

    operation: str
    origin: str
    """The layer, the optimizer or the line that it comes from."""
    seconds_per_step: float
    """Of all threads together."""
    share: float
    """Of the time of all operations."""
    calls_per_step: float


@final
@dataclass(frozen=True)
class StageTime:
    """The time of one stage of a tf.data pipeline, without that of the stages before it."""

    name: str
    seconds_per_step: float
    is_limit: bool = False
    """Whether it is the busiest one of a pipeline that the step waits for."""


@final
class Origins:
    """Finds where an operation comes from, by its path in the trace."""

    def __init__(self, session: Session) -> None:
        task, plan = session.parts.task, session.parts.engine.plans.plan
        parts = [part.value for part in variables.all_parts(task)]
        self._layers = {
            part.name: type(part).__name__
            for part in parts
            if isinstance(part, keras.Layer) and not isinstance(part, keras.Model)
        }
        models = [part for part in parts if isinstance(part, keras.Model)]
        self._pairs = {(model.name, layer.name) for model in models for layer in model.layers}
        self._optimizers = {one.name: path for path, one in optimizers(task).items()}
        spec = None if session.feed is None else session.feed.batch_spec
        # A trace of a step that runs eagerly may stop.
        is_eager = plan.step == "eager"
        self._graphs = [] if is_eager else [session.parts.engine.graph("train_step", spec)]
        self.of = functools.cache(self._origin)

    def _origin(self, path: str) -> str:
        """Return the origin in a few words.

        A layer with its name, an optimizer, a line of the step, or the last names of the path.
        """
        backward = ", backward" if "gradient_tape" in path else ""
        names = path.split("/")
        # A step that is traced again has its models and layers under names with one more number.
        shorter = [re.sub(r"_\d+$", "", name) for name in names]
        layer = self._layer(names) or self._layer(shorter)
        if layer is None:
            layer = next((n for n in reversed([*shorter, *names]) if n in self._layers), None)
        if layer is not None:
            return f"{layer}{backward} ({self._layers[layer]})"
        optimizer = next((n for n in (*names, *shorter) if n in self._optimizers), None)
        if optimizer is not None:
            return f"{self._optimizers[optimizer]} (update)"
        line = place_of_node(path, self._graphs)
        written = re.search(r'file "([^"]+)", line (\d+)', line)
        if written:
            return f"{written[1]}:{written[2]}{backward}"
        inner = [name for name in path.split("/") if not re.fullmatch(_SCOPES, name)]
        return "/".join(inner[-2:]) + backward

    def _layer(self, names: Sequence[str]) -> str | None:
        """Return the innermost layer in a path below the model that has it."""
        for place in reversed(range(len(names))):
            if names[place] in self._layers and any(
                (model, names[place]) in self._pairs for model in names[:place]
            ):
                return names[place]
        return None


_SCOPES = r"while|cond|body|then|else|_\d+|gradient_tape|StatefulPartitionedCall\w*"


def operation_times(
    recorded: Iterable[Recorded], steps: int, origins: Origins
) -> list[OperationTime]:
    """Return the time of each kind of operation by its origin, the longest first."""
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    calls: dict[tuple[str, str], int] = defaultdict(int)
    for event in recorded:
        kind = _OPERATION.match(event.name)
        # The pipeline has operations of its own: they are in its stages.
        if kind is None or _CONTROL.fullmatch(kind[1]) or "tf_data" in event.thread:
            continue
        key = kind[1].lstrip("_"), origins.of(event.name.rpartition(":")[0])
        seconds[key] += event.seconds
        calls[key] += 1
    total = sum(seconds.values()) or 1.0
    return [
        OperationTime(kind, origin, spent / steps, spent / total, calls[kind, origin] / steps)
        for (kind, origin), spent in sorted(seconds.items(), key=lambda item: -item[1])
    ]


def stage_times(recorded: Sequence[Recorded], steps: int, *, waited: float) -> list[StageTime]:
    """Return how busy each stage of a pipeline was, the busiest first; none without a pipeline.

    `waited` are the seconds for which the steps waited. If no stage was busy for a good part of
    them, none limits: handing batches from thread to thread takes the time.
    """
    by_thread: dict[str, list[Recorded]] = defaultdict(list)
    for event in recorded:
        if _stage(event.name):
            by_thread[event.thread].append(event)
    busy: dict[str, float] = defaultdict(float)
    for events in by_thread.values():
        for event, own in _own_seconds(events):
            stage = _stage(event.name)
            # The thread that calls such a stage only waits for what others make.
            waits = event.name.startswith("Iterator::") and stage in (*_ASYNCHRONOUS, "Root")
            busy[stage] += 0.0 if waits else own
    found = [
        StageTime(name, seconds / steps)
        for name, seconds in sorted(busy.items(), key=lambda item: -item[1])
        if seconds > _WHOLE_BATCH * max(busy.values())
    ]
    if found and waited and found[0].seconds_per_step * steps >= _LIMITING * waited:
        found[0] = replace(found[0], is_limit=True)
    return found


def _stage(name: str) -> str:
    """Return the stage that an event belongs to; empty if it is not one of a pipeline.

    >>> _stage("Iterator::Root::Prefetch::ForeverRepeat[0]::Map"), _stage("MapAndBatchProduce")
    ('Map', 'MapAndBatch')
    """
    if name.startswith("Iterator::"):
        return re.sub(r"\[\d+\]", "", name).rpartition("::")[2]
    made = re.fullmatch(r"(\w+)Produce", name)
    return made[1] if made else ""


def _own_seconds(events: Sequence[Recorded]) -> list[tuple[Recorded, float]]:
    """Return each event of one thread with its seconds, without those of events inside it."""
    ordered = sorted(events, key=lambda event: (event.start, -event.seconds))
    inner, ends = [0.0] * len(ordered), [event.start + event.seconds for event in ordered]
    stack: list[int] = []
    for place, event in enumerate(ordered):
        while stack and ends[stack[-1]] <= event.start:
            stack.pop()
        if stack:
            inner[stack[-1]] += event.seconds
        stack.append(place)
    return [(event, event.seconds - spent) for event, spent in zip(ordered, inner, strict=True)]


@contextlib.contextmanager
def _profile_into(directory: Path) -> Iterator[None]:
    """Record what TensorFlow does, into files that TensorBoard shows."""
    options = tf.profiler.experimental.ProfilerOptions(
        host_tracer_level=2, python_tracer_level=0, device_tracer_level=1
    )
    try:
        tf.profiler.experimental.start(str(directory), options)
    except tf.errors.AlreadyExistsError as error:
        raise ConfigurationError(
            "Another profiler runs in this process.",
            expected="one at a time",
            received="a profile that was started and not stopped",
            do="leave out keras.callbacks.TensorBoard(profile_batch=...), or stop the other "
            "one: tf.profiler.experimental.stop()",
        ) from error
    try:
        yield
    finally:
        tf.profiler.experimental.stop()


_WARM_UP_CALLS = 2
_WARM_UP_STEPS = 17
"""The most steps that two calls run: one, then sixteen."""
_MOST_ROWS = 10
_ORIGIN_WIDTH = 29


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
        shares = [
            f"{_ms(seconds / self.steps)} {name} ({seconds / self.seconds:.0%})"
            for name, seconds in self.parts.items()
        ]
        yield from wrapped("of a step: " + ", ".join(shares))
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
            yield from wrapped(f"- {text}", indent="  ")
        if self.directory is not None:
            yield from wrapped(
                f"TensorBoard shows it: pip install xprof, tensorboard --logdir {self.directory}"
            )


def profile(parts: "Parts", options: "ProfileOptions") -> Profile:
    """Profile some steps after a warm-up; the task is as before."""
    steps = options.steps
    directory = None if options.directory is None else Path(options.directory)
    wanted = options.for_steps(steps, warm_up=_WARM_UP_STEPS, shuffle=options.shuffle)
    request = request_aside(wanted, parts)
    with contextlib.ExitStack() as stack:
        where = directory or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        session = stack.enter_context(scratch_session(parts, request))
        trained = trained_events(session)
        for _ in range(_WARM_UP_CALLS):
            next(trained)
        done, calls = 0, 0
        with _profile_into(where):
            before, began = dict(session.watch.seconds), session.watch.clock()
            for event in trained:
                done, calls = done + event.steps, calls + 1
                if done >= steps:
                    break
            seconds = session.watch.clock() - began
        spent = {name: session.watch.seconds[name] - before[name] for name in before}
        recorded = xplane.recorded(where)
        operations = operation_times(recorded, done, Origins(session))
        waited = spent["data wait"] if spent["data wait"] > 0.1 * seconds else 0.0
        stages = stage_times(recorded, done, waited=waited)
        examples = examples_per_batch(session)
        inside = spent["step"] + spent["data wait"] + spent["compile"]
        outside = max(0.0, seconds - inside)
        shares = {
            "waiting for data": spent["data wait"],
            "in the step": spent["step"],
            "compiling": spent["compile"],
            f"between {calls} {'call' if calls == 1 else 'calls'}": outside,
        }
        # What `fit` would say at its end, then what only a profile shows.
        advice = [slow_part(session, {**spent, "Python": outside}, done)]
        if operations and operations[0].share > 0.5:
            most = operations[0]
            share = f"{most.share:.0%} of all operations"
            advice.append(f"{most.operation} from {most.origin} is {share}.")
        nothing = "Nothing stands out: the step is as fast as its operations."
        return Profile(
            steps=done,
            seconds=seconds,
            examples_per_second=None if examples is None else examples * done / seconds,
            plan=session.parts.engine.plans.plan.in_words,
            parts={name: s for name, s in shares.items() if s > 0 or name == "in the step"},
            operations=tuple(operations[:_MOST_ROWS]),
            stages=tuple(stages),
            advice=tuple(filter(None, advice)) or (nothing,),
            directory=directory,
        )


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"


def _short(origin: str) -> str:
    """Return an origin that fits its column, without the class of the layer if need be."""
    return origin if len(origin) <= _ORIGIN_WIDTH else origin.partition(" (")[0][:_ORIGIN_WIDTH]
