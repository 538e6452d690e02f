"""Exporting: models for serving, checked in a new process before anybody can find them.

    trainer.export("export")        # export/1/, then export/2/: what TensorFlow Serving reads
    trainer.export("model.keras")   # what keras.models.load_model reads

What was written is loaded by a process that knows nothing else, given the same examples, and its
answers are compared. Beyond the tolerance nothing is left behind.
"""

import contextlib
import json
import os
import secrets
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from loopwright import disk
from loopwright.errors import ConfigurationError, LoopwrightError, message
from loopwright.supervising import python

Format = Literal["saved_model", "keras"]
EXAMPLES = 8
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Exported:
    """Where a model was written, and how far its answers are from those of the task."""

    path: str
    format: Format
    signatures: list[str]
    largest_difference: float
    """Relative to the largest answer, over all examples and signatures, in a new process."""
    examples: int
    step: int | None = None
    """After how many steps of training; None if nobody said."""


def export(
    models: Mapping[str, keras.Model],
    path: Path,
    examples: Mapping[str, Any] | None = None,
    *,
    format: Format | None = None,
    step: int | None = None,
    tolerance: float = TOLERANCE,
) -> Exported:
    """Writes models under their names, loads them in a new process, and compares.

    A path that ends in `.keras` is one file with the only model; any other is a directory of
    versions. `examples` are inputs by signature; what is missing is drawn from the input's shape.
    """
    kind: Format = format or ("keras" if path.name.endswith(".keras") else "saved_model")
    _require_exportable(models, path, kind)
    given = {name: (examples or {}).get(name) for name in models}
    inputs = {
        name: drawn(models[name]) if some is None else tf.nest.map_structure(tf.constant, some)
        for name, some in given.items()
    }
    expected = {name: _flat(models[name](inputs[name], training=False)) for name in models}
    final = path if kind == "keras" else _next_version(path)
    with _aside(final) as temporary:
        if kind == "keras":
            models[next(iter(models))].save(temporary)
        else:
            _save_model(models, inputs, temporary)
        with _scratch(final.parent) as scratch:
            answers = _answers_of_a_new_process(temporary, kind, inputs, scratch)
        difference = max(_difference(expected[name], answers[name]) for name in models)
        if not difference <= tolerance:
            raise LoopwrightError(
                message(
                    "The exported model answers otherwise than the task: nothing was exported.",
                    expected=f"the same answers in a new process, within {tolerance:g}",
                    received=f"a relative difference of {difference:.3g}",
                    do="look for layers that behave otherwise when they are loaded: random ones, "
                    "custom ones without a whole get_config",
                )
            )
        temporary.rename(final)
    done = Exported(str(final), kind, sorted(models), float(difference), EXAMPLES, step)
    report = f"{final.name}.json" if kind == "keras" else f"{final.name}/loopwright.json"
    disk.write_whole(final.parent, report, json.dumps(asdict(done), indent=2).encode() + b"\n")
    return done


def worded(done: Exported) -> str:
    """What became of an export, in a line.

    >>> worded(Exported("export/1", "saved_model", ["serve"], 2e-7, 8, step=60))
    'export/1 (serve) answers as step 60 does; the largest difference in a new process is 2e-07'
    """
    names = ", ".join(done.signatures)
    return (
        f"{done.path} ({names}) answers as step {done.step} does; the largest difference in a new "
        f"process is {done.largest_difference:.2g}"
    )


def newest(run_dir: Path, format: Format) -> Exported | None:
    """What was last exported in a run directory; None if nothing was, or nobody noted it."""
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
    """Examples for a model, drawn from the shapes and dtypes of its inputs; the same every time."""
    random = np.random.default_rng(0)

    def draw(spec: Any) -> Any:
        shape = [count, *(size or EXAMPLES for size in spec.shape[1:])]
        if "int" in spec.dtype:
            return tf.constant(random.integers(0, 2, shape), spec.dtype)
        return tf.constant(random.normal(size=shape), spec.dtype)

    declared = _declared_inputs(model)
    if declared is None:
        raise ConfigurationError(
            message(
                f"The inputs of {model.name} are not known.",
                expected="a functional or Sequential model with keras.Input, or examples",
                received=f"a {type(model).__name__} without declared inputs",
                do='pass some: export(..., examples={"serve": x[:8]})',
            )
        )
    return tf.nest.map_structure(draw, declared)


def _declared_inputs(model: keras.Model) -> Any:
    """What a functional or Sequential model says about its inputs; None of any other."""
    with contextlib.suppress(AttributeError, ValueError):
        return model.input
    inputs = getattr(model, "inputs", None) or []  # of a Sequential model, there is one
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
        problem = f"{path}, which exists"
    if problem:
        raise ConfigurationError(
            message(
                "This cannot be exported.",
                expected="models for a directory of versions, or one model for a new .keras file",
                received=problem,
                do='write Task.exports() -> {"serve": model}, or choose another path or format',
            )
        )


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


def _answers_of_a_new_process(
    path: Path, kind: Format, inputs: Mapping[str, Any], scratch: Path
) -> dict[str, list[Any]]:
    arrays: dict[str, Any] = {
        f"{name} {place}": leaf
        for name, some in inputs.items()
        for place, leaf in enumerate(_flat(some))
    }
    np.savez(scratch / "inputs.npz", **arrays)
    command = [*python(), "-m", "loopwright.exported", kind, str(path), str(scratch)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LoopwrightError(
            message(
                "The exported model cannot be loaded in a new process: nothing was exported.",
                expected="a model that needs nothing but its file",
                received=done.stderr.strip()[-600:],
                do="register custom layers with keras.saving.register_keras_serializable, in a "
                "module that the loading program imports; or export a saved_model",
            )
        )
    with np.load(scratch / "outputs.npz") as found:
        keys = sorted(found, key=_place)
        return {n: [found[k] for k in keys if k.rpartition(" ")[0] == n] for n in inputs}


def _place(key: str) -> int:
    return int(key.rpartition(" ")[2])


def _difference(expected: list[Any], answers: list[Any]) -> float:
    if [a.shape for a in expected] != [a.shape for a in answers]:
        return float("inf")
    worst = 0.0
    for one, other in zip(expected, answers, strict=True):
        apart = np.abs(one.astype("float64") - other.astype("float64"))
        scale = max(float(np.max(np.abs(one), initial=0.0)), 1e-12)
        worst = max(worst, float(np.max(apart, initial=0.0)) / scale)
    return worst


def _flat(value: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in tf.nest.flatten(value)]


def _next_version(path: Path) -> Path:
    taken = [int(entry.name) for entry in path.glob("*") if entry.name.isdigit()]
    return path / str(max(taken, default=0) + 1)


@contextlib.contextmanager
def _aside(final: Path) -> Iterator[Path]:
    """A place beside the final one; whatever is left there goes with any error."""
    final.parent.mkdir(parents=True, exist_ok=True)
    suffix = ".keras" if final.name.endswith(".keras") else ""
    temporary = final.with_name(f".{final.name}.tmp-{secrets.token_hex(4)}{suffix}")
    try:
        yield temporary
    finally:
        if os.path.lexists(temporary):
            disk.delete(temporary.parent, temporary.name)


@contextlib.contextmanager
def _scratch(parent: Path) -> Iterator[Path]:
    scratch = parent / f".examples.tmp-{secrets.token_hex(4)}"
    scratch.mkdir(0o700)
    try:
        yield scratch
    finally:
        disk.delete(parent, scratch.name)
