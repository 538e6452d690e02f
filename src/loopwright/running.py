"""Running: many steps in one call, by a plan."""

import contextlib
import warnings
from collections.abc import Callable
from typing import Any, final

import tensorflow as tf

from loopwright import adaptations
from loopwright.building import build
from loopwright.data import Feed, nests
from loopwright.errors import ConfigurationError, StepWarning, message
from loopwright.plans import Plan
from loopwright.readers import Reader, ResidentReader, StreamReader, open_stream
from loopwright.step import Step, StepName
from loopwright.task import Task


@final
class StepRunner:
    """Runs the train step or the test step of a task over batches of one spec."""

    def __init__(
        self,
        task: Task,
        name: StepName,
        batch_spec: Any,
        *,
        strategy: tf.distribute.Strategy,
        plan: Plan,
    ) -> None:
        is_eager = plan.step == "eager"
        self._step = Step(task, name, strategy, batch_spec is not None, converts=not is_eager)
        self._plan = plan
        self._calls: dict[Any, Callable[..., Any]] = {}
        self._outputs: Any = None
        _ = task.step_counter
        # Debugging eagerly, a trace would stop at breakpoints with symbolic tensors.
        if not is_eager or self._step.replicas > 1:
            spec = None if batch_spec is None else nests.spec_in_floatx(batch_spec)
            self._outputs = build(self._step, spec)

    def open(self, feed: Feed | None) -> Reader:
        """A reader at the beginning of the feed, of the kind that the plan reads."""
        if feed is None:
            return None
        if feed.resident is None or self._plan.reads_iterator:
            return open_stream(feed)
        return ResidentReader(feed.resident)

    def run(self, reader: Reader, steps: int) -> tuple[int, Any]:
        """Runs up to `steps` steps; returns how many it ran, and their totals or last outputs."""
        if isinstance(reader, ResidentReader):
            return self._run_resident(reader, steps)
        if self._plan.loop == "python":
            return self._run_in_python(reader, steps)
        # Tensors, not Python numbers: every new number would be traced anew.
        if reader is None:
            ran, outputs = self._call("none", self._loop_without_data, tf.constant(steps))
        else:
            loop = self._loop_over_stream(reader.end)
            arguments = (reader.iterator, tf.constant(steps))
            ran, outputs = self._call(reader.end, loop, *arguments)
        return int(ran), _as_numpy(outputs)

    # -- one step ------------------------------------------------------------------------------

    def _run_one(self, batch: Any) -> Any:
        is_xla = self._plan.step == "xla"
        with adaptations.random_numbers_for_xla() if is_xla else contextlib.nullcontext():
            outputs = self._step.on_all_replicas(batch)
        if self._step.name == "train_step":
            self._step.task.step_counter.assign_add(1)
        return outputs

    def _run_one_compiled(self, batch: Any) -> Any:
        """One step inside a loop that is not compiled by XLA as a whole."""
        if self._plan.step != "xla":
            return self._run_one(batch)
        if "one" not in self._calls:
            self._calls["one"] = adaptations.compiled(self._run_one, xla=True)
        return self._calls["one"](batch)

    def _added(self, before: Any, outputs: Any) -> Any:
        if before is None or self._step.reports_last:
            return outputs
        return tf.nest.map_structure(lambda a, b: a + b, before, outputs)

    # -- many steps ----------------------------------------------------------------------------

    def _loop_over_stream(self, end: str) -> Callable[..., Any]:
        """A loop over an iterator; `end` says how its data shows that it has come to an end."""

        def loop(iterator: Any, steps: Any) -> Any:
            def body(done: Any, _: Any, before: Any) -> Any:
                if end == "never":
                    return self._advanced(iterator.get_next(), done, before)
                optional = _next_optional(iterator, end)
                return tf.cond(
                    optional.has_value(),
                    lambda: self._advanced(optional.get_value(), done, before),
                    lambda: (done, tf.constant(False), before),
                )

            return self._many(body, steps)

        return loop

    def _loop_without_data(self, steps: Any) -> Any:
        return self._many(lambda done, _, before: self._advanced(None, done, before), steps)

    def _loop_over_resident(self, batch_size: int) -> Callable[..., Any]:
        """A loop that gathers its batches from tensors on the device, by their place in `order`."""
        is_fused = self._plan.loop == "fused"

        def loop(tensors: Any, order: Any, first: Any, steps: Any) -> Any:
            def body(done: Any, _: Any, before: Any) -> Any:
                begin = (first + done) * batch_size
                if is_fused:
                    # XLA has to know the size (a smaller last batch runs by itself), and the
                    # beginning of a slice would be a constant to it: a compile for each call.
                    some = tf.gather(order, begin + tf.range(batch_size))
                else:
                    some = order[begin : begin + batch_size]
                batch = tf.nest.map_structure(lambda leaf: tf.gather(leaf, some), tensors)
                return self._advanced(batch, done, before)

            return self._many(body, steps)

        return loop

    def _advanced(self, batch: Any, done: Any, before: Any) -> Any:
        run = self._run_one if self._plan.loop == "fused" else self._run_one_compiled
        return done + 1, tf.constant(True), self._added(before, run(batch))

    def _many(self, body: Callable[..., Any], steps: Any) -> Any:
        # A while on tensors: the bounds of a tf.range would be constants to XLA, and every new
        # number of steps would be compiled anew.
        shapes = tf.nest.map_structure(lambda t: t.shape, self._outputs)
        empty = tf.nest.map_structure(_zeros, self._outputs)
        done, _, outputs = tf.while_loop(
            lambda done, more, _: tf.logical_and(more, done < steps),
            body,
            (tf.constant(0), tf.constant(True), empty),
            shape_invariants=(tf.TensorShape([]), tf.TensorShape([]), shapes),
            parallel_iterations=1,
        )
        return done, outputs

    def _run_resident(self, reader: ResidentReader, steps: int) -> tuple[int, Any]:
        ran, total = 0, None
        while ran < steps and reader.batches_left:
            batches = min(steps - ran, reader.batches_left)
            done, outputs = self._call_resident(reader, batches)
            reader.advance(done)
            ran, total = ran + done, self._added(total, outputs)
        return ran, total

    def _call_resident(self, reader: ResidentReader, batches: int) -> tuple[int, Any]:
        resident, order = reader.resident, reader.order
        whole = resident.examples // resident.batch_size - reader.index
        if self._plan.loop == "fused" and whole == 0:
            some = order[reader.index * resident.batch_size :]
            batch = tf.nest.map_structure(lambda leaf: tf.gather(leaf, some), resident.tensors)
            return 1, _as_numpy(self._call("last", self._run_one, batch))
        if self._plan.loop == "fused":
            batches = min(batches, whole)
        loop = self._loop_over_resident(resident.batch_size)
        arguments = (resident.tensors, order, tf.constant(reader.index), tf.constant(batches))
        _, outputs = self._call(("resident", resident.batch_size), loop, *arguments)
        return batches, _as_numpy(outputs)

    def _run_in_python(self, reader: StreamReader | None, steps: int) -> tuple[int, Any]:
        """One call for each step."""
        total: Any = None
        for done in range(steps):
            batch = None
            if reader is not None:
                optional = _next_optional(reader.iterator, reader.end)
                if not optional.has_value():
                    return done, total
                batch = optional.get_value()
            if self._plan.step == "eager":
                outputs = self._run_one(batch)
            else:
                outputs = self._call("python", self._run_one, batch)
            total = self._added(total, _as_numpy(outputs))
        return steps, total

    def _call(self, key: Any, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a function compiled for this key; the first call traces it."""
        if key in self._calls:
            return self._calls[key](*arguments)
        is_xla = self._plan.loop == "fused" or (self._plan.step, key) == ("xla", "python")
        self._calls[key] = adaptations.compiled(function, xla=is_xla)
        with warnings.catch_warnings():
            # What is to be said about the step was said while it was built.
            warnings.simplefilter("ignore", StepWarning)
            try:
                return self._calls[key](*arguments)
            except tf.errors.InvalidArgumentError as error:
                if "not compilable" in str(error) or "unsupported operations" in str(error):
                    raise ConfigurationError(_not_for_xla(self._step.title, error)) from None
                raise


def _not_for_xla(title: str, error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = next((line for line in lines if "compil" in line or "unsupported" in line), lines[0])
    return message(
        f"XLA cannot compile {title}.",
        expected="operations that XLA has",
        received=reason,
        do='use plan="graph"',
    )


def _next_optional(iterator: Any, end: str) -> Any:
    return iterator.get_next() if end == "marked" else iterator.get_next_as_optional()


def _as_numpy(outputs: Any) -> Any:
    return tf.nest.map_structure(lambda t: t.numpy(), outputs)


def _zeros(like: Any) -> Any:
    return tf.zeros([0 if size is None else size for size in like.shape], like.dtype)
