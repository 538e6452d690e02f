"""Runs a model here and its export in a new process, on the same batches, and compares."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import tensorflow as tf

from loopwright.checkpoints import tensors
from loopwright.compat.keras_internals import layers_in
from loopwright.config.export_formats import Target
from loopwright.errors import LoopwrightError
from loopwright.export import outputs
from loopwright.export.child import read_arrays, write_arrays
from loopwright.export.converter_messages import last_error
from loopwright.export.signatures import Signature, flat_names
from loopwright.processes import failure, python

QUANTIZED = {"float16": 1e-2, "dynamic": 0.2, "int8": 0.5}
"""The difference above which a quantized file is broken and not just rounded."""

Outputs = dict[tuple[str, int], dict[str, Any]]
"""Outputs by signature and batch size."""


@final
@dataclass(frozen=True)
class Comparison:
    """One signature at one batch size: how much outputs differ."""

    signature: str
    examples: int
    """The batch size."""
    largest_difference: float
    """Relative to the largest output."""


def expected_outputs(given: Sequence[Signature]) -> Outputs:
    """Return what is computed here, by signature and batch size; outputs by their paths."""
    return {
        (one.name, size): outputs.named(one.call(one.batch(size)))
        for one in given
        for size in one.sizes()
    }


def compare(
    given: Sequence[Signature],
    expected: Outputs,
    target: Target,
    written: Path,
    scratch: Path,
    tolerance: float | None = None,
) -> list[Comparison]:
    """Run the export in a new process, and compare.

    Raises if an output differs, or if the export cannot be loaded.
    """
    _run_in_new_process(given, target, written, scratch)
    found = _read_outputs(target, scratch)
    problems, comparisons = dict[str, list[str]](), list[Comparison]()
    for one in given:
        rounding = _rounding(one.model, target)
        for size in one.sizes():
            own = expected[one.name, size]
            if target.kind.is_converted:
                names = flat_names(list(own))
                own = {names[path]: tensor for path, tensor in own.items()}
            received = found.get((one.name, size), {})
            difference, wrong = outputs.compared(
                own, received, tolerance=tolerance, rounding=rounding
            )
            place = one.name if size == one.sizes()[0] else f"{one.name}, batch of {size}"
            if wrong:  # the first batch size tells: others have the same problem
                problems.setdefault(one.name, [f"{place}: {text}" for text in wrong])
            comparisons.append(Comparison(one.name, size, difference))
    _require_same([text for some in problems.values() for text in some], target, tolerance)
    return comparisons


def _rounding(model: Any, target: Target) -> float:
    """Return how much precision a converted file may give up."""
    if not target.kind.is_converted:
        return 0.0
    used = {str(getattr(layer, "compute_dtype", "")) for layer in layers_in(model)}
    rounded = [outputs.ROUNDED.get(dtype, 0.0) for dtype in used]
    return max([*rounded, QUANTIZED.get(target.quantize or "", 0.0)], default=0.0)


def _run_in_new_process(
    given: Sequence[Signature], target: Target, written: Path, scratch: Path
) -> None:
    calls = {f"{one.name}\n{size}": (one, one.batch(size)) for one in given for size in one.sizes()}
    if target.kind.is_converted:
        write_arrays(
            scratch / "inputs.npz",
            {
                f"{call}\n{name}": leaf
                for call, (one, batch) in calls.items()
                for name, leaf in one.named(batch).items()
            },
        )
    else:
        flat = {
            f"{call}\n{place:06d}": tf.convert_to_tensor(leaf)
            for call, (_, batch) in calls.items()
            for place, leaf in enumerate(tf.nest.flatten(batch))
        }
        tensors.write(scratch / "inputs", flat)
    words = ["-m", "loopwright.export.child", target.format, str(written), str(scratch)]
    done = subprocess.run([*python(), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise _not_loadable(target, done)


def _read_outputs(target: Target, scratch: Path) -> Outputs:
    if target.kind.is_converted:
        found_arrays = read_arrays(scratch / "outputs.npz").items()
        read: dict[str, Any] = {key: tf.constant(array) for key, array in found_arrays}
    else:
        read = tensors.read(scratch / "outputs")
    found: Outputs = {}
    for key, tensor in read.items():
        signature, size, output = key.split("\n", 2)
        found.setdefault((signature, int(size)), {})[output] = tensor
    return found


def _not_loadable(target: Target, done: "subprocess.CompletedProcess[str]") -> LoopwrightError:
    received = failure(done.returncode, done.stderr.strip()[-600:], done.stdout[-600:])
    do = (
        "register custom layers with keras.saving.register_keras_serializable, in a module that "
        "the loading program imports; or export a saved_model"
    )
    if target.kind.is_converted:
        do = "export another format; the saved_model holds every operation of TensorFlow"
        if done.returncode > 0:
            received = f"{target.kind.read_by} refuses it: {last_error(done.stderr)}"
    return LoopwrightError(
        "The exported model cannot be loaded in a new process: nothing was exported.",
        expected=f"a model that {target.kind.read_by} loads and runs from its file alone",
        received=received,
        do=do,
    )


def _require_same(problems: Sequence[str], target: Target, tolerance: float | None) -> None:
    if not problems:
        return
    allowed = "the tolerances of their dtypes" if tolerance is None else f"{tolerance:g}"
    do = (
        "look for layers that change when exported or loaded: random layers, custom layers with "
        "an incomplete get_config, Python code that depends on the process"
    )
    if target.kind.is_converted:
        do = "export another format, or find the layer that differs by exporting parts of the model"
    if target.quantize:
        do = "export without quantize, or quantize less: dynamic or float16"
    raise LoopwrightError(
        "The outputs of the exported model differ from the task's: nothing was exported.",
        expected=f"the same outputs in a new process, within {allowed}",
        received="; ".join(problems),
        do=do,
    )
