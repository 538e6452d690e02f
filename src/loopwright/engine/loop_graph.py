"""Loops around a step, as graphs: over resident arrays, chunks, an iterator, or no data."""

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

import numpy as np
import tensorflow as tf

from loopwright.compat import tensorflow_internals
from loopwright.distribute import replicas
from loopwright.engine.bounds import Bounds, is_assertion, operations_made
from loopwright.engine.metrics import Updates
from loopwright.engine.nan import FINITE, LOSS, MOST_STEPS, STATE, FiniteCheck, all_finite
from loopwright.engine.step import Step
from loopwright.plans.plan import Plan
from loopwright.rewrites import scope
from loopwright.task.state import apply, capture
from loopwright.task.task import results

_SCALAR = tf.TensorShape([])
_ROWS = 1024  # in a loop inside XLA a table has a fixed size


@final
class LoopState(NamedTuple):
    """What a loop carries from step to step, and returns."""

    done: Any
    """How many steps it has run."""
    verdict: Any
    """On the last step, see `nan`: one that is not finite, or broke a bound, ends the loop."""
    broken: Any
    """Which bound the last step broke, see `bounds`."""
    totals: Any
    """The sums of the outputs, or the last ones."""
    rows: Any
    """The table of the recorder: a row for each step, or nothing."""


@final
class Recorder:
    """Records what a step gives, what the task's metrics say after it, and some variables.

    The loop writes one row per step into a table: control does not return to Python between steps.

    `columns` are nests like `(outputs, metrics, variables)`, with one more axis: the steps.
    """

    def __init__(
        self, step: Step, plan: Plan, updates: Updates, variables: Sequence[Any], outputs: Any
    ) -> None:
        self._task, self._updates, self._variables = step.task, updates, variables
        self._is_fused = plan.loop == "fused"
        in_loops = plan.loop != "python" and step.replicas == 1
        self._specs = self._row_specs(outputs) if in_loops else None

    @property
    def most_steps(self) -> int:
        """How many steps one call may run: one, if a loop cannot record them."""
        return 1 if self._specs is None else _ROWS

    # -- in a loop -----------------------------------------------------------------------------

    def no_rows(self, steps: Any) -> Any:
        """Return the empty table of a call, as a loop variable."""
        if self._specs is None:
            return ()
        size = _ROWS if self._is_fused else steps
        # One more, for what is written for no step.
        return tf.TensorArray(tf.float64, size + 1, element_shape=[sum(self._sizes())])

    def written(self, rows: Any, done: Any, outputs: Any) -> Any:
        """Return the table with one more step."""
        if self._specs is None:
            return rows
        leaves = tf.nest.flatten((outputs, *self._read()))
        flat = [tf.reshape(tf.cast(leaf, tf.float64), [-1]) for leaf in leaves]
        return rows.write(done, tf.concat(flat, axis=0))

    def shapes(self) -> Any:
        """Return the shape invariants of the table for `tf.while_loop`."""
        return () if self._specs is None else tf.TensorShape(None)

    # -- after a call --------------------------------------------------------------------------

    def columns(self, table: Any, outputs: Any, steps: int) -> Any:
        """Return the numbers of `steps` steps; `outputs` are those of one, without a table."""
        if self._specs is None:
            one = (outputs, *self._read())
            return tf.nest.map_structure(lambda value: np.asarray(value)[np.newaxis], one)
        ends = np.cumsum(self._sizes())[:-1]
        parts = np.split(table.numpy()[:steps], ends, axis=1)
        pairs = zip(parts, tf.nest.flatten(self._specs), strict=True)
        shaped = [part.reshape([steps, *spec.shape]) for part, spec in pairs]
        return tf.nest.pack_sequence_as(self._specs, shaped)

    def _read(self) -> tuple[Any, Any]:
        seen = self._updates.of("train_step")
        updated = self._task.metrics if seen is None else seen.metrics
        metrics = {} if self._task.reported == "last" else results(self._task, updated)
        return metrics, [tf.convert_to_tensor(variable) for variable in self._variables]

    def _sizes(self) -> list[int]:
        return [math.prod(spec.shape) for spec in tf.nest.flatten(self._specs)]

    def _row_specs(self, outputs: Any) -> Any:
        """Return the specs of a row; None if a loop cannot record it."""
        try:
            # A user's metric may compute its result outside of any graph.
            read = tensorflow_internals.compiled(self._read, xla=self._is_fused)()
            specs = (outputs, *tf.nest.map_structure(tf.TensorSpec.from_tensor, read))
            leaves = tf.nest.flatten(specs)
        except Exception:  # then the steps are run one by one
            return None
        fits = all(spec.shape.is_fully_defined() and _is_number(spec.dtype) for spec in leaves)
        return specs if fits and leaves else None


@final
class LoopGraph:
    """The loops of one plan around one step; `outputs` are the specs of its outputs."""

    def __init__(
        self,
        step: Step,
        outputs: Any,
        plan: Plan,
        check: FiniteCheck,
        bounds: Bounds,
        recorder: Recorder | None = None,
    ) -> None:
        self._step, self._outputs, self._plan = step, outputs, plan
        self._check, self._bounds, self._recorder = check, bounds, recorder
        self._xla_steps = dict[bool, Callable[..., Any]]()

    def one(
        self, batch: Any, examples: Any = None, *, in_attempt: bool = False
    ) -> tuple[Any, Any, Any]:
        """One step, as it is: its outputs, the verdict on it, and which bound it broke.

        See `Step.on_all_replicas` and `FiniteCheck.checked`. A step that is skipped has changed
        nothing but the counter.
        """
        is_xla = self._plan.step == "xla"
        for_xla = scope.applied(self._plan.rewrites or ()) if is_xla else contextlib.nullcontext()
        with for_xla, operations_made() as made:
            outputs, verdict = self._check.checked(
                lambda: self._step.on_all_replicas(batch, examples), in_attempt=in_attempt
            )
        broken = self._bounds.broken_by(made)
        verdict = self._bounds.judged(verdict, broken)
        if self._step.name == "train_step":
            # After a failure the counter says which step failed.
            with tf.control_dependencies([*tf.nest.flatten(outputs), *filter(is_assertion, made)]):
                self._step.task.step_counter.assign_add(1)
        return outputs, verdict, broken

    def added(self, before: Any, outputs: Any) -> Any:
        """Return the totals after these outputs: sums, or the last ones."""
        if before is None or self._step.reports_last:
            return outputs
        return tf.nest.map_structure(lambda a, b: a + b, before, outputs)

    def without_data(self, steps: Any) -> LoopState:
        """A loop around a step that needs no batch."""
        return self._counted(lambda _: None, steps)

    def over_resident(self, size: int) -> Callable[..., LoopState]:
        """A loop that gathers its batches from tensors on the device, by their place in `order`."""
        is_fused = self._plan.loop == "fused"

        def loop(tensors: Any, order: Any, begin: Any, steps: Any) -> LoopState:
            def places(done: Any) -> Any:
                first = begin + done * size
                if is_fused:
                    # XLA has to know the size (a smaller last batch runs by itself), and the
                    # beginning of a slice would be a constant to it: a compile for each call.
                    return tf.gather(order, first + tf.range(size))
                return order[first : first + size]

            def gathered(some: Any) -> Any:
                return tf.nest.map_structure(lambda leaf: tf.gather(leaf, some), tensors)

            def run_own_part(some: Any) -> tuple[Any, Any, Any]:
                own = replicas.part_here(some, self._step.strategy)
                return self.one(gathered(own), examples=tf.shape(some)[0])

            if tensorflow_internals.workers(self._step.strategy)[0] > 1:
                return self._counted(places, steps, run_own_part)
            return self._counted(lambda done: gathered(places(done)), steps)

        return loop

    def over_chunk(self, chunk: Any, begin: Any, steps: Any) -> LoopState:
        """A loop over `steps` batches of a chunk."""

        def batch(done: Any) -> Any:
            return tf.nest.map_structure(lambda leaf: tf.gather(leaf, begin + done), chunk)

        return self._counted(batch, steps)

    def over_stream(self, end: str, batch_spec: Any) -> Callable[..., Any]:
        """A loop over an iterator; `end` says how its data shows that it has come to an end.

        It also returns whether there may be more batches, and a triple: for how many seconds it
        waited, and the smallest and largest number of examples in a batch, if the spec leaves that
        open.
        """
        is_open = replicas.known_example_count(batch_spec) is None
        run_step = self._step_in_loop()

        def loop(iterator: Any, steps: Any) -> Any:
            def body(state: LoopState, _: Any, seen: Any) -> Any:
                began = tf.timestamp()
                with tf.control_dependencies([began]):
                    optional = next_optional(iterator, end)
                    has_batch = optional.has_value()
                with tf.control_dependencies([has_batch]):
                    waited = seen[0] + tf.timestamp() - began

                def advanced() -> Any:
                    batch = optional.get_value()
                    sizes = _with_size_of(batch, seen[1:]) if is_open else seen[1:]
                    return self._advanced(run_step, batch, state), sizes

                state, sizes = tf.cond(has_batch, advanced, lambda: (state, seen[1:]))
                return state, has_batch, (waited, *sizes)

            no_time = tf.constant(0.0, tf.float64)
            return tf.while_loop(
                lambda state, more, *_: tf.logical_and(more, self._continues(state, steps)),
                body,
                (self._nothing_run(steps), True, (no_time, tf.int32.max, 0)),
                shape_invariants=(self._shapes(), _SCALAR, (_SCALAR, _SCALAR, _SCALAR)),
                parallel_iterations=1,
            )

        def ended(iterator: Any, steps: Any) -> Any:
            state, has_more, seen = loop(iterator, steps)
            return self._ended(state), has_more, seen

        return ended

    def forget_compiled_steps(self) -> None:
        """Compile steps inside loops again: their names belong to another program."""
        self._xla_steps.clear()

    def _counted(
        self,
        batch: Callable[[Any], Any],
        steps: Any,
        run: Callable[[Any], tuple[Any, Any, Any]] | None = None,
    ) -> LoopState:
        if self._check.repeats:
            return self._attempted(batch, steps)
        state = self._run_until(steps, run or self._step_in_loop(), batch, self._nothing_run(steps))
        return self._ended(state)

    def _run_until(
        self,
        steps: Any,
        run: Callable[[Any], tuple[Any, Any, Any]],
        batch: Callable[[Any], Any],
        before: LoopState,
    ) -> LoopState:
        # A while on tensors: the bounds of a tf.range would be constants to XLA, and every new
        # number of steps would be compiled again.
        (state,) = tf.while_loop(
            lambda state: self._continues(state, steps),
            lambda state: (self._advanced(run, batch(state.done), state),),
            (before,),
            shape_invariants=(self._shapes(),),
            parallel_iterations=1,
        )
        return state

    def _attempted(self, batch: Callable[[Any], Any], steps: Any) -> LoopState:
        """The same, with one copy of the lasting state, and one look at it, for up to 64 steps.

        If one of them was not finite, the state and the counter of steps are restored, and they
        run again one by one, by the same compiled code and so with the same bits, until the first
        bad one is found. Which step is found does not depend on where an attempt begins.
        """
        check, counter = self._check, self._step.task.step_counter
        run, kept = self._step_in_loop(in_attempt=True), [*check.kept, counter]

        def attempt(before: LoopState, length: Any) -> tuple[LoopState, Any]:
            held = capture(kept)
            after = self._run_until(tf.minimum(before.done + length, steps), run, batch, before)
            is_finite = all_finite([variable.read_value() for variable in check.lasting])
            verdict = tf.maximum(after.verdict, tf.where(is_finite, FINITE, STATE))
            is_good, is_single = verdict == FINITE, length == 1
            is_kept = is_good if check.skips else tf.logical_or(is_good, is_single)
            apply(held, unless=is_kept)
            totals = tf.nest.map_structure(
                lambda old, new: tf.where(is_kept, new, old), before.totals, after.totals
            )
            is_run = tf.logical_or(is_good, is_single)
            state = after._replace(
                done=tf.where(is_run, after.done, before.done),
                verdict=tf.where(is_run, verdict, FINITE),
                totals=totals,
            )
            return state, tf.where(is_good, length, 1)

        state, _ = tf.while_loop(
            lambda state, _: self._continues(state, steps),
            attempt,
            (self._nothing_run(steps), MOST_STEPS),
            shape_invariants=(self._shapes(), _SCALAR),
            parallel_iterations=1,
        )
        if check.skips:
            is_skipped = state.verdict != FINITE
            counter.assign_add(tf.cast(is_skipped, counter.dtype))
            if self._recorder is not None:
                place = tf.where(is_skipped, state.done - 1, steps)  # the last row is for no step
                nothing = tf.nest.map_structure(tf.zeros_like, state.totals)
                rows = self._recorder.written(state.rows, place, nothing)
                state = state._replace(rows=rows)
        return self._ended(state)

    def _advanced(
        self, run: Callable[[Any], tuple[Any, Any, Any]], batch: Any, before: LoopState
    ) -> LoopState:
        """Return the state after one more step."""
        outputs, verdict, broken = run(batch)
        rows, totals = before.rows, self.added(before.totals, outputs)
        if self._recorder is not None:
            rows = self._recorder.written(rows, before.done, outputs)
        if self._check.skips and self._step.reports_last:
            totals = tf.nest.map_structure(
                lambda old, new: tf.where(verdict == FINITE, new, old), before.totals, totals
            )
        if self._check.passes_losses:
            verdict = tf.maximum(before.verdict, verdict)
        return LoopState(before.done + 1, verdict, broken, totals, rows)

    def _continues(self, state: LoopState, steps: Any) -> Any:
        """Return whether there are steps left, and the last one was good."""
        is_left = state.done < steps
        if not self._check.looks and not self._bounds.looks:
            return is_left
        is_good = state.verdict == FINITE
        if self._check.passes_losses:
            is_good = tf.logical_or(is_good, state.verdict == LOSS)
        return tf.logical_and(is_left, is_good)

    def _step_in_loop(self, *, in_attempt: bool = False) -> Callable[[Any], tuple[Any, Any, Any]]:
        """One step inside a loop, compiled by itself unless XLA compiles the loop as a whole."""

        def one(batch: Any) -> tuple[Any, Any, Any]:
            return self.one(batch, in_attempt=in_attempt)

        if self._plan.step != "xla" or self._plan.loop == "fused":
            return one
        if in_attempt not in self._xla_steps:
            self._xla_steps[in_attempt] = tensorflow_internals.compiled(one, xla=True)
        return self._xla_steps[in_attempt]

    def _nothing_run(self, steps: Any) -> LoopState:
        """Return the state before the first of `steps` steps."""
        rows = () if self._recorder is None else self._recorder.no_rows(steps)
        totals = tf.nest.map_structure(_zeros, self._outputs)
        return LoopState(tf.constant(0), tf.constant(FINITE), self._bounds.none(), totals, rows)

    def _shapes(self) -> LoopState:
        """Return the shapes that stay the same from step to step."""
        totals = tf.nest.map_structure(lambda output: output.shape, self._outputs)
        rows = () if self._recorder is None else self._recorder.shapes()
        broken = tf.nest.map_structure(lambda note: note.shape, self._bounds.none())
        return LoopState(_SCALAR, _SCALAR, broken, totals, rows)

    def _ended(self, state: LoopState) -> LoopState:
        """Return the state as it leaves the graph."""
        rows = state.rows
        return state._replace(rows=rows.stack() if isinstance(rows, tf.TensorArray) else rows)


def next_optional(iterator: Any, end: str) -> Any:
    """Return the next batch, or none; elements mark the end of an epoch of unknown length."""
    return iterator.get_next() if end == "marked" else iterator.get_next_as_optional()


def _with_size_of(batch: Any, sizes: Any) -> Any:
    examples = replicas.count_examples(batch)
    return tf.minimum(sizes[0], examples), tf.maximum(sizes[1], examples)


def _zeros(like: Any) -> Any:
    return tf.zeros([0 if size is None else size for size in like.shape], like.dtype)


def joined(parts: Sequence[Any]) -> Any:
    """Concatenate the columns of several calls."""
    return tf.nest.map_structure(lambda *leaves: np.concatenate(leaves), *parts)


def _is_number(dtype: tf.DType) -> bool:
    return dtype.is_floating or dtype.is_bool or dtype.is_integer
