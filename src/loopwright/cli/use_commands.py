"""Commands that use what was trained: evaluate, predict, export."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loopwright.cli.arguments import (
    NamedCode,
    RunDirectory,
    WhichCheckpoint,
    config_of,
    launching,
    which,
)
from loopwright.errors import ConfigurationError, DataError, message

if TYPE_CHECKING:
    import numpy as np

_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif")


def evaluate(
    run: RunDirectory, checkpoint: WhichCheckpoint = "best", task: NamedCode = None
) -> None:
    """Scores a checkpoint of a run on its test data, or else on its validation data."""
    config = config_of(run, task)
    with launching().launched(config) as launch:
        test, named = launch.experiment.test, "test"
        if test is None:
            held_out, named = launch.experiment.fit.get("validation_data"), "validation"
            test = held_out if isinstance(held_out, tuple | list) else (held_out,)
        if test[0] is None:
            raise ConfigurationError(
                message(
                    "There is no data to score this run on.",
                    expected="an experiment with test or validation_data",
                    received="neither",
                    do="give lw.Experiment(..., test=(x, y))",
                )
            )
        step = launch.trainer.restore(which(checkpoint))
        scores = launch.trainer.evaluate(*test)
    words = ", ".join(f"{name} {_number(value)}" for name, value in scores.items())
    typer.echo(f"{named} data, step {step}: {words}")


def predict(
    run: RunDirectory,
    given: Annotated[
        list[Path], typer.Option("--input", help="A .npy or .csv file, or images; may come again.")
    ],
    output: Annotated[Path, typer.Option(help="Where predictions go: .npy or .csv.")],
    checkpoint: WhichCheckpoint = "best",
    task: NamedCode = None,
) -> None:
    """Predicts for arrays, tables or images with a checkpoint of a run."""
    if output.suffix not in (".npy", ".csv"):
        raise _cannot("write", output, ".npy or .csv")
    config = config_of(run, task)
    with launching().launched(config) as launch:
        step = launch.trainer.restore(which(checkpoint))
        model = getattr(launch.trainer.task, "model", None)
        inputs = _read(given, getattr(model, "input_shape", None))
        predictions = launch.trainer.predict(inputs)
    _write(output, predictions)
    typer.echo(f"{len(inputs)} predictions of step {step} are in {output}")


def export(
    run: RunDirectory,
    kind: Annotated[str, typer.Option("--format", help="saved_model or keras.")] = "saved_model",
    checkpoint: WhichCheckpoint = "best",
    output: Annotated[
        Path | None, typer.Option(help="Where to; export/ in the run directory if left out.")
    ] = None,
    averaged: Annotated[
        bool, typer.Option("--averaged", help="The averages of optimizers with use_ema.")
    ] = False,
    task: NamedCode = None,
) -> None:
    """Exports a checkpoint for serving, loads it in a new process, and compares."""
    if kind not in ("saved_model", "keras"):
        raise ConfigurationError(
            message(
                "There is no such format.",
                expected="saved_model or keras",
                received=kind,
                do="choose one of these, or leave --format out",
            )
        )
    config = config_of(run, task)
    with launching().launched(config) as launch:
        launch.trainer.restore(which(checkpoint))
        done = launch.trainer.export(output, format=kind, averaged=averaged)
    from loopwright.export.exporter import worded

    typer.echo(worded(done))


def _read(paths: list[Path], input_shape: Any) -> "np.ndarray[Any, Any]":
    import numpy as np

    parts = list[Any]()
    for path in paths:
        suffix = path.suffix.lower()
        try:
            if suffix == ".npy":
                parts.append(np.load(path, allow_pickle=False))
            elif suffix == ".csv":
                parts.append(_table(path))
            elif suffix in _IMAGES:
                parts.append(_image(path, input_shape)[None])
            else:
                raise _cannot("read", path, ".npy, .csv, or an image")
        except (OSError, EOFError) as error:
            raise _cannot("read", path, f"a file that can be read ({error})") from None
        except ValueError as error:
            if isinstance(error, ConfigurationError):
                raise
            raise _cannot("read", path, f"numbers ({' '.join(str(error).split())})") from None
    try:
        return np.concatenate(parts)
    except ValueError as error:
        raise DataError(
            message(
                "The inputs do not fit together.",
                expected="examples of one shape",
                received=f"{error}",
                do="give files of one kind",
            )
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
    """An image as the model takes it: numbers from 0 to 1, its size and channels."""
    import tensorflow as tf

    is_known = isinstance(input_shape, tuple) and len(input_shape) == 4
    height, width, channels = input_shape[1:] if is_known else (None, None, 3)
    try:
        image = tf.io.decode_image(
            path.read_bytes(), channels=channels or 3, expand_animations=False
        )
    except tf.errors.InvalidArgumentError:
        raise _cannot("read", path, "an image") from None
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
        raise _cannot("write", path, f"a place that can be written to ({error.strerror})") from None


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value, default=str)


def _cannot(verb: str, path: Path, expected: str) -> ConfigurationError:
    return ConfigurationError(
        message(
            f"{path} cannot be {'read' if verb == 'read' else 'written'}.",
            expected=expected,
            received=path.name,
            do="check the name and its ending",
        )
    )
