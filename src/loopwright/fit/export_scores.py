"""Scores of an exported file on the validation data, by the task's own test step."""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from loopwright.compat.quiet_start import quiet_start
from loopwright.data.source import Data
from loopwright.distribute.team import Agreement
from loopwright.engine.plan_selector import PlanSelector, asked_for
from loopwright.engine.scorer import Scorer
from loopwright.errors import MissingStepError
from loopwright.export import child
from loopwright.export.exporter import Scored, Staged
from loopwright.export.outputs import named
from loopwright.export.signatures import Signature, flat_names
from loopwright.fit.parts import Parts
from loopwright.loop.signals import Signals
from loopwright.task.task import require_step


def scores_of_file(parts: Parts, sets: Mapping[str, Data], ready: Staged) -> Scored:
    """Return the scores on the validation data, of the model and then of the LiteRT file."""
    readable = {prefix: data for prefix, data in sets.items() if data.can_be_read_again}
    if not readable:
        return Scored(why_not="no validation data; pass validation_data=(x, y)")
    if not parts.team.is_alone:
        return Scored(why_not="several workers train; export in a process of its own")
    try:
        require_step(parts.task, "test_step")
    except MissingStepError:
        return Scored(why_not="the task has no test_step")
    before = _scores(parts, readable)
    with quiet_start():
        load = child.litert_runs(str(ready.written))
        runs = {one.name: load(one.name) for one in ready.given}
        for one in ready.given:  # the first run prints which delegate it uses
            leaves = one.named(one.batch(one.sizes()[-1]))
            runs[one.name]({name: np.asarray(leaf) for name, leaf in leaves.items()})
    called = list[str]()
    with contextlib.ExitStack() as replaced:
        for one in ready.given:
            replaced.enter_context(_calls_file(one, runs[one.name], called))
        try:
            after = _scores(parts, readable)
        except Exception as error:  # of the user's step, which may need more than outputs
            return Scored(why_not=f"the test step cannot use the file: {error!s:.200}")
    if not called:
        return Scored(why_not="the test step does not call the exported model")
    return Scored({"before": before, "after": after})


def _scores(parts: Parts, sets: Mapping[str, Data]) -> dict[str, float]:
    """Return the numbers of a test step that is traced for this call only."""
    compiled = parts.compiled.untraced()
    selector = PlanSelector(asked_for("graph"), compiled, parts.task)
    scorer = Scorer(parts.task, parts.strategy, compiled, selector)
    alone = Agreement(parts.team, time.perf_counter, Signals())
    return {
        f"{prefix}{name}": float(value)
        for prefix, data in sets.items()
        for name, value in (scorer.score(data, None, alone) or {}).items()
        if np.ndim(value) == 0
    }


@contextlib.contextmanager
def _calls_file(one: Signature, run: child.Run, called: list[str]) -> Iterator[None]:
    """Let a model return what its file computes, until the block ends."""
    structure = one.model(one.batch(one.sizes()[-1]), training=False)
    like = named(structure)
    names = flat_names(list(like)).values()
    specs = tf.nest.flatten(one.specs)

    def outputs_of(*arrays: Any) -> list[Any]:
        parts = [
            _cut(run(dict(zip(one.input_names, batch, strict=True))), count)
            for batch, count in _batches(arrays, specs[0].shape[0])
        ]
        return [np.concatenate([part[name] for part in parts]) for name in names]

    def call(inputs: Any, *_: Any, **__: Any) -> Any:
        called.append(one.name)
        leaves = [
            leaf if spec.dtype == tf.string else tf.cast(leaf, spec.dtype)
            for leaf, spec in zip(tf.nest.flatten(inputs), specs, strict=True)
        ]
        found = tf.numpy_function(outputs_of, leaves, [each.dtype for each in like.values()])
        for tensor, example in zip(found, like.values(), strict=True):
            tensor.set_shape([None, *example.shape[1:]])
        return tf.nest.pack_sequence_as(structure, found)

    one.model.call = call
    try:
        yield
    finally:
        del one.model.call


def _batches(arrays: Sequence[Any], size: int | None) -> Iterator[tuple[list[Any], int]]:
    """Yield batches that a file accepts, and how many of their examples count."""
    total = len(arrays[0])
    for first in range(0, total, size or max(total, 1)):
        last = min(total, first + (size or total))
        rows = np.minimum(np.arange(first, first + (size or total)), last - 1)
        yield [np.asarray(array)[rows] for array in arrays], last - first


def _cut(found: Mapping[str, Any], count: int) -> dict[str, Any]:
    return {name: np.array(array[:count]) for name, array in found.items()}
