"""Exports models for serving, verified in a new process before they are published.

    trainer.export("export")        # export/1/, then export/2/: for TensorFlow Serving
    trainer.export("model.keras")   # for keras.models.load_model

A new process loads the files and computes outputs for the same examples. If they differ by more
than the tolerance, nothing is published.
"""

import contextlib
import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from loopwright import disk
from loopwright.checkpoints import tensors
from loopwright.distribute.supervisor import failure, python
from loopwright.errors import ConfigurationError, LoopwrightError, message
from loopwright.export import outputs
from loopwright.guards import calls
from loopwright.step_warnings import warn_at_call

Format = Literal["saved_model", "keras"]
EXAMPLES = 8
TOLERANCE = 1e-4
_STAGED = ".loopwright.tmp-"


@dataclass(frozen=True)
class Exported:
    """Where a model was written, and how much its outputs differ from the task's."""

    path: str
    format: Format
    signatures: list[str]
    largest_difference: float
    """Relative to the largest output, over all examples and signatures, in a new process."""
    examples: int
    step: int | None = None
    """The number of training steps; None if unknown."""


def export(
    models: Mapping[str, keras.Model],
    path: Path,
    examples: Mapping[str, Any] | None = None,
    *,
    format: Format | None = None,
    step: int | None = None,
    tolerance: float = TOLERANCE,
) -> Exported:
    """Write models under their names, load them in a new process, and compare outputs.

    A path that ends in `.keras` is one file for a single model; any other path is a directory of
    versions. `examples` are inputs by signature; missing ones are drawn from the input's shape.
    """
    kind: Format = format or ("keras" if path.name.endswith(".keras") else "saved_model")
    _require_exportable(models, path, kind)
    if kind == "keras":
        _require_configs(list(models.values()))
    given = {name: (examples or {}).get(name) for name in models}
    inputs = {
        name: drawn(models[name]) if some is None else tf.nest.map_structure(tf.constant, some)
        for name, some in given.items()
    }
    expected = {name: outputs.named(models[name](inputs[name], training=False)) for name in models}
    _warn_if_all_nan(expected)
    home = path.parent if kind == "keras" else path
    home.mkdir(parents=True, exist_ok=True)
    disk.delete_abandoned(home, _STAGED)
    with disk.staged(home, _STAGED) as directory:
        # Keras chooses the format by the suffix.
        written = directory / ("model.keras" if kind == "keras" else "model")
        if kind == "keras":
            models[next(iter(models))].save(written)
        else:
            _save_model(models, inputs, written)
        found = _outputs_of_a_new_process(written, kind, inputs, directory)
        difference = _require_same(expected, found, tolerance)
        final = path if kind == "keras" else _next_version(path)
        done = Exported(str(final), kind, sorted(models), difference, EXAMPLES, step)
        report = json.dumps(asdict(done), indent=2).encode() + b"\n"
        if kind == "saved_model":
            disk.write_whole(written, "loopwright.json", report)
        disk.flush(directory, written.name)
        disk.move(directory, written.name, final.parent, final.name)
        if kind == "keras":
            disk.write_whole(final.parent, f"{final.name}.json", report)
    return done


def _require_same(
    expected: Mapping[str, Mapping[str, Any]],
    found: Mapping[str, Mapping[str, Any]],
    tolerance: float,
) -> float:
    """Return the largest relative difference; raise if it exceeds the tolerance."""
    worst, problems = 0.0, list[str]()
    for name, own in expected.items():
        difference, wrong = outputs.compared(own, found.get(name, {}), tolerance=tolerance)
        worst, problems = max(worst, difference), problems + [f"{name}: {text}" for text in wrong]
    if problems:
        raise LoopwrightError(
            message(
                "The outputs of the exported model differ from the task's: nothing was exported.",
                expected=f"the same outputs in a new process, within {tolerance:g}",
                received="; ".join(problems),
                do="look for layers that change when exported or loaded: random layers, "
                "custom layers with an incomplete get_config, Python code that depends on the "
                "process",
            )
        )
    return worst


def _warn_if_all_nan(expected: Mapping[str, Mapping[str, Any]]) -> None:
    empty = [f"{name}: {o}" for name, own in expected.items() for o in outputs.without_numbers(own)]
    if empty:
        warn_at_call(
            message(
                "The task outputs only NaN for the examples of this export, so these outputs were "
                "not verified.",
                expected="numbers to compare",
                received="; ".join(empty),
                do='pass typical inputs of the model: export(..., examples={"serve": x[:8]})',
            )
        )


def worded(done: Exported) -> str:
    """Describe an export in one line.

    >>> worded(Exported("export/1", "saved_model", ["serve"], 2e-7, 8, step=60))
    'export/1 (serve): outputs match step 60; largest difference in a new process: 2e-07'
    """
    names = ", ".join(done.signatures)
    return (
        f"{done.path} ({names}): outputs match step {done.step}; largest difference in a new "
        f"process: {done.largest_difference:.2g}"
    )


def newest(run_dir: Path, format: Format) -> Exported | None:
    """Return the last export in a run directory; None if there is no valid report of one."""
    names = disk.names(run_dir, "export")
    if format == "keras":
        reports = [f"export/{name}" for name in names if name.endswith(".keras.json")]
    else:
        reports = [f"export/{name}/loopwright.json" for name in names if name[:1].isdigit()]
    written = {name: found for name in reports if (found := disk.status(run_dir, name))}
    for name in sorted(written, key=lambda name: written[name].st_mtime_ns)[-1:]:
        content = disk.read(run_dir, name)
        with contextlib.suppress(ValueError, TypeError):
            return Exported(**json.loads(content))
    return None


def drawn(model: keras.Model, count: int = EXAMPLES) -> Any:
    """Draw examples from the shapes and dtypes of a model's inputs, the same every time."""
    random = np.random.default_rng(0)

    def draw(spec: Any) -> Any:
        shape = [count, *(size or EXAMPLES for size in spec.shape[1:])]
        if spec.dtype == "string":
            return tf.strings.as_string(random.integers(0, 10, shape))
        if spec.dtype == "bool":
            return tf.constant(random.integers(0, 2, shape) == 1)
        if "int" in spec.dtype:
            return tf.constant(random.integers(0, 2, shape), spec.dtype)
        return tf.constant(random.normal(size=shape), spec.dtype)

    declared = _declared_inputs(model)
    if declared is None:
        raise ConfigurationError(
            message(
                f"The inputs of {model.name} are unknown.",
                expected="a functional or Sequential model with keras.Input, or examples",
                received=f"a {type(model).__name__} without declared inputs",
                do='pass some: export(..., examples={"serve": x[:8]})',
            )
        )
    return tf.nest.map_structure(draw, declared)


def _declared_inputs(model: keras.Model) -> Any:
    """Return the declared inputs of a functional or Sequential model; None for others."""
    with contextlib.suppress(AttributeError, ValueError):
        return model.input
    inputs = getattr(model, "inputs", None) or []  # a Sequential model has one
    return inputs[0] if len(inputs) == 1 else None


def _require_exportable(models: Mapping[str, Any], path: Path, kind: Format) -> None:
    problem = ""
    if kind not in ("saved_model", "keras"):
        problem = f"format={kind!r}"
    elif not models:
        problem = "a task without a model"
    elif kind == "keras" and (len(models) > 1 or not path.name.endswith(".keras")):
        problem = f"{len(models)} model(s) into {path}"
    elif kind == "keras" and path.exists():
        problem = f"{path}, which already exists"
    if problem:
        raise ConfigurationError(
            message(
                "Cannot export this.",
                expected="models for a directory of versions, or one model for a new .keras file",
                received=problem,
                do='write Task.exports() -> {"serve": model}, or choose another path or format',
            )
        )


def _require_configs(models: Sequence[keras.Model]) -> None:
    """Raise if Keras cannot save a layer; a SavedModel needs no `get_config`."""
    for layer, error in calls.failing_configs(models):
        text = calls.unsavable(layer, error)
        raise LoopwrightError(
            f"{text}; or export a saved_model, which needs no get_config"
        ) from error


def _save_model(models: Mapping[str, keras.Model], inputs: Mapping[str, Any], path: Path) -> None:
    archive = keras.export.ExportArchive()
    for name, model in models.items():
        archive.track(model)
        declared = _declared_inputs(model)
        spec = tf.nest.map_structure(
            lambda tensor: tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype),
            inputs[name] if declared is None else declared,
        )
        archive.add_endpoint(name, _serving(model), input_signature=[spec])
    archive.write_out(str(path), verbose=False)


def _serving(model: keras.Model) -> Any:
    return lambda inputs: model(inputs, training=False)


def _outputs_of_a_new_process(
    path: Path, kind: Format, inputs: Mapping[str, Any], scratch: Path
) -> dict[str, dict[str, Any]]:
    given = {
        f"{name}\n{place:06d}": tf.convert_to_tensor(leaf)
        for name, some in inputs.items()
        for place, leaf in enumerate(tf.nest.flatten(some))
    }
    tensors.write(scratch / "inputs", given)
    command = [*python(), "-m", "loopwright.export.child", kind, str(path), str(scratch)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LoopwrightError(
            message(
                "The exported model cannot be loaded in a new process: nothing was exported.",
                expected="a model that can be loaded from its file alone",
                received=failure(done.returncode, done.stderr.strip()[-600:], done.stdout[-600:]),
                do="register custom layers with keras.saving.register_keras_serializable, in a "
                "module that the loading program imports; or export a saved_model",
            )
        )
    found: dict[str, dict[str, Any]] = {}
    for key, tensor in tensors.read(scratch / "outputs").items():
        name, _, output = key.partition("\n")
        found.setdefault(name, {})[output] = tensor
    return found


def _next_version(path: Path) -> Path:
    taken = [int(entry.name) for entry in path.glob("*") if entry.name.isdigit()]
    return path / str(max(taken, default=0) + 1)
