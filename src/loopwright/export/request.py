"""An export that a trainer asks for: the state, its predict step, examples of its data."""

import contextlib
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from loopwright import Supervised, Task, disk
from loopwright.compat import tensorflow_internals
from loopwright.config.export_formats import Format, Target, target_for
from loopwright.data.adapter import as_data
from loopwright.data.generators import Batches
from loopwright.dispatch import attempted
from loopwright.export import outputs
from loopwright.export.exporter import Exported, export
from loopwright.export.signatures import EXAMPLES, Signature, first_examples
from loopwright.fit.restore import require_run
from loopwright.sinks.report import write_report
from loopwright.task import context, variables
from loopwright.task.keras_model import CompiledModel
from loopwright.task.optimizers import averages_in_place
from loopwright.task.state import undisturbed
from loopwright.task.task import has_step

if TYPE_CHECKING:
    from loopwright.checkpoints.run_directory import Run
    from loopwright.data.source import Data
    from loopwright.fit.options import ExportOptions
    from loopwright.fit.parts import Parts

CALIBRATION = 128
"""How many examples of the data calibrate int8."""
PREDICTED = "what predict returns"
_PYTHON = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}


def run_export(
    parts: "Parts",
    run: "Run | None",
    options: "ExportOptions",
    training: "Data | None",
    held_out: "Iterable[Data]",
) -> Exported:
    """Export what the options ask for, of the state that they choose.

    Examples are of the data of the last `fit`, unless the options have data.
    """
    target = target_for(
        "" if options.path is None else Path(options.path).name,
        options.format,
        options.quantize,
        options.batch_size,
        options.signatures,
    )
    if options.data is not None:
        training, held_out = as_data(options.data), ()
    with parts.state.of(options.checkpoint, "export") as step:
        inside = require_run(run) if options.path is None else None
        path = Path(options.path or "")
        if inside is not None:
            name = target.file_name(step, averaged=options.averaged)
            path = inside.export_directory() / name
        averages = averages_in_place(parts.task) if options.averaged else contextlib.nullcontext()
        with averages, undisturbed(parts.task):
            done = export(
                parts.task.exports(),
                path,
                options.examples,
                target=target,
                data=_examples(target, held_out, training),
                step=step,
                averaged=options.averaged,
                tolerance=options.tolerance,
                served=partial(served, parts.task, target.format),
            )
        if inside is not None:
            inside.fix_export_permissions()
            if disk.status(inside.directory, "report.html") is not None:
                with attempted("The report"):  # written again, with its exports
                    write_report(inside.directory)
        return done


def served(task: Task, format: Format, one: Signature) -> tuple[Signature, str]:
    """Return the signature with the `predict_step` of a task if it can be exported, and words.

    The words say what the export holds.
    """
    if not has_step(task, "predict_step"):
        return one, "the model; the task has no predict_step"
    if getattr(task.exports, "__func__", None) is not Task.exports:
        return one, "what Task.exports returns, not predict_step"
    plain = keras.Model.predict_step
    is_keras = isinstance(task, CompiledModel) and type(task.model).predict_step is plain
    if isinstance(task, Supervised) or is_keras:
        return one, PREDICTED  # it calls the model, and does nothing else
    if format == "keras":
        return one, "the model without predict_step, which a .keras file cannot hold"
    step = tensorflow_internals.autograph(task.predict_step)

    def predict(batch: Any) -> Any:
        with context.entered(context.StepContext(counter=task.step_counter)):
            return step(batch)

    objection = _objection(predict, one)
    if objection:
        return one, f"the model without predict_step: {objection}"
    kind = tf.saved_model.experimental.TrackableResource
    held = [part.value for part in variables.parts(task, kind) if isinstance(part.value, kind)]
    return replace(one, predict=predict, resources=held), PREDICTED


def _objection(predict: Any, one: Signature) -> str:
    """Return why a step cannot be served for the inputs of a model; empty if it can."""
    batch = one.batch(one.count)
    try:
        traced: Any = tensorflow_internals.compiled(predict, input_signature=(one.specs,))
        graph = traced.get_concrete_function().graph.as_graph_def()
        found, again = predict(batch), outputs.named(predict(batch))
    except Exception as error:  # of the user's step
        last = (str(error).strip().splitlines() or [""])[-1].strip()
        return f"it fails on the inputs of the model ({type(error).__name__}: {last:.160})"
    bodies = [graph.node, *(function.node_def for function in graph.library.function)]
    if any(node.op in _PYTHON for body in bodies for node in body):
        return "it calls Python"
    if outputs.compared(outputs.named(found), again)[1]:
        return "its outputs differ from call to call"
    shapes = [tuple(getattr(leaf, "shape", ())) for leaf in tf.nest.flatten(found)]
    has_rows = all(shape[:1] == (one.count,) for shape in shapes)
    return "" if has_rows else "its outputs do not have one row per example"


def _examples(target: Target, held_out: "Iterable[Data]", training: "Data | None") -> Any:
    """Return a batch of the run's own data; None if there is none that can be read again."""
    count = CALIBRATION if target.quantize == "int8" else EXAMPLES
    # Later batches of an iterable may depend on how often it was read: it is left alone.
    is_iterable = isinstance(training, Batches) and training.objection_to_resume() is not None
    for data in [*held_out, *([] if training is None or is_iterable else [training])]:
        if data.can_be_read_again:
            return first_examples(data.one_pass(steps=count).dataset(), count)
    return None
