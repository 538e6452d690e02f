"""Running: many steps in one call, by a plan."""

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import tensorflow as tf

from loopwright import step_warnings
from loopwright.compat import (
    function_names,
    keras_internals,
    runtime_errors,
    tensorflow_internals,
)
from loopwright.compat.error_messages import explained
from loopwright.compat.runtime_errors import error_for
from loopwright.data.readers import AnyReader, ResidentReader, StreamReader
from loopwright.data.source import Feed
from loopwright.distribute import replicas
from loopwright.engine import loops
from loopwright.engine.bounds import Bounds
from loopwright.engine.loops import Loops, next_optional
from loopwright.engine.nan import FINITE, STATE, BadStep, Watch, first_operation
from loopwright.engine.step import Step
from loopwright.engine.step_records import Recorder, joined
from loopwright.engine.trace import Built, require_unchanging
from loopwright.errors import StepWarning
from loopwright.guards import constants
from loopwright.loop.clock import Stopwatch
from loopwright.plans.plan import Plan
from loopwright.task import variables as state
from loopwright.task.metric_updates import Updated, Updates, watched

_Looked = tuple[list[BadStep], Any]
"""Which steps were not finite, and what is noted about bounds."""

_Called = tuple[int, Any, _Looked, bool, Any]
"""How many steps, their outputs, what was seen in them, whether more may be run, the table."""

_NOTHING_SEEN: _Looked = ([], None)


@final
@dataclass(frozen=True)
class Ran:
    """The result of some steps."""

    steps: int
    outputs: Any
    """Their totals, or the last ones."""
    not_finite: Sequence[BadStep] = ()
    """Which steps were not finite: those that were skipped, or the first."""
    columns: Any = None
    """The numbers of each step, if they are recorded; see `Recorder`."""


@final
class StepRunner:
    """Runs one step of a task over batches of one spec, by one plan."""

    def __init__(
        self,
        step: Step,
        built: Built,
        plan: Plan,
        watch: Watch,
        updates: Updates,
        recorder: Recorder | None = None,
    ) -> None:
        self._step, self._built, self._plan, self._finite = step, built, plan, watch
        # Without a trace, running the step shows which metrics it updates.
        self._updates = updates if built.updated is None and not step.reports_last else None
        self._recorder = recorder
        self._bounds = Bounds(looks=plan.step == "xla")
        self._loops = Loops(step, built.outputs, plan, watch, self._bounds, recorder)
        self._functions: dict[Any, Any] = {}
        self._graphs: list[Any] = []
        """Those that the loops were traced into."""
        self._batch: Any = None
        """The last one of an eager step."""
        self.first_not_finite = ""
        """Where NaN or infinity began, if an eager step found it."""

    @property
    def skips(self) -> bool:
        """Whether steps that are not finite change nothing."""
        return self._finite.skips

    def open(self, feed: Feed | None) -> AnyReader:
        """A reader at the beginning of the feed, of the kind that the plan reads."""
        if feed is None:
            return None
        if self._plan.feed == "resident" and feed.resident is not None:
            return ResidentReader(feed.resident)
        return feed.open()

    def run(
        self,
        reader: AnyReader,
        steps: int,
        watch: Stopwatch,
        where: Callable[[int], str] = lambda done: "",
    ) -> Ran:
        """Runs up to `steps` steps; fewer only if the data ended.

        `where` names a step for messages, by how many steps the task has done before it.
        """
        ran, total, not_finite, more, columns = 0, None, list[BadStep](), True, list[Any]()
        recorder = self._recorder
        while ran < steps and more:
            most = steps if recorder is None else recorder.most_steps
            with self._failures_explained(where, reader):
                called = self._run(reader, min(steps - ran, most), watch)
            done, outputs, (found, note), more, table = called
            if done:
                self._require_in_bounds(note, done, where)
                outputs = tf.nest.map_structure(lambda output: output.numpy(), outputs)
                not_finite += [replace(bad, place=ran + bad.place) for bad in found]
                ran, total = ran + done, self._loops.added(total, outputs)
                if recorder is not None:
                    columns.append(recorder.columns(table, outputs, done))
        return Ran(ran, total, not_finite, joined(columns) if columns else None)

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

    def _run(self, reader: AnyReader, steps: int, watch: Stopwatch) -> _Called:
        """One call of a function."""
        if isinstance(reader, ResidentReader):
            return self._run_resident(reader, steps, watch)
        if self._plan.loop == "python":
            return self._run_in_python(reader, watch)
        if reader is None:
            # Tensors, not Python numbers: every new number would be traced again.
            arguments = (tf.constant(steps),)
            _, outputs, marks, table = self._call(
                "none", self._loops.without_data, arguments, watch
            )
            return steps, outputs, self._seen(marks, steps), True, table
        if self._plan.feed == "chunk":
            return self._run_chunk(reader, steps, watch)
        return self._run_stream(reader, steps, watch)

    def _run_resident(self, reader: ResidentReader, steps: int, watch: Stopwatch) -> _Called:
        resident, batches = reader.resident, min(steps, reader.batches_left)
        if not batches:
            return 0, None, _NOTHING_SEEN, False, ()
        size = resident.batch_size
        if self._plan.loop == "fused":
            whole = resident.examples // size - reader.index
            batches, size = (min(batches, whole), size) if whole else (1, resident.examples % size)
        begin = tf.constant(reader.index * resident.batch_size)
        arguments = (resident.tensors, reader.order, begin, tf.constant(batches))
        loop = self._loops.over_resident(size)
        _, outputs, marks, table = self._call(("resident", size), loop, arguments, watch)
        reader.advance(batches)
        return batches, outputs, self._seen(marks, batches), True, table

    def _run_stream(self, reader: StreamReader, steps: int, watch: Stopwatch) -> _Called:
        loop = self._loops.over_stream(reader.end, reader.batch_spec)
        compiling = watch.seconds["compile"]
        arguments = (reader.iterator, tf.constant(steps))
        key = ("stream", reader.end == "marked")  # the loop reads the end of the data from it
        done, outputs, marks, table, waited, sizes = self._call(key, loop, arguments, watch)
        watch.add("data wait", float(waited))
        if watch.seconds["compile"] != compiling:  # the first call waited inside its compile time
            watch.add("compile", -float(waited))
        reader.sizes |= {int(size) for size in sizes if 0 < size < tf.int32.max}
        done = int(done)
        return done, outputs, self._seen(marks, done), done == steps, table

    def _run_chunk(self, reader: StreamReader, steps: int, watch: Stopwatch) -> _Called:
        with watch.timing("data wait"):
            count, chunk, more = self._pulled(reader, steps)
        if not count:
            return 0, None, _NOTHING_SEEN, more, ()
        arguments = (chunk, tf.constant(count))
        size = tf.nest.flatten(chunk)[0].shape[1]
        _, outputs, marks, table = self._call(
            ("chunk", size), self._loops.over_chunk, arguments, watch
        )
        return count, outputs, self._seen(marks, count), more, table

    def _pulled(self, reader: StreamReader, steps: int) -> tuple[int, Any, bool]:
        """Return how many batches of one size there are, their chunk, and if more may come."""
        spec = reader.batch_spec
        if not reader.sizes and reader.held is None:
            optional = next_optional(reader.iterator, reader.end)
            if not optional.has_value():
                return 0, None, False
            reader.held = optional.get_value()
        if reader.held is not None:
            batch, reader.held = reader.held, None
            size = int(replicas.count_examples(batch))
            reader.sizes.add(size)
            return 1, loops.alone(batch, spec, size), True
        size = max(reader.sizes)
        limit = min(steps, loops.room(spec, size))

        def pull(iterator: Any, limit: Any) -> Any:
            return loops.pull(lambda: next_optional(iterator, reader.end), spec, size, limit)

        function = self._function(("pull", size, reader.end == "marked"), pull)
        count, chunk, is_other, other = function(reader.iterator, tf.constant(limit))
        reader.held = other if bool(is_other) else None
        return int(count), chunk, int(count) == limit or reader.held is not None

    def _run_in_python(self, reader: StreamReader | None, watch: Stopwatch) -> _Called:
        """One call for one step."""
        batch = None
        if reader is not None:
            with watch.timing("data wait"):
                optional = next_optional(reader.iterator, reader.end)
                if not optional.has_value():
                    return 0, None, _NOTHING_SEEN, False, ()
                batch = optional.get_value()
        if self._plan.step == "eager":
            self._batch = batch
            outputs, (verdict, note) = self._run_eagerly(batch)
        else:
            outputs, (verdict, note) = self._call("python", self._loops.one, (batch,), watch)
        bad = [] if verdict == FINITE else [BadStep(0, has_finite_loss=bool(verdict == STATE))]
        return 1, outputs, (bad, note), True, ()

    def _seen(self, marks: Any, steps: int) -> _Looked:
        of_finite, note = marks
        return self._finite.not_finite(of_finite, steps), note

    def _require_in_bounds(self, note: Any, done: int, where: Callable[[int], str]) -> None:
        """Raises for the first of the last `done` steps that broke a bound."""
        violation = self._bounds.violation(note)
        if violation is not None:
            step = int(self._step.task.step_counter.read_value()) - done + violation.step
            raise error_for(violation.failure, self._step.title, violation.place, where(step))

    def _failures_explained(
        self, where: Callable[[int], str], reader: AnyReader
    ) -> contextlib.AbstractContextManager[None]:
        if tensorflow_internals.workers(self._step.strategy)[0] > 1:
            return contextlib.nullcontext()  # it may be another worker's failure
        counter = self._step.task.step_counter
        return runtime_errors.explained(
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

    def _run_eagerly(self, batch: Any) -> tuple[Any, Any]:
        looks = self._finite.looks and not self.skips and self._step.replicas == 1
        variables = list(state.named(self._step.task).values()) if looks else []
        before = [variable.read_value() for variable in variables]
        with step_warnings.silenced(self._step.silenced):
            outputs, seen = self._one_eager_step(batch)
        if looks and seen[0] != FINITE:
            again = functools.partial(self._loops.one, batch)
            self.first_not_finite = first_operation(again, variables, before)
        return outputs, seen

    def _one_eager_step(self, batch: Any) -> tuple[Any, Any]:
        if self._updates is None:
            return self._loops.one(batch)
        with watched(self._step.task) as updated:
            called = self._loops.one(batch)
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
            self._loops.forget_compiled_steps()
            compiled = self._function(key, function)
            with constants.recorded() as traced, keras_internals.without_keras_warnings():
                concrete = compiled.get_concrete_function(*arguments)
            traces[:] = traced
            return concrete

        if self._plan.step == "xla":
            is_shared = self._step.replicas == 1 and self._built.is_repeatable
            concrete = function_names.trace_by_name(self._program(key), trace, is_shared=is_shared)
        else:
            concrete = trace()
        self._graphs.append(concrete.graph)
        if self._step.replicas == 1:
            for_xla = self._plan.step == "xla"
            require_unchanging(self._step, self._built, traces, for_xla=for_xla)
        return concrete

    def _program(self, key: Any) -> str:
        """What is compiled for this key, in words that are the same for equal trainers."""
        built = self._built
        return f"{self._step.title} {self._plan} {key} {built.batch_spec} {built.digest}"

    @contextlib.contextmanager
    def _trace_explained(self, key: Any) -> Iterator[None]:
        """Explains a trace that fails for one size of batches, as the step would fail for it."""
        with explained(self._step.title, self._built.batch_spec):
            try:
                yield
            except (TypeError, ValueError):
                if isinstance(key, tuple) and self._built.batch_spec is not None:
                    self._run_zeros(size=key[1])
                raise

    def _run_zeros(self, size: int) -> None:
        """Runs the step without XLA on a batch of zeros, on copies of its variables."""
        spec = self._built.batch_spec
        plan = replace(self._plan, rewrites=())  # made for XLA, they may not run without it
        as_written = Loops(self._step, self._built.outputs, plan, self._finite, self._bounds)
        one: Any = tensorflow_internals.compiled(as_written.one)
        concrete = one.get_concrete_function(spec)
        self._graphs.append(concrete.graph)
        tensorflow_internals.run_on_copies(concrete, (loops.zeros(spec, size),))

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
            yield "none", self._loops.without_data, ()
        elif isinstance(reader, ResidentReader):
            resident = reader.resident
            rest = resident.examples % resident.batch_size
            whole = resident.examples - rest
            for size, begin in ((resident.batch_size, 0), (rest, whole)):
                if size and begin < resident.examples:
                    own = size if self._plan.loop == "fused" else resident.batch_size
                    arguments = (resident.tensors, reader.order, tf.constant(begin))
                    yield ("resident", own), self._loops.over_resident(own), arguments
        else:
            spec, known = reader.batch_spec, replicas.known_example_count(reader.batch_spec)
            for size in reader.sizes if known is None else [known]:
                if self._plan.feed == "chunk":
                    chunk = loops.empty(spec, size)
                    yield ("chunk", size), self._loops.over_chunk, (chunk,)
                else:
                    loop = self._loops.over_stream(reader.end, spec)
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
