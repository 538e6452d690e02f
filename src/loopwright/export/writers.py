"""Writes models in each format, into a directory that nothing else sees yet."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import keras
import tensorflow as tf

from loopwright.config.export_formats import Target
from loopwright.errors import ConfigurationError, LoopwrightError
from loopwright.export.child import write_arrays
from loopwright.export.converter_messages import FIXED_BATCH_SIZE, litert_reason, onnx_reason
from loopwright.export.signatures import Signature, require_dense
from loopwright.guards import calls
from loopwright.processes import failure, python


def write(given: Sequence[Signature], target: Target, directory: Path) -> Path:
    """Write the models; return the file or directory."""
    if target.format == "keras":
        written = directory / "model.keras"  # Keras chooses the format by the suffix
        given[0].model.save(written)
        return written
    if target.format == "saved_model":
        _write_saved_model(given, directory / "model", flat=False)
        return directory / "model"
    return _convert(given, target, directory)


def _write_saved_model(given: Sequence[Signature], path: Path, *, flat: bool) -> None:
    """Write a SavedModel; `flat`: each input is an argument, each output has a plain name."""
    archive = keras.export.ExportArchive()
    for one in given:
        for tracked in (one.model, *one.resources):
            archive.track(tracked)
        if flat:
            call, specs = one.flat_call, tf.nest.flatten(one.specs)
        else:
            call, specs = one.call, [one.specs]
        archive.add_endpoint(one.name, call, input_signature=specs)
    archive.write_out(os.fspath(path), verbose=False)


def _convert(given: Sequence[Signature], target: Target, directory: Path) -> Path:
    write_order(given, target, directory)
    command = [*python(), "-m", "loopwright.export.child", "convert", os.fspath(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if reason := refusal(target, done.returncode, done.stderr):
        raise refused(target, reason, is_step=given[0].predict is not None)
    return directory / f"model{target.kind.suffix}"


def write_order(given: Sequence[Signature], target: Target, directory: Path) -> None:
    """Write what the converter reads: a SavedModel, examples to calibrate with, the order."""
    require_dense(given)
    _write_saved_model(given, directory / "source", flat=True)
    if target.quantize == "int8":
        _write_calibration(given, target, directory)
    order = {
        "format": target.format,
        "quantize": target.quantize,
        "batch_size": target.batch_size,
        "signatures": [one.name for one in given],
    }
    (directory / "order.json").write_text(json.dumps(order))


def refusal(target: Target, code: int, printed: str) -> str:
    """Return why a converter refused a model; empty if it did not. Crashes have negative codes."""
    if code < 0:
        return failure(code, printed[-600:])
    if target.format == "onnx" and (reason := onnx_reason(printed)):
        return reason  # it exits with 0
    return litert_reason(printed) if code else ""


def refused(target: Target, reason: str, *, is_step: bool = False) -> LoopwrightError:
    """Return the error of a model that the converter does not accept."""
    do = "change or leave out the layers with these operations, or export another format"
    if reason == FIXED_BATCH_SIZE:
        do = "export with batch_size=1, or another fixed size"
    elif reason.endswith("float16"):
        do = "build the model in float32 for the export, with the same weights; or export onnx"
    if is_step:
        do += '; or export the model without predict_step: Task.exports() -> {"serve": self.model}'
    return LoopwrightError(
        f"The model cannot be converted for {target.kind.read_by}: nothing was exported.",
        expected=f"operations that {target.kind.read_by} has",
        received=reason,
        do=do,
    )


def _write_calibration(given: Sequence[Signature], target: Target, directory: Path) -> None:
    made_up = [one.name for one in given if one.origin == "drawn"]
    few = [one.name for one in given if one.count < (target.batch_size or 1)]
    if made_up or few:
        raise ConfigurationError(
            "int8 is calibrated on examples of the run's own data.",
            expected="examples that the exported model accepts",
            received=f"none for {', '.join(made_up or few)}",
            do='pass them: export(..., quantize="int8", examples={"serve": x[:200]})',
        )
    named = {
        f"{one.name}\n{name}": leaf
        for one in given
        for name, leaf in one.named(one.examples).items()
    }
    write_arrays(directory / "calibration.npz", named)


def require_configs(given: Sequence[Signature]) -> None:
    """Raise if Keras cannot save a layer; a SavedModel needs no `get_config`."""
    for layer, error in calls.failing_configs([one.model for one in given]):
        text = calls.unsavable(layer, error)
        raise LoopwrightError(
            f"{text}; or export a saved_model, which needs no get_config"
        ) from error
