"""Exports models for serving, verified in a new process before they are published.

    trainer.export("export")          # export/1/, then export/2/: for TensorFlow Serving
    trainer.export("model.keras")     # for keras.models.load_model
    trainer.export("model.tflite")    # for LiteRT, on phones and boards
    trainer.export("model.onnx")      # for ONNX Runtime

A new process loads the files with the runtime that they are for, and computes outputs for the same
examples. If they differ by more than the tolerance, nothing is published.
"""

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib import metadata
from pathlib import Path
from typing import Any, final

import keras

from loopwright import disk, untrusted
from loopwright.config.export_formats import (
    Format,
    Quantize,
    Target,
    require_installed,
    target_for,
)
from loopwright.errors import ConfigurationError, message
from loopwright.export import outputs, writers
from loopwright.export.comparison import Comparison, compare, expected_outputs
from loopwright.export.signatures import Signature, renamed, signatures
from loopwright.step_warnings import warn_at_call

_STAGED = ".loopwright.tmp-"


@final
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
    quantize: Quantize | None = None
    batch_size: int | None = None
    """The only batch size that the file accepts; None: any."""
    averaged: bool = False
    """Whether the weights are averages of optimizers with `use_ema`."""
    examples_from: dict[str, str] = field(default_factory=dict)
    """By signature: "passed", "data" (of the run) or "drawn" (random, from the input's shape)."""
    holds: str = ""
    """"what predict returns", or whose outputs these are and why."""
    renamed: dict[str, str] = field(default_factory=dict)
    """Names in the file that differ by more than punctuation: `{"output 'x-y'": "x_y_2"}`."""
    bytes: int = 0
    """The size of the file, or of all files of a SavedModel."""
    runtime: str = ""
    """What ran the export: "ai-edge-litert 2.3.0"."""
    comparisons: list[Comparison] = field(default_factory=list)


_FIELDS = {each.name for each in fields(Exported)}


def export(
    models: Mapping[str, keras.Model],
    path: Path,
    examples: Mapping[str, Any] | None = None,
    *,
    target: Target | None = None,
    data: Any = None,
    step: int | None = None,
    averaged: bool = False,
    tolerance: float | None = None,
    served: Callable[[Signature], tuple[Signature, str]] | None = None,
) -> Exported:
    """Write models under their names, load them in a new process, and compare outputs.

    A path with the suffix of a format is one file; any other path is a directory of versions.
    `examples` are inputs by signature, `data` is a batch of the run; what is missing is drawn from
    the input's shape. `served` replaces the call of the model by that of its task, and
    says what the export then holds.
    """
    target = target or target_for(path.name)
    chosen = _chosen(models, path, target)
    require_installed(target.format)
    given = signatures(chosen, examples, data, target.batch_size)
    if target.format == "keras":
        writers.require_configs(given)
    holds = ""
    if served is not None:
        first, holds = served(given[0])
        given = [first, *given[1:]]
    expected = expected_outputs(given)
    _warn_if_all_nan(expected)
    home = path.parent if target.kind.suffix else path
    home.mkdir(parents=True, exist_ok=True)
    disk.delete_abandoned(home, _STAGED)
    with disk.staged(home, _STAGED) as directory:
        written = writers.write(given, target, directory)
        comparisons = compare(given, expected, target, written, directory, tolerance)
        done = Exported(
            path=str(path if target.kind.suffix else _next_version(path)),
            format=target.format,
            signatures=sorted(chosen),
            largest_difference=max(each.largest_difference for each in comparisons),
            examples=max(one.count for one in given),
            step=step,
            quantize=target.quantize,
            batch_size=target.batch_size,
            averaged=averaged,
            examples_from={one.name: one.origin for one in given},
            holds=holds,
            renamed=renamed(given, expected) if target.kind.is_converted else {},
            bytes=_size(directory, written.name),
            runtime=f"{target.kind.runtime} {metadata.version(target.kind.runtime)}",
            comparisons=comparisons,
        )
        return _published(done, written)


def _published(done: Exported, written: Path) -> Exported:
    """Give a staged export its final name, with its comparison, and return it."""
    final = Path(done.path)
    if done.format == "saved_model":
        disk.write_whole(written, "loopwright.json", _json(done))
    disk.flush(written.parent, written.name)
    disk.move(written.parent, written.name, final.parent, final.name)
    if done.format != "saved_model":
        disk.write_whole(final.parent, f"{final.name}.json", _json(done))
    return done


def _json(done: Exported) -> bytes:
    return json.dumps(asdict(done), indent=2).encode() + b"\n"


def _warn_if_all_nan(expected: Mapping[tuple[str, int], Mapping[str, Any]]) -> None:
    empty = {f"{name}: {o}" for (name, _), own in expected.items()
             for o in outputs.without_numbers(own)}  # fmt: skip
    if empty:
        warn_at_call(
            message(
                "The task outputs only NaN for the examples of this export, so these outputs were "
                "not verified.",
                expected="numbers to compare",
                received="; ".join(sorted(empty)),
                do='pass typical inputs of the model: export(..., examples={"serve": x[:8]})',
            )
        )


def worded(done: Exported) -> str:
    """Describe an export in one line, and its size in a second.

    >>> done = Exported("export/1", "keras", ["serve"], 2e-7, 8, step=60, holds="the model")
    >>> print(worded(done))
    export/1 (serve: the model): outputs match step 60; largest difference in a new process: 2e-07
    """
    names = ", ".join(done.signatures) + (done.holds and f": {done.holds}")
    lines = [
        f"{done.path} ({names}): outputs match step {done.step}; largest difference in a new "
        f"process: {done.largest_difference:.2g}"
    ]
    if done.bytes:
        lines.append(f"{done.bytes:,} bytes, run by {done.runtime}")
    if done.renamed:
        names = [f"{name} is {other}" for name, other in done.renamed.items()]
        lines.append(f"renamed: {', '.join(names)}")
    return "\n".join(lines)


def newest(run_dir: Path, target: Target, *, averaged: bool = False) -> Exported | None:
    """Return the last such export in a run directory; None if there is no valid report of one."""
    names = disk.names(run_dir, "export")
    if suffix := target.kind.suffix:
        reports = [f"export/{name}" for name in names if name.endswith(f"{suffix}.json")]
    else:
        reports = [f"export/{name}/loopwright.json" for name in names if name[:1].isdigit()]
    written = {name: found for name in reports if (found := disk.status(run_dir, name))}
    for name in sorted(written, key=lambda name: -written[name].st_mtime_ns):
        content = untrusted.json_or_none(run_dir, name)
        with contextlib.suppress(ValueError, TypeError):
            # Older reports have scores and times.
            found = Exported(**{n: v for n, v in content.items() if n in _FIELDS})
            wanted = target.signatures or found.signatures
            if (found.quantize, found.batch_size, found.averaged, sorted(wanted)) == (
                target.quantize,
                target.batch_size,
                averaged,
                found.signatures,
            ):
                return found
    return None


def _chosen(
    models: Mapping[str, keras.Model], path: Path, target: Target
) -> dict[str, keras.Model]:
    """Return the models to export; raise if they do not fit into the format or the path."""
    wanted = list(models) if target.signatures is None else list(target.signatures)
    kind, suffix = target.kind, target.kind.suffix
    problem = ""
    if not models:
        problem = "a task without a model"
    elif unknown := [name for name in wanted if name not in models]:
        problem = f"no model {', '.join(unknown)!r}; there are {', '.join(models)}"
    elif not path.name.endswith(suffix) or len(wanted) > (kind.most_signatures or len(wanted)):
        problem = f"{len(wanted)} model(s) into {path}"
    elif suffix and path.exists():
        problem = f"{path}, which already exists"
    if problem:
        file = f"new {suffix} file" if suffix else "directory of versions"
        one = "one model" if kind.most_signatures == 1 else "models"
        raise ConfigurationError(
            "Cannot export this.",
            expected=f"{one} for a {file}",
            received=problem,
            do='write Task.exports() -> {"serve": model}, or choose another path or format, '
            'or some of the models: signatures=["serve"]',
        )
    return {name: models[name] for name in wanted}


def _size(directory: Path, name: str) -> int:
    found = [disk.status(directory, file) for file in disk.files_below(directory, name)]
    return sum(each.st_size for each in found if each is not None)


def _next_version(path: Path) -> Path:
    taken = [int(entry.name) for entry in path.glob("*") if entry.name.isdigit()]
    return path / str(max(taken, default=0) + 1)
