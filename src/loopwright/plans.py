"""Plans: how steps are run. A plan is a value; `StepRunner` is what it compiles to.

lw.Trainer(task, plan="eager")                              # breakpoints and prints work
lw.Trainer(task, plan=lw.Plan(step="graph", loop="graph"))  # many steps in one call
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, final

import keras
import tensorflow as tf

from loopwright import adaptations, guards, runtime, scalars, state
from loopwright.data import Feed, nests
from loopwright.errors import ConfigurationError, message
from loopwright.gradients import StepScope, build_optimizers, step_scope
from loopwright.task import Task

StepName = Literal["train_step", "test_step"]


@dataclass(frozen=True)
class Plan:
    """How a step is run: what it is compiled to, and what loops around it."""

    step: Literal["eager", "graph"] = "graph"
    loop: Literal["python", "graph"] = "graph"

    def __post_init__(self) -> None:
        if (self.step, self.loop) not in _PLANS.values():
            raise ConfigurationError(
                message(
                    "There is no such plan.",
                    expected=" or ".join(
                        f"Plan(step={s!r}, loop={lo!r})" for s, lo in _PLANS.values()
                    ),
                    received=f"Plan(step={self.step!r}, loop={self.loop!r})",
                    do='leave it out for the fastest, or use plan="eager" for debugging',
                )
            )


_PLANS = {"graph": ("graph", "graph"), "eager": ("eager", "python")}


def plan_of(plan: Plan | str) -> Plan:
    """Reads a plan or its short word.

    >>> plan_of("eager")
    Plan(step='eager', loop='python')
    """
    if isinstance(plan, Plan):
        return plan
    if plan not in _PLANS:
        raise ConfigurationError(
            message(
                "There is no plan of this name.",
                expected=" or ".join(map(repr, _PLANS)),
                received=repr(plan),
                do="leave it out, or use one of the names above",
            )
        )
    return Plan(*_PLANS[plan])


@final
class StepRunner:
    """Runs the train step or the test step of a task many times, by a plan.

    `build` traces the step once without running it, which creates every variable that Keras makes
    lazily and shows what is wrong with the step; `run` then goes through a feed.
    """

    def __init__(
        self, task: Task, name: StepName, *, strategy: tf.distribute.Strategy, plan: Plan
    ) -> None:
        self._task, self._name, self._strategy, self._plan = task, name, strategy, plan
        self._replicas = runtime.replica_count(strategy)
        self._has_data = True
        self._outputs: Any = None
        self.met: list[tuple[Any, list[Any]]] = []
        self._loops: dict[str, Callable[..., Any]] = {}

    def build(self, batch_spec: Any) -> None:
        """Traces the step for batches of this spec; None for a step without data."""
        self._has_data = batch_spec is not None
        _ = self._task.step_counter
        if self._plan.step == "eager" and self._replicas == 1:
            return
        spec = nests.spec_in_floatx(batch_spec) if self._has_data else None
        with guards.explained(self._step_name, spec):
            self._outputs = self._trace(spec)

    def run(self, iterator: Any, end: str, steps: int) -> tuple[int, Any]:
        """Runs up to `steps` steps; returns how many it ran, and their totals or last outputs."""
        if self._plan.loop == "python":
            return self._run_eagerly(iterator, end, steps)
        if end not in self._loops:
            self._loops[end] = tf.function(self._loop(end), autograph=False)
        arguments = (iterator,) if self._has_data else ()
        ran, outputs = self._loops[end](*arguments, tf.constant(steps))
        return int(ran), tf.nest.map_structure(lambda t: t.numpy(), outputs)

    @property
    def _step_name(self) -> str:
        owner = getattr(self._task, "model", self._task) if self._is_last else self._task
        return f"{type(owner).__name__}.{self._name}"

    @property
    def _is_last(self) -> bool:
        return self._task.reported == "last"

    # -- one step ------------------------------------------------------------------------------

    def _one_step(self, batch: Any) -> Any:
        """One step on all replicas: weighted sums of its scalars, or its last outputs."""
        count = self._replicas
        examples = runtime.count_examples(batch) if self._has_data else tf.constant(count)
        share = runtime.split(nests.to_floatx(batch), self._strategy) if self._has_data else None

        def on_replica(local: Any) -> Any:
            own = runtime.count_examples(local) if self._has_data else tf.constant(1)
            fraction = own / examples if count > 1 else None
            with step_scope(StepScope(fraction=fraction, reduced=reduced)):
                return self._folded(self._call(local), own)

        with self._adapted() as reduced:
            outputs = self._strategy.run(on_replica, args=(share,))
        if self._is_last:
            return outputs if count == 1 else self._mean_over_replicas(outputs)
        return {
            name: tuple(runtime.sum_over_replicas(self._strategy, part) for part in pair)
            for name, pair in outputs.items()
        }

    def _call(self, batch: Any) -> Any:
        step = getattr(self._task, self._name)
        if self._plan.step == "graph" and not self._is_last:
            step = adaptations.autograph(step)
        return step(batch) if self._has_data else step()

    def _folded(self, outputs: Any, examples: Any) -> Any:
        if self._is_last:
            return tf.nest.map_structure(tf.convert_to_tensor, outputs)
        return scalars.totals(outputs, self._step_name, examples)

    def _mean_over_replicas(self, outputs: Any) -> Any:
        local = self._strategy.experimental_local_results
        return tf.nest.map_structure(lambda v: tf.reduce_mean(tf.stack(local(v)), axis=0), outputs)

    @contextlib.contextmanager
    def _adapted(self) -> Iterator[Any]:
        """With several replicas: Keras neither divides losses nor sums gradients by itself."""
        if self._replicas == 1 or self._is_last:
            yield None
        else:
            with (
                adaptations.losses_as_for_one_device(),
                adaptations.optimizers_reduce_nothing() as reduced,
            ):
                yield reduced

    # -- many steps ----------------------------------------------------------------------------

    def _loop(self, end: str) -> Callable[..., Any]:
        counts = self._name == "train_step"

        def advance(batch: Any, done: Any, totals: Any) -> Any:
            outputs = self._one_step(batch)
            if counts:
                self._task.step_counter.assign_add(1)
            if not self._is_last:
                outputs = tf.nest.map_structure(tf.add, totals, outputs)
            return done + 1, tf.constant(True), outputs

        def with_data(iterator: Any, steps: Any) -> Any:
            def body(done: Any, _: Any, totals: Any) -> Any:
                if end == "never":
                    return advance(iterator.get_next(), done, totals)
                marked = end == "marked"
                batch = iterator.get_next() if marked else iterator.get_next_as_optional()
                return tf.cond(
                    batch.has_value(),
                    lambda: advance(batch.get_value(), done, totals),
                    lambda: (done, tf.constant(False), totals),
                )

            return many(body, steps)

        def without_data(steps: Any) -> Any:
            return many(lambda done, _, totals: advance(None, done, totals), steps)

        def many(body: Callable[..., Any], steps: Any) -> Any:
            empty = tf.nest.map_structure(_empty_like, self._outputs)
            shapes = tf.nest.map_structure(lambda t: t.shape, self._outputs)
            done, _, totals = tf.while_loop(
                lambda done, more, _: tf.logical_and(more, done < steps),
                body,
                (tf.constant(0), tf.constant(True), empty),
                shape_invariants=(tf.TensorShape([]), tf.TensorShape([]), shapes),
                parallel_iterations=1,
            )
            return done, totals

        return with_data if self._has_data else without_data

    def _run_eagerly(self, iterator: Any, end: str, steps: int) -> tuple[int, Any]:
        totals: Any = None
        for done in range(steps):
            batch = None
            if self._has_data:
                optional = (
                    iterator.get_next() if end == "marked" else iterator.get_next_as_optional()
                )
                if not optional.has_value():
                    return done, totals
                batch = optional.get_value()
            outputs = self._one_step(batch)
            if self._name == "train_step":
                self._task.step_counter.assign_add(1)
            outputs = tf.nest.map_structure(lambda t: t.numpy(), outputs)
            if totals is None or self._is_last:
                totals = outputs
            else:
                totals = tf.nest.map_structure(lambda a, b: a + b, totals, outputs)
        return steps, totals

    # -- building ------------------------------------------------------------------------------

    def _trace(self, spec: Any) -> Any:
        """Traces the step, never runs it; returns what comes out of it."""
        if not self._is_last:
            return self._trace_under_guards(spec)
        if self._replicas > 1:
            with self._strategy.scope():
                adaptations.build_compiled_model(getattr(self._task, "model"), spec)
        return self._traced(self._one_step, spec).structured_outputs

    def _trace_under_guards(self, spec: Any) -> Any:
        met = self.met = []
        dry = self._replicas > 1

        def step(batch: Any) -> Any:
            # Replicas cannot create variables. In a stateless scope none is changed either, and
            # what Keras makes lazily is made when the scope is left, inside the strategy's.
            stateless = keras.StatelessScope() if dry else contextlib.nullcontext()
            scope = step_scope(StepScope(met=met, updates=not dry))
            with scope, stateless, adaptations.watching_losses() as was_asked:
                outputs = self._call(batch)
                if self._name == "train_step":
                    trained = [v for _, variables in met for v in variables]
                    models = state.of_kind(keras.Layer, self._task)
                    guards.check_model_losses(models, trained, was_asked)
            return scalars.totals(outputs, self._step_name, tf.constant(1))

        with contextlib.ExitStack() as stack:
            if dry:
                stack.enter_context(self._strategy.scope())
                stack.enter_context(adaptations.losses_as_for_one_device())
            traced = self._traced(step, spec)
            if dry:
                build_optimizers(met)
        leaves = tf.nest.flatten(spec, expand_composites=True) if self._has_data else []
        guards.check_reads_batch(self._step_name, traced.graph.inputs[: len(leaves)])
        guards.check_broadcasting(traced.graph, self._step_name)
        return traced.structured_outputs

    def _traced(self, step: Callable[[Any], Any], spec: Any) -> Any:
        if self._has_data:
            return tf.function(step, autograph=False).get_concrete_function(spec)
        return tf.function(lambda: step(None), autograph=False).get_concrete_function()


def _empty_like(spec: Any) -> Any:
    return tf.zeros([0 if size is None else size for size in spec.shape], spec.dtype)
