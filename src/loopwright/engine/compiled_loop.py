"""A compiled loop: many steps of a task in one call, by a plan."""

import contextlib
import functools
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import tensorflow as tf

from loopwright import step_warnings
from loopwright.compat import (
    function_names,
    keras_internals,
    step_errors,
    tensorflow_internals,
)
from loopwright.data.readers import AnyReader, ResidentReader, StreamReader
from loopwright.data.source import Feed
from loopwright.distribute import replicas
from loopwright.engine import chunks
from loopwright.engine.bounds import Bounds
from loopwright.engine.loop_graph import (
    LoopGraph,
    LoopState,
    Recorder,
    joined,
    next_optional,
)
from loopwright.engine.metrics import Updated, Updates, watch_updates
from loopwright.engine.nan import (
    BROKEN,
    FINITE,
    LOSS,
    MOST_SKIPPED,
    STATE,
    FiniteCheck,
    first_operation,
)
from loopwright.engine.step import Step
from loopwright.engine.trace import Built, require_unchanging
from loopwright.errors import StepWarning
from loopwright.guards import constants
from loopwright.loop.clock import Stopwatch
from loopwright.plans.plan import Plan
from loopwright.task import variables
from loopwright.task.state import capture


@final
@dataclass(frozen=True)
class LoopResult:
    """What some steps gave."""

    steps: int
    totals: Any
    """The sums of their outputs, or the last ones; None if each was skipped."""
    seconds: Mapping[str, float]
    """How long they took, by part of a `Stopwatch`."""
    per_step: Any = None
    """The numbers of each step, if they are recorded; see `Recorder`."""
    not_finite: Sequence[int] = ()
    """Which steps were not finite, counted from 0: those that were skipped, or the last one."""
    has_finite_loss: bool = False
    """Whether only what the last of them wrote was NaN or infinite."""
    first_not_finite: str = ""
    """Where NaN or infinity began, if an eager step found it."""


@final
class CompiledLoop:
    """Runs one step of a task over batches of one spec, by one plan."""

    def __init__(
        self,
        step: Step,
        built: Built,
        plan: Plan,
        check: FiniteCheck,
        updates: Updates,
        recorder: Recorder | None = None,
    ) -> None:
        self._step, self._built, self._plan, self._check = step, built, plan, check
        # Without a trace, running the step shows which metrics it updates.
        self._updates = updates if built.updated is None and not step.reports_last else None
        self._recorder = recorder
        self._bounds = Bounds(looks=plan.step == "xla")
        self._graph = LoopGraph(step, built.outputs, plan, check, self._bounds, recorder)
        self._functions: dict[Any, Any] = {}
        self._graphs: list[Any] = []
        """Those that the loops were traced into."""
        self._batch: Any = None
        """The last one of an eager step."""
        self._first_not_finite = ""

    @property
    def skips(self) -> bool:
        """Whether steps that are not finite change nothing."""
        return self._check.skips

    def open(self, feed: Feed) -> AnyReader:
        """Return a reader at the beginning of the feed, of the kind that the plan reads."""
        if self._plan.feed == "resident" and feed.resident is not None:
            return ResidentReader(feed.resident)
        return feed.open()

    def run(
        self,
        reader: AnyReader,
        steps: int,
        where: Callable[[int], str] = lambda done: "",
        clock: Callable[[], float] = time.perf_counter,
    ) -> LoopResult:
        """Run up to `steps` steps; fewer if the data ended, or after one that is not finite.

        `where` names a step for messages, by how many steps the task has done before it.
        """
        watch = Stopwatch(clock)
        began, calls = watch.clock(), self._calls(reader, steps, watch)
        ran, totals, columns, not_finite, verdict = 0, None, list[Any](), list[int](), FINITE
        while len(not_finite) <= (MOST_SKIPPED if self.skips else 0):
            with self._failures_explained(where, reader):
                call = next(calls, None)
            if call is None:
                break
            done, verdict = int(call.done), int(call.verdict)
            if verdict == BROKEN:
                before = int(self._step.task.step_counter.read_value()) - 1
                raise self._bounds.error(call.broken, self._step.title, where(before))
            outputs = tf.nest.map_structure(lambda output: output.numpy(), call.totals)
            ran += done
            if verdict != FINITE and not (verdict == LOSS and self._check.passes_losses):
                not_finite.append(ran - 1)
            if done > 1 or not self.skips or verdict == FINITE:
                totals = self._graph.added(totals, outputs)
            if self._recorder is not None:
                columns.append(self._recorder.columns(call.rows, outputs, done))
        spent = watch.clock() - began
        watch.add("step", spent - watch.seconds["compile"] - watch.seconds["data wait"])
        return LoopResult(
            ran,
            totals,
            watch.seconds,
            joined(columns) if columns else None,
            not_finite,
            has_finite_loss=verdict == STATE,
            first_not_finite=self._first_not_finite,
        )

    def prepare(self, reader: AnyReader) -> Callable[[], None]:
        """Trace now; the function it returns compiles, also while training continues.

        It changes nothing. Not for an eager step, nor for one that runs call by call.
        """
        calls = [self._traced(*call) for call in self._calls_to_prepare(reader)]

        def compile_all() -> None:
            for call in calls:
                call()

        return compile_all

    # -- by the plan's loop and feed -----------------------------------------------------------

    def _calls(self, reader: AnyReader, steps: int, watch: Stopwatch) -> Iterator[LoopState]:
        """Call functions until `steps` steps have run, or the data has ended."""
        if isinstance(reader, ResidentReader):
            return self._over_resident(reader, steps, watch)
        if self._plan.loop == "python":
            return self._step_by_step(reader, steps, watch)
        if reader is None:
            return self._without_data(steps, watch)
        if self._plan.feed == "chunk":
            return self._over_chunks(reader, steps, watch)
        return self._over_stream(reader, steps, watch)

    def _in_one_call(self, steps: int) -> int:
        return steps if self._recorder is None else min(steps, self._recorder.most_steps)

    def _without_data(self, steps: int, watch: Stopwatch) -> Iterator[LoopState]:
        while steps:
            # Tensors, not Python numbers: every new number would be traced again.
            arguments = (tf.constant(self._in_one_call(steps)),)
            yield (call := self._call("none", self._graph.without_data, arguments, watch))
            steps -= int(call.done)

    def _over_resident(
        self, reader: ResidentReader, steps: int, watch: Stopwatch
    ) -> Iterator[LoopState]:
        resident = reader.resident
        while steps and reader.batches_left:
            batches, size = self._in_one_call(min(steps, reader.batches_left)), resident.batch_size
            if self._plan.loop == "fused":
                whole = resident.examples // size - reader.index
                rest = resident.examples % size
                batches, size = (min(batches, whole), size) if whole else (1, rest)
            begin = tf.constant(reader.index * resident.batch_size)
            arguments = (resident.tensors, reader.order, begin, tf.constant(batches))
            loop = self._graph.over_resident(size)
            call = self._call(("resident", size), loop, arguments, watch)
            done = int(call.done)
            reader.advance(done)
            steps -= done
            yield call

    def _over_stream(
        self, reader: StreamReader, steps: int, watch: Stopwatch
    ) -> Iterator[LoopState]:
        loop = self._graph.over_stream(reader.end, reader.batch_spec)
        key = ("stream", reader.end == "marked")  # the loop reads the end of the data from it
        has_more = True
        while steps and has_more:
            compiling = watch.seconds["compile"]
            arguments = (reader.iterator, tf.constant(self._in_one_call(steps)))
            call, has_more, (waited, *sizes) = self._call(key, loop, arguments, watch)
            watch.add("data wait", float(waited))
            if watch.seconds["compile"] != compiling:  # the first call waited while it compiled
                watch.add("compile", -float(waited))
            reader.note_sizes(*(int(size) for size in sizes if 0 < size < tf.int32.max))
            steps -= int(call.done)
            if call.done:
                yield call

    def _over_chunks(
        self, reader: StreamReader, steps: int, watch: Stopwatch
    ) -> Iterator[LoopState]:
        has_more = True
        while steps and has_more:
            with watch.timing("data wait"):
                count, chunk, has_more = self._pulled(reader, self._in_one_call(steps))
            steps -= count
            begin = 0
            while begin < count:  # a step that is skipped ends a call
                key = ("chunk", tf.nest.flatten(chunk)[0].shape[1])
                arguments = (chunk, tf.constant(begin), tf.constant(count - begin))
                yield (call := self._call(key, self._graph.over_chunk, arguments, watch))
                begin += int(call.done)

    def _pulled(self, reader: StreamReader, steps: int) -> tuple[int, Any, bool]:
        """Return how many batches of one size there are, their chunk, and if more may come."""
        spec = reader.batch_spec
        if not reader.sizes and reader.held is None:
            optional = next_optional(reader.iterator, reader.end)
            if not optional.has_value():
                return 0, None, False
            reader.hold(optional.get_value())
        if reader.held is not None:
            batch = reader.take_held()
            size = int(replicas.count_examples(batch))
            reader.note_sizes(size)
            return 1, chunks.alone(batch, spec, size), True
        size = max(reader.sizes)
        limit = min(steps, chunks.room(spec, size))

        def pull(iterator: Any, limit: Any) -> Any:
            return chunks.pull(lambda: next_optional(iterator, reader.end), spec, size, limit)

        function = self._function(("pull", size, reader.end == "marked"), pull)
        pulled = function(reader.iterator, tf.constant(limit))
        count = int(pulled.batches)
        if pulled.has_other:
            reader.hold(pulled.other)
        return count, pulled.chunk, count == limit or reader.held is not None

    def _step_by_step(
        self, reader: StreamReader | None, steps: int, watch: Stopwatch
    ) -> Iterator[LoopState]:
        for _ in range(steps):
            batch = None
            if reader is not None:
                with watch.timing("data wait"):
                    optional = next_optional(reader.iterator, reader.end)
                    if not optional.has_value():
                        return
                    batch = optional.get_value()
            if self._plan.step == "eager":
                self._batch = batch
                outputs, verdict, broken = self._run_eagerly(batch)
            else:
                arguments = (batch,)
                outputs, verdict, broken = self._call("python", self._graph.one, arguments, watch)
            yield LoopState(1, verdict, broken, outputs, ())

    def _failures_explained(
        self, where: Callable[[int], str], reader: AnyReader
    ) -> contextlib.AbstractContextManager[None]:
        if tensorflow_internals.workers(self._step.strategy)[0] > 1:
            return contextlib.nullcontext()  # it may be another worker's failure
        counter = self._step.task.step_counter
        return step_errors.run_explained(
            self._step.title,
            lambda: self._graphs,
            lambda: where(int(counter.read_value())),
            lambda: self._examples_in(reader),
        )

    def _examples_in(self, reader: AnyReader) -> int | None:
        """Return how many examples the largest batch has, if only the first one; None: unknown."""
        if reader is None or reader.largest_batch is not None:
            return None if reader is None else reader.largest_batch
        if self._batch is not None:
            return int(replicas.count_examples(self._batch))
        return replicas.known_example_count(self._built.batch_spec)

    def _run_eagerly(self, batch: Any) -> tuple[Any, Any, Any]:
        looks = self._check.looks and not self.skips and self._step.replicas == 1
        before = capture(variables.named(self._step.task).values() if looks else [])
        with step_warnings.silenced(self._step.silenced):
            outputs, verdict, broken = self._one_eager_step(batch)
        if looks and verdict != FINITE:
            again = functools.partial(self._graph.one, batch)
            self._first_not_finite = first_operation(again, before)
        return outputs, verdict, broken

    def _one_eager_step(self, batch: Any) -> tuple[Any, Any, Any]:
        if self._updates is None:
            return self._graph.one(batch)
        with watch_updates(self._step.task) as updated:
            called = self._graph.one(batch)
        self._updates.note(self._step.name, Updated(frozenset(updated)))
        return called

    # -- compiling -----------------------------------------------------------------------------

    def _call(
        self, key: Any, function: Callable[..., Any], arguments: tuple[Any, ...], watch: Stopwatch
    ) -> Any:
        """Calls a function compiled for this key; the first call traces it."""
        if key in self._functions:
            return self._functions[key](*arguments)
        with watch.timing("compile"), warnings.catch_warnings():
            # What is to be said about the step was said while it was built.
            warnings.simplefilter("ignore", StepWarning)
            with self._trace_explained(key):
                self._concrete(key, function, arguments)
            return self._functions[key](*arguments)

    def _concrete(self, key: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Trace a function, once for each key; raise if Python computes other values each time."""
        if key in self._functions:
            return self._functions[key].get_concrete_function(*arguments)
        traces = list[constants.Constants]()

        def trace() -> Any:
            # Under the name of a program that it is not, a traced function would run that one.
            self._functions.pop(key, None)
            self._graph.forget_compiled_steps()
            compiled = self._function(key, function)
            with constants.recorded() as traced, keras_internals.without_keras_warnings():
                concrete = compiled.get_concrete_function(*arguments)
            traces[:] = traced
            return concrete

        if self._plan.step == "xla":
            built = self._built
            # In words that are the same for equal trainers.
            program = f"{self._step.title} {self._plan} {key} {built.batch_spec} {built.digest}"
            is_shared = self._step.replicas == 1 and built.is_repeatable
            concrete = function_names.trace_by_name(program, trace, is_shared=is_shared)
        else:
            concrete = trace()
        self._graphs.append(concrete.graph)
        if self._step.replicas == 1:
            for_xla = self._plan.step == "xla"
            require_unchanging(self._step, self._built, traces, for_xla=for_xla)
        return concrete

    @contextlib.contextmanager
    def _trace_explained(self, key: Any) -> Iterator[None]:
        """Explain a trace that fails for one size of batches, as the step would fail for it."""
        spec = self._built.batch_spec
        with step_errors.trace_explained(self._step.title, spec):
            try:
                yield
            except (TypeError, ValueError):
                if isinstance(key, tuple) and spec is not None:
                    # Without XLA, on copies of its variables; what is made for XLA may not run so.
                    plan = replace(self._plan, rewrites=())
                    graph = LoopGraph(
                        self._step, self._built.outputs, plan, self._check, self._bounds
                    )
                    one: Any = tensorflow_internals.compiled(graph.one)
                    concrete = one.get_concrete_function(spec)
                    self._graphs.append(concrete.graph)
                    zeros = chunks.zeros(spec, size=key[1])
                    tensorflow_internals.run_on_copies(concrete, (zeros,))
                raise

    def _function(self, key: Any, function: Callable[..., Any]) -> Any:
        if key not in self._functions:
            xla = self._is_xla(key)
            self._functions[key] = tensorflow_internals.compiled(function, xla=xla)
        return self._functions[key]

    def _is_xla(self, key: Any) -> bool:
        """Whether XLA compiles the whole function, not only the step in it."""
        is_pull = isinstance(key, tuple) and key[0] == "pull"
        is_fused = self._plan.loop == "fused" and not is_pull
        return is_fused or (self._plan.step, key) == ("xla", "python")

    def _calls_to_prepare(self, reader: AnyReader) -> Iterator[tuple[Any, ...]]:
        """Key, function and arguments of every call to come, but for the number of steps.

        With an iterator, also the arguments to compile with, which take nothing from it.
        """
        if reader is None:
            yield "none", self._graph.without_data, ()
        elif isinstance(reader, ResidentReader):
            resident = reader.resident
            rest = resident.examples % resident.batch_size
            whole = resident.examples - rest
            for size, begin in ((resident.batch_size, 0), (rest, whole)):
                if size and begin < resident.examples:
                    own = size if self._plan.loop == "fused" else resident.batch_size
                    arguments = (resident.tensors, reader.order, tf.constant(begin))
                    yield ("resident", own), self._graph.over_resident(own), arguments
        else:
            spec, known = reader.batch_spec, replicas.known_example_count(reader.batch_spec)
            for size in reader.sizes if known is None else [known]:
                if self._plan.feed == "chunk":
                    chunk = chunks.empty(spec, size)
                    yield ("chunk", size), self._graph.over_chunk, (chunk, tf.constant(0))
                else:
                    loop = self._graph.over_stream(reader.end, spec)
                    key = ("stream", reader.end == "marked")
                    yield key, loop, (reader.iterator,), (reader.zeros(size),)

    def _traced(
        self,
        key: Any,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        stand_in: tuple[Any, ...] | None = None,
    ) -> Callable[[], None]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", StepWarning)
            concrete = self._concrete(key, function, (*arguments, tf.constant(0)))
        if self._plan.loop == "fused":
            compiled = self._functions[key]
            # Without a step nothing changes, and the program is that of any number of steps.
            return lambda: compiled(*arguments, tf.constant(0))
        arguments = stand_in or arguments
        return lambda: tensorflow_internals.run_on_copies(concrete, (*arguments, tf.constant(1)))
