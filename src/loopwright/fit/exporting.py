"""An export of a trainer: its state, examples of its data, and scores of a quantized file."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

from loopwright import disk
from loopwright.checkpoints.run_directory import Run
from loopwright.config.export_formats import Format, Quantize, Target, target_for
from loopwright.data.adapter import as_data, validation_sets
from loopwright.data.generators import Batches
from loopwright.data.source import Data
from loopwright.export.exporter import Exported, export
from loopwright.export.signatures import EXAMPLES, first_examples
from loopwright.fit.export_scores import scores_of_file
from loopwright.fit.parts import Parts
from loopwright.fit.restore import Checkpoint, require_run
from loopwright.sinks.notify import attempted
from loopwright.sinks.report import write_report
from loopwright.task.optimizers import averages_in_place

CALIBRATION = 128
"""How many examples of the data calibrate int8."""


@dataclass(frozen=True)
class ExportOptions:
    """The arguments of a call of `export`, as they were passed."""

    path: "str | os.PathLike[str] | None" = None
    _: KW_ONLY
    format: Format | None = None
    """By default that of the path's suffix."""
    quantize: Quantize | None = None
    """Of LiteRT files."""
    batch_size: int | None = None
    """The only batch size that a LiteRT or ONNX file accepts; by default it accepts any."""
    signatures: Sequence[str] | None = None
    """Which models of the task; by default all."""
    examples: Mapping[str, Any] | None = None
    """Inputs by signature, for the comparison and to calibrate int8."""
    data: Any = None
    """Where examples come from: what `fit` takes as `x`; by default the data of the last `fit`."""
    validation_data: Any = None
    """What a quantized file is scored on; by default that of the last `fit`."""
    averaged: bool = False
    checkpoint: Checkpoint | None = None
    tolerance: float | None = None
    """The largest relative difference; by default that of each output's dtype."""


@final
@dataclass(frozen=True)
class SeenData:
    """The data of the last call of `fit`."""

    training: Data | None = None
    validation: Mapping[str, Data] | None = None


def run_export(parts: Parts, run: Run | None, options: ExportOptions, seen: SeenData) -> Exported:
    """Export what the options ask for, of the state that they choose."""
    target = target_for(
        "" if options.path is None else Path(options.path).name,
        options.format,
        options.quantize,
        options.batch_size,
        options.signatures,
    )
    training = seen.training if options.data is None else as_data(options.data)
    sets = seen.validation or {}
    if options.validation_data is not None:
        sets = validation_sets(options.validation_data, None)
    with parts.state.of(options.checkpoint, "export") as step:
        inside = require_run(run) if options.path is None else None
        path = Path(options.path or "")
        if inside is not None:
            name = target.file_name(step, averaged=options.averaged)
            path = inside.export_directory() / name
        averages = averages_in_place(parts.task) if options.averaged else contextlib.nullcontext()
        with averages:
            done = export(
                parts.task.exports(),
                path,
                options.examples,
                target=target,
                data=_examples(target, [*sets.values(), *_readable(training)]),
                step=step,
                averaged=options.averaged,
                tolerance=options.tolerance,
                score=partial(scores_of_file, parts, sets) if target.quantize else None,
            )
        if inside is not None:
            inside.exported()
            _refresh_report(inside.directory)
        return done


def _refresh_report(run_dir: Path) -> None:
    """Write the report of a run again, with its exports, if it has one."""
    if disk.status(run_dir, "report.html") is not None:
        with attempted("The report"):
            write_report(run_dir)


def _readable(training: Data | None) -> list[Data]:
    """Return training data whose later batches do not depend on how often it was read."""
    is_iterable = isinstance(training, Batches) and training.objection_to_resume() is not None
    return [] if training is None or is_iterable else [training]


def _examples(target: Target, sources: Sequence[Data]) -> Any:
    """Return a batch of the run's own data; None if there is none that can be read again."""
    count = CALIBRATION if target.quantize == "int8" else EXAMPLES
    for data in sources:
        if data.can_be_read_again:
            return first_examples(data.one_pass(steps=count).dataset(), count)
    return None
