"""Loops around a step, as graphs: over resident arrays, chunks, an iterator, or no data."""

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any, final

import tensorflow as tf

from loopwright.compat import tensorflow_internals, xla_rewrites
from loopwright.distribute import replicas
from loopwright.engine.bounds import Bounds, is_assertion, operations_made
from loopwright.engine.nan import FINITE, Watch
from loopwright.engine.step import Step
from loopwright.engine.step_records import Recorder
from loopwright.plans.plan import Plan


@final
class Loops:
    """The loops of one plan around one step; `outputs` are the specs of its outputs.

    With the outputs they return the marks of `watch` and `bounds`: which steps were not finite, and
    which broke a bound; and the table of `recorder`: a row for each step, or nothing.
    """

    def __init__(
        self,
        step: Step,
        outputs: Any,
        plan: Plan,
        watch: Watch,
        bounds: Bounds,
        recorder: Recorder | None = None,
    ) -> None:
        self._step, self._outputs, self._plan, self._watch = step, outputs, plan, watch
        self._bounds = bounds
        self._recorder = recorder
        self._xla_steps = dict[Any, Callable[..., Any]]()

    def one(self, batch: Any, examples: Any = None) -> tuple[Any, Any]:
        """One step, as it is; the verdict on it (see `nan`), and which bound it broke.

        See `Step.on_all_replicas`. If it is to be skipped, it has changed nothing but the counter.
        """
        return self._run(self._watch.around, batch, examples)

    def _tried(self, batch: Any) -> tuple[Any, Any]:
        """One step that is not undone if it was not finite."""
        return self._run(self._watch.checked, batch)

    def _run(
        self, around: Callable[..., tuple[Any, Any]], batch: Any, examples: Any = None
    ) -> tuple[Any, Any]:
        is_xla = self._plan.step == "xla"
        for_xla = (
            xla_rewrites.applied(self._plan.rewrites or ()) if is_xla else contextlib.nullcontext()
        )
        with for_xla, operations_made() as made:
            outputs, verdict = around(lambda: self._step.on_all_replicas(batch, examples))
        broken = self._bounds.broken_by(made)
        if self._step.name == "train_step":
            # After a failure the counter says which step failed.
            with tf.control_dependencies([*tf.nest.flatten(outputs), *filter(is_assertion, made)]):
                self._step.task.step_counter.assign_add(1)
        return outputs, (verdict, broken)

    def added(self, before: Any, outputs: Any) -> Any:
        """Return the totals after these outputs: sums, or the last ones."""
        if before is None or self._step.reports_last:
            return outputs
        return tf.nest.map_structure(lambda a, b: a + b, before, outputs)

    def without_data(self, steps: Any) -> Any:
        """A loop around a step that needs no batch."""
        return self._counted(lambda _: None, steps)

    def over_resident(self, size: int) -> Callable[..., Any]:
        """A loop that gathers its batches from tensors on the device, by their place in `order`."""
        is_fused = self._plan.loop == "fused"

        def loop(tensors: Any, order: Any, begin: Any, steps: Any) -> Any:
            def places(done: Any) -> Any:
                first = begin + done * size
                if is_fused:
                    # XLA has to know the size (a smaller last batch runs by itself), and the
                    # beginning of a slice would be a constant to it: a compile for each call.
                    return tf.gather(order, first + tf.range(size))
                return order[first : first + size]

            def gathered(some: Any) -> Any:
                return tf.nest.map_structure(lambda leaf: tf.gather(leaf, some), tensors)

            def run_own_part(some: Any) -> tuple[Any, Any]:
                own = replicas.part_here(some, self._step.strategy)
                return self.one(gathered(own), examples=tf.shape(some)[0])

            if tensorflow_internals.workers(self._step.strategy)[0] > 1:
                return self._counted(places, steps, run_own_part)
            return self._counted(lambda done: gathered(places(done)), steps)

        return loop

    def over_chunk(self, chunk: Any, steps: Any) -> Any:
        """A loop over the first `steps` batches of a chunk."""

        def batch(done: Any) -> Any:
            return tf.nest.map_structure(lambda leaf: tf.gather(leaf, done), chunk)

        return self._counted(batch, steps)

    def over_stream(self, end: str, batch_spec: Any) -> Callable[..., Any]:
        """A loop over an iterator; `end` says how its data shows that it has come to an end.

        It returns how many steps it ran, their outputs, marks and table, for how many seconds it
        waited, and the smallest and largest number of examples in a batch, where the spec leaves
        that open.
        """
        is_open = replicas.known_example_count(batch_spec) is None
        run_step = self._compiled(self.one)

        def loop(iterator: Any, steps: Any) -> Any:
            def body(done: Any, _: Any, run: Any, waited: Any, sizes: Any) -> Any:
                began = tf.timestamp()
                with tf.control_dependencies([began]):
                    optional = next_optional(iterator, end)
                    has_batch = optional.has_value()
                with tf.control_dependencies([has_batch]):
                    waited += tf.timestamp() - began

                def advanced() -> Any:
                    batch = optional.get_value()
                    seen = _with_size_of(batch, sizes) if is_open else sizes
                    return True, done + 1, self._advanced(run_step, batch, done, run), seen

                more, done, run, sizes = tf.cond(
                    has_batch, advanced, lambda: (False, done, run, sizes)
                )
                return done, more, run, waited, sizes

            scalar, no_time = tf.TensorShape([]), tf.constant(0.0, tf.float64)
            done, _, run, waited, sizes = tf.while_loop(
                lambda done, more, *_: tf.logical_and(more, done < steps),
                body,
                (0, True, self._nothing_run(steps), no_time, (tf.int32.max, 0)),
                shape_invariants=(scalar, scalar, self._shapes(), scalar, (scalar, scalar)),
                parallel_iterations=1,
            )
            return done, *self._ended(run), waited, sizes

        return loop

    def _counted(
        self,
        batch: Callable[[Any], Any],
        steps: Any,
        run: Callable[[Any], tuple[Any, Any]] | None = None,
    ) -> Any:
        if self._watch.repeats:
            return self._attempted(batch, steps)
        run = run or self._compiled(self.one)
        # A while on tensors: the bounds of a tf.range would be constants to XLA, and every new
        # number of steps would be compiled again.
        done, ran = tf.while_loop(
            lambda done, _: done < steps,
            lambda done, before: (done + 1, self._advanced(run, batch(done), done, before)),
            (0, self._nothing_run(steps)),
            shape_invariants=(tf.TensorShape([]), self._shapes()),
            parallel_iterations=1,
        )
        return done, *self._ended(ran)

    def _attempted(self, batch: Callable[[Any], Any], steps: Any) -> Any:
        """The same, but the state is looked at after some steps, which may run again."""
        run, counter = self._compiled(self._tried), self._step.task.step_counter
        watch = self._watch

        def step(done: Any, before: Any) -> tuple[Any, Any]:
            outputs, (verdict, broken) = run(batch(done))
            total, (marks, note), rows = before
            if self._recorder is not None:
                rows = self._recorder.written(rows, done, outputs)
            note = self._bounds.noted(note, done, broken)
            return verdict, (self.added(total, outputs), (marks, note), rows)

        def settle(before: Any, after: Any, is_undone: Any, place: Any, verdict: Any) -> Any:
            total, (marks, note), rows = after
            total = tf.nest.map_structure(
                lambda now, old: tf.where(is_undone, old, now), total, before[0]
            )
            marks = watch.marked(marks, place, verdict)
            if not watch.skips:
                return total, (marks, note), rows
            is_bad = verdict != FINITE
            counter.assign_add(tf.cast(is_bad, counter.dtype))
            nothing = tf.nest.map_structure(tf.zeros_like, total)
            if self._recorder is not None:
                place = tf.where(is_bad, place, steps)  # the last row is for no step
                rows = self._recorder.written(rows, place, nothing)
            if self._step.reports_last:
                total = tf.nest.map_structure(
                    lambda now, none: tf.where(is_bad, none, now), total, nothing
                )
            return total, (marks, note), rows

        done, ran = watch.run_attempts(
            step, settle, counter, steps, self._nothing_run(steps), self._shapes()
        )
        return done, *self._ended(ran)

    def _advanced(
        self, run: Callable[[Any], Any], batch: Any, done: Any, before: Any
    ) -> tuple[Any, Any, Any]:
        """Outputs, marks and table after one more step."""
        outputs, (verdict, broken) = run(batch)
        total, (marks, note), rows = before
        if self._recorder is not None:
            rows = self._recorder.written(rows, done, outputs)
        marks = self._watch.marked(marks, done, verdict)
        return self.added(total, outputs), (marks, self._bounds.noted(note, done, broken)), rows

    def _compiled(self, one: Callable[[Any], tuple[Any, Any]]) -> Callable[[Any], tuple[Any, Any]]:
        """One step inside a loop, compiled by itself unless XLA compiles the loop as a whole."""
        if self._plan.step != "xla" or self._plan.loop == "fused":
            return one
        if one not in self._xla_steps:
            self._xla_steps[one] = tensorflow_internals.compiled(one, xla=True)
        return self._xla_steps[one]

    def forget_compiled_steps(self) -> None:
        """Compile steps inside loops again: their names belong to another program."""
        self._xla_steps.clear()

    def _nothing_run(self, steps: Any) -> tuple[Any, Any, Any]:
        """Outputs, marks and table before the first of `steps` steps."""
        rows = () if self._recorder is None else self._recorder.no_rows(steps)
        marks = self._watch.no_marks(), self._bounds.none()
        return tf.nest.map_structure(_zeros, self._outputs), marks, rows

    def _shapes(self) -> tuple[Any, Any, Any]:
        outputs = tf.nest.map_structure(lambda output: output.shape, self._outputs)
        rows = () if self._recorder is None else self._recorder.shapes()
        note = tf.nest.map_structure(lambda note: note.shape, self._bounds.none())
        return outputs, (self._watch.no_marks().shape, note), rows

    def _ended(self, run: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        """Outputs, marks and table as they leave the graph."""
        outputs, marks, rows = run
        return outputs, marks, rows.stack() if isinstance(rows, tf.TensorArray) else rows


def next_optional(iterator: Any, end: str) -> Any:
    """Return the next batch, or none; elements mark the end of an epoch of unknown length."""
    return iterator.get_next() if end == "marked" else iterator.get_next_as_optional()


def _with_size_of(batch: Any, sizes: Any) -> Any:
    examples = replicas.count_examples(batch)
    return tf.minimum(sizes[0], examples), tf.maximum(sizes[1], examples)


def _zeros(like: Any) -> Any:
    return tf.zeros([0 if size is None else size for size in like.shape], like.dtype)


_MOST_BATCHES = 128
_MOST_BYTES = 4 * 2**20


def room(batch_spec: Any, size: int) -> int:
    """Return how many batches of `size` examples fit into a chunk.

    >>> room(tf.TensorSpec([None, 8], tf.float32), size=32768)
    4
    """
    leaves = tf.nest.flatten(batch_spec)
    values = [math.prod(axis or 1 for axis in leaf.shape[1:]) * leaf.dtype.size for leaf in leaves]
    return max(1, min(_MOST_BATCHES, _MOST_BYTES // max(1, size * sum(values))))


def alone(batch: Any, batch_spec: Any, size: int) -> Any:
    """A chunk of one batch."""
    zeros = room(batch_spec, size) - 1
    return tf.nest.map_structure(
        lambda leaf: tf.pad(leaf[tf.newaxis], [[0, zeros], *[[0, 0]] * leaf.shape.rank]), batch
    )


def empty(batch_spec: Any, size: int) -> Any:
    """A chunk without a batch: to compile with."""
    return tf.nest.map_structure(
        lambda leaf: tf.zeros([room(batch_spec, size), *element_shape(leaf, size)], leaf.dtype),
        batch_spec,
    )


def zeros(batch_spec: Any, size: int) -> Any:
    """One batch of zeros."""
    return tf.nest.map_structure(
        lambda leaf: tf.zeros([axis or 1 for axis in element_shape(leaf, size)], leaf.dtype),
        batch_spec,
    )


def pull(next_optional: Callable[[], Any], batch_spec: Any, size: int, limit: Any) -> Any:
    """Pulls up to `limit` batches of `size` examples: how many, the chunk, and what came after.

    Fewer come if the data ends, or if a batch of another size follows: that one is returned as
    well, for a chunk of its own. The third value says whether there is one.
    """
    leaves = tf.nest.flatten(batch_spec)
    is_open = any(leaf.shape[0] is None for leaf in leaves)
    arrays = [
        tf.TensorArray(leaf.dtype, room(batch_spec, size), element_shape=element_shape(leaf, size))
        for leaf in leaves
    ]
    nothing = tf.nest.map_structure(
        lambda leaf: tf.zeros(element_shape(leaf, 0), leaf.dtype), batch_spec
    )

    def body(count: Any, _: Any, __: Any, ___: Any, *arrays: Any) -> Any:
        optional = next_optional()
        has_value = optional.has_value()
        batch = tf.cond(has_value, optional.get_value, lambda: nothing)
        fits = tf.logical_and(has_value, _has_rows(batch, leaves, size)) if is_open else has_value

        def taken() -> Any:
            flat = zip(arrays, tf.nest.flatten(batch), strict=True)
            return nothing, *[array.write(count, leaf) for array, leaf in flat]

        other, *written = tf.cond(fits, taken, lambda: (batch, *arrays))
        is_other = tf.logical_and(has_value, tf.logical_not(fits))
        return count + tf.cast(fits, tf.int32), fits, is_other, other, *written

    shapes = tf.nest.map_structure(lambda leaf: leaf.shape, batch_spec)
    unknown = [tf.TensorShape(None)] * len(arrays)
    count, _, is_other, other, *arrays = tf.while_loop(
        lambda count, more, *_: tf.logical_and(more, count < limit),
        body,
        (tf.constant(0), tf.constant(True), tf.constant(False), nothing, *arrays),
        shape_invariants=(*[tf.TensorShape([])] * 3, shapes, *unknown),
        parallel_iterations=1,
    )
    stacked = tf.nest.pack_sequence_as(batch_spec, [array.stack() for array in arrays])
    return count, stacked, is_other, other


def element_shape(leaf: Any, size: int) -> list[int]:
    """Return the shape of a leaf in batches of `size`; one of known length keeps it.

    Datasets zipped after they were batched may have batches of different sizes.
    """
    return [size if leaf.shape[0] is None else leaf.shape[0], *leaf.shape[1:]]


def _has_rows(batch: Any, leaves: Sequence[Any], size: int) -> Any:
    pairs = zip(tf.nest.flatten(batch), leaves, strict=True)
    return tf.reduce_all([tf.shape(t)[0] == element_shape(leaf, size)[0] for t, leaf in pairs])
