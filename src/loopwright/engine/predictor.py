"""Predictions over whole data sets, many batches in one call, leaving the task unchanged."""

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any, final

import numpy as np
import tensorflow as tf

from loopwright.compat import (
    keras_optimizers,
    step_errors,
    tensorflow_internals,
)
from loopwright.data import batches as nests
from loopwright.data.read_errors import feed_after, read_errors_explained
from loopwright.data.readers import ResidentReader, StreamReader
from loopwright.data.source import Data, Feed
from loopwright.distribute import replicas
from loopwright.errors import DataError
from loopwright.loop.clock import Pace
from loopwright.loop.signals import deferred
from loopwright.plans.plan import Plan
from loopwright.task import context, scheduled
from loopwright.task.state import undisturbed
from loopwright.task.task import Task, class_name

_Step = Callable[[Any], Any]
"""From one global batch to the predictions for it."""


@final
class Predictor:
    """Predicts with one task; what it has traced is kept until the task changes."""

    def __init__(self, task: Task, strategy: tf.distribute.Strategy) -> None:
        self._task, self._strategy = task, strategy
        self._traced: dict[str, _Traced] = {}
        self._fingerprint: Any = None

    def predict(self, data: Data, *, steps: int | None, plan: Plan) -> Any:
        """Return the predictions for a data set as NumPy arrays, in the step's structure."""
        parts: list[Any] = []
        feed: Feed | None = data.one_pass(steps=steps)
        title = f"{class_name(self._task)}.predict_step"
        while feed is not None:
            with step_errors.trace_explained(title, feed.batch_spec):
                if plan.step == "eager":
                    batches = _batch_by_batch(self._step(self._task.predict_step), feed)
                else:
                    # Traced before anything is kept: the step may make variables lazily.
                    batches = self._traced_for(feed.batch_spec).in_loops(feed)
                with (
                    undisturbed(self._task),
                    read_errors_explained(feed),
                    step_errors.run_explained(title, self._graphs),
                ):
                    parts += batches
            feed = feed_after(feed, len(parts))
        return tf.nest.map_structure(lambda *leaves: _whole(leaves), *parts)

    def _graphs(self) -> list[Any]:
        return [traced.graph for traced in self._traced.values()]

    def _step(self, own: _Step) -> _Step:
        """Return the step on all replicas."""
        casts, strategy = self._task.reported != "last", self._strategy

        def on_replica(batch: Any) -> Any:
            with context.entered(context.StepContext(counter=self._task.step_counter)):
                return own(batch)

        def on_batch(batch: Any) -> Any:
            shares = replicas.split(nests.to_floatx(batch) if casts else batch, strategy, here=True)
            with keras_optimizers.replicas_draw_apart(replicas.local_replicas(strategy)):
                outputs = strategy.run(on_replica, args=(shares,))
            local = strategy.experimental_local_results
            return tf.nest.map_structure(lambda value: _joined(local(value)), outputs)

        return on_batch

    @deferred()
    def _traced_for(self, batch_spec: Any) -> "_Traced":
        if self._fingerprint != scheduled.fingerprint(self._task):
            self._traced.clear()
        kind = str(batch_spec)
        if kind not in self._traced:
            step = self._step(tensorflow_internals.autograph(self._task.predict_step))
            self._traced[kind] = _Traced(step, batch_spec)
            # Tracing makes what is made lazily, so the fingerprint is taken after it.
            self._fingerprint = scheduled.fingerprint(self._task)
        return self._traced[kind]


def _batch_by_batch(step: _Step, feed: Feed) -> Iterator[Any]:
    yield from map(step, feed.open().iterator)


@final
class _Traced:
    """The step as a graph, traced once: loops and single calls share it."""

    def __init__(self, step: _Step, batch_spec: Any) -> None:
        function: Any = tensorflow_internals.compiled(step, input_signature=(batch_spec,))
        self._step: Any = function.get_concrete_function()
        self._leaves: list[Any] = tf.nest.flatten(self._step.structured_outputs)
        self._loops: dict[int | None, Any] = {}

    @property
    def graph(self) -> Any:
        """The graph of the step."""
        return self._step.graph

    def in_loops(self, feed: Feed) -> Iterator[Any]:
        """Yield predictions of many batches in one call, each short enough for Ctrl-C.

        Batch by batch, unless all of them have predictions of one shape.
        """
        if not all(map(_fits_into_a_loop, self._leaves)):
            yield from _batch_by_batch(self._step, feed)
            return
        reader = feed.open() if feed.resident is None else ResidentReader(feed.resident)
        pace, asked, ran = Pace(), 0, 0
        while ran == asked:
            began, asked = time.perf_counter(), pace.at_most_steps
            ran, leaves = self._run(reader, asked)
            pace.add(steps=ran, seconds=time.perf_counter() - began)
            if ran:
                arrays = [np.asarray(leaf) for leaf in leaves]
                yield tf.nest.pack_sequence_as(self._step.structured_outputs, arrays)

    def _run(self, reader: StreamReader | ResidentReader, batches: int) -> tuple[int, Any]:
        """Run up to so many batches; return how many, and their predictions, leaf by leaf."""
        # Tensors, not Python numbers: every new number would be traced again.
        if isinstance(reader, StreamReader):
            ran, leaves = self._loop(None)(reader.iterator, tf.constant(batches))
            return int(ran), leaves
        batches, resident = min(batches, reader.batches_left), reader.resident
        if not batches:
            return 0, []
        begin = tf.constant(reader.index * resident.batch_size)
        loop = self._loop(resident.batch_size)
        _, leaves = loop(resident.tensors, reader.order, begin, tf.constant(batches))
        reader.advance(batches)
        return batches, leaves

    def _loop(self, size: int | None) -> Any:
        """Return a compiled loop over batches gathered by `size`; None: over an iterator."""
        if size not in self._loops:

            def gather(batches: Any, tensors: Any, order: Any, begin: Any) -> tuple[Any, Any]:
                places = order[begin + batches * size : begin + (batches + 1) * size]
                batch = tf.nest.map_structure(lambda leaf: tf.gather(leaf, places), tensors)
                return tf.constant(True), tf.nest.flatten(self._step(batch))

            predict_at = self._predict_next if size is None else gather
            loop = functools.partial(self._collected, predict_at)
            self._loops[size] = tensorflow_internals.compiled(loop)
        return self._loops[size]

    def _predict_next(self, _: Any, iterator: Any) -> tuple[Any, Any]:
        """Return whether there is a next batch, and its predictions; for none, of no examples."""
        optional = iterator.get_next_as_optional()
        has_batch = optional.has_value()
        return has_batch, tf.cond(
            has_batch,
            lambda: tf.nest.flatten(self._step(optional.get_value())),
            lambda: [tf.zeros([0, *leaf.shape[1:]], leaf.dtype) for leaf in self._leaves],
        )

    def _collected(self, predict_at: Callable[..., Any], *given: Any) -> Any:
        """Run a loop until it has enough, or the data ends; return how many batches, and leaves."""
        *source, steps = given

        def body(done: Any, _: Any, arrays: Any) -> Any:
            has_batch, leaves = predict_at(done, *source)
            pairs = zip(arrays, leaves, strict=True)
            written = [array.write(done, leaf) for array, leaf in pairs]
            return done + tf.cast(has_batch, tf.int32), has_batch, written

        arrays = [
            tf.TensorArray(leaf.dtype, 0, dynamic_size=True, element_shape=[None, *leaf.shape[1:]])
            for leaf in self._leaves
        ]
        done, _, arrays = tf.while_loop(
            lambda done, more, _: tf.logical_and(more, done < steps),
            body,
            (tf.constant(0), tf.constant(True), arrays),
            parallel_iterations=1,
        )
        return done, [array.concat() for array in arrays]


def _fits_into_a_loop(leaf: Any) -> bool:
    """Return whether outputs can be joined on the device: dense, with known inner axes."""
    if not isinstance(leaf, tf.Tensor) or not leaf.shape.rank:
        return False
    return leaf.shape[1:].is_fully_defined()


# -- joining ---------------------------------------------------------------------------------------


def _whole(parts: tuple[Any, ...]) -> Any:
    """All predictions of one leaf, in an array of their own."""
    whole = _joined(tuple(map(_as_numpy, parts)))
    # The only part may be a read-only view of a tensor.
    is_view = len(parts) == 1 and isinstance(whole, np.ndarray)
    return whole.copy() if is_view else whole


def _as_numpy(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, tf.Tensor | tf.Variable) else value


def _joined(parts: tuple[Any, ...]) -> Any:
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], tf.SparseTensor):
        return tf.sparse.concat(0, list(parts), expand_nonconcat_dims=True)
    is_numpy = all(isinstance(part, np.ndarray) for part in parts)
    try:
        return np.concatenate(parts) if is_numpy else tf.concat(list(parts), axis=0)
    except (ValueError, tf.errors.InvalidArgumentError):
        raise DataError(
            "Predictions of different shapes cannot be joined.",
            expected="predictions that differ in their first axis only",
            received=", ".join(str(tuple(part.shape)) for part in parts[:4]),
            do="pad the data to one shape, or predict batch by batch",
        ) from None
