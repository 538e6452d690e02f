"""Commands that use a trained run: evaluate, predict, export."""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loopwright.cli.arguments import (
    CheckpointOption,
    RunDirectory,
    TrustedCode,
    parse_checkpoint,
    run_config,
)
from loopwright.config.export_formats import require_installed, target_for
from loopwright.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    import numpy as np

    from loopwright.cli.job import Job

_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif")


def evaluate(
    run: RunDirectory, checkpoint: CheckpointOption = "best", task: TrustedCode = None
) -> None:
    """Score a checkpoint on the test data of its run.

    Without test data, the validation data is used.
    """
    with _open(run, task) as opened:
        test, name = opened.experiment.test, "test"
        if test is None:
            held_out, name = opened.experiment.fit.get("validation_data"), "validation"
            test = held_out if isinstance(held_out, tuple | list) else (held_out,)
        if test[0] is None:
            raise ConfigurationError(
                "The run has no data to evaluate on.",
                expected="an experiment with test or validation_data",
                received="neither",
                do="pass test=(x, y) to lw.Experiment",
            )
        step = opened.trainer.restore(parse_checkpoint(checkpoint))
        scores = opened.trainer.evaluate(*test)
    words = ", ".join(f"{metric} {_number(value)}" for metric, value in scores.items())
    typer.echo(f"{name} data, step {step}: {words}")


def predict(
    run: RunDirectory,
    given: Annotated[
        list[Path],
        typer.Option(
            "--input", metavar="FILE", help="A .npy file, a .csv file or an image; repeatable."
        ),
    ],
    output: Annotated[Path, typer.Option(metavar="FILE", help="A .npy or .csv file to write.")],
    checkpoint: CheckpointOption = "best",
    task: TrustedCode = None,
) -> None:
    """Write predictions for arrays, tables or images to a file."""
    if output.suffix not in (".npy", ".csv"):
        raise _cannot("write", output, ".npy or .csv")
    with _open(run, task) as opened:
        step = opened.trainer.restore(parse_checkpoint(checkpoint))
        model = getattr(opened.trainer.task, "model", None)
        inputs = _read(given, getattr(model, "input_shape", None))
        predictions = opened.trainer.predict(inputs)
    _write(output, predictions)
    typer.echo(f"wrote {len(inputs)} predictions of step {step} to {output}")


def export(
    run: RunDirectory,
    kind: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="saved_model, keras, litert or onnx.")
    ] = "saved_model",
    quantize: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="Of LiteRT files: dynamic, float16 or int8."),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="The only batch size of a LiteRT or ONNX file.", show_default="any"
        ),
    ] = None,
    signature: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A model of the task; repeatable.", show_default="all"),
    ] = None,
    checkpoint: CheckpointOption = "best",
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="Directory or file to export to.", show_default="RUN/export"
        ),
    ] = None,
    averaged: Annotated[
        bool,
        typer.Option("--averaged", help="Export the averaged weights of optimizers with use_ema."),
    ] = False,
    task: TrustedCode = None,
) -> None:
    """Export a checkpoint for serving, verified in a new process.

    The export is loaded in a new process by the runtime that it is for, and its outputs are
    compared with the model's on examples of the run's data.
    """
    target = target_for("", kind, quantize, batch_size, signature)
    require_installed(target.format)
    with _open(run, task) as opened:
        from loopwright.cli import job

        opened.trainer.restore(parse_checkpoint(checkpoint))
        done = opened.trainer.export(
            output, **vars(target), averaged=averaged, **job.data_for_export(opened)
        )
    from loopwright.export.exporter import worded

    typer.echo(worded(done))


@contextlib.contextmanager
def _open(run: Path, task: list[str] | None) -> "Iterator[Job]":
    config = run_config(run, task)
    from loopwright.cli import job

    with job.open_job(config) as opened:
        yield opened


def _read(paths: list[Path], input_shape: Any) -> "np.ndarray[Any, Any]":
    import numpy as np
    import tensorflow as tf

    readers: dict[str, Callable[[Path], Any]] = {
        ".npy": lambda path: np.load(path, allow_pickle=False),
        ".csv": _table,
        **dict.fromkeys(_IMAGES, lambda path: _image(path, input_shape)[None]),
    }
    parts = list[Any]()
    for path in paths:
        reader = readers.get(path.suffix.lower())
        if reader is None:
            raise _cannot("read", path, ".npy, .csv, or an image")
        try:
            parts.append(reader(path))
        except (OSError, EOFError) as error:
            raise _cannot("read", path, f"a readable file ({error})") from None
        except (ValueError, tf.errors.InvalidArgumentError) as error:
            why = " ".join(str(error).split())[:200]
            raise _cannot("read", path, f"numbers or an image ({why})") from None
    try:
        return np.concatenate(parts)
    except ValueError as error:
        raise DataError(
            "The inputs have different shapes.",
            expected="examples of one shape",
            received=f"{error}",
            do="pass files with examples of the same shape",
        ) from None


def _table(path: Path) -> Any:
    import numpy as np

    with path.open(encoding="utf-8") as file:
        first = file.readline().split(",")
    try:
        _ = [float(cell) for cell in first]
    except ValueError:
        return np.loadtxt(path, "float32", delimiter=",", skiprows=1, ndmin=2)
    return np.loadtxt(path, "float32", delimiter=",", ndmin=2)


def _image(path: Path, input_shape: Any) -> Any:
    """Read an image as numbers from 0 to 1, in the size and channels of the model's input."""
    import tensorflow as tf

    is_known = isinstance(input_shape, tuple) and len(input_shape) == 4
    height, width, channels = input_shape[1:] if is_known else (None, None, 3)
    image = tf.io.decode_image(path.read_bytes(), channels=channels or 3, expand_animations=False)
    image = tf.cast(image, tf.float32) / 255.0
    if height and width:
        image = tf.image.resize(image, (height, width), antialias=True)
    return image.numpy()


def _write(path: Path, predictions: Any) -> None:
    import numpy as np

    if not isinstance(predictions, np.ndarray):
        raise _cannot("write", path, f"one array, not a {type(predictions).__name__} of them")
    try:
        if path.suffix == ".npy":
            np.save(path, predictions, allow_pickle=False)
        else:
            np.savetxt(path, predictions.reshape(len(predictions), -1), "%.9g", delimiter=",")
    except OSError as error:
        raise _cannot("write", path, f"a writable path ({error.strerror})") from None


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value, default=str)


def _cannot(verb: str, path: Path, expected: str) -> ConfigurationError:
    return ConfigurationError(
        f"Cannot {verb} {path}.",
        expected=expected,
        received=path.name,
        do="check the path and the file extension",
    )
