"""TensorBoard files with Keras' tags, so that curves overlay with those of Keras `fit`.

`train/` and `validation/` hold `epoch_loss` and `epoch_learning_rate` over epochs, `batch_loss` and
`evaluation_loss_vs_iterations` over steps. Watched gradients are histograms over steps:
`gradient/model.layers[0].kernel`. The hyperparameters are in the directory above both, where
TensorBoard finds the scores of both.
"""

import itertools
import math
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

import numpy as np
import tensorflow as tf
from tensorboard.compat.proto.event_pb2 import (
    Event as Record,  # pyright: ignore[reportAttributeAccessIssue]
)
from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.plugins.histogram.summary_v2 import histogram_pb
from tensorboard.plugins.hparams import api as hparams
from tensorboard.plugins.image import metadata
from tensorboard.plugins.scalar.summary_v2 import scalar_pb
from tensorboard.util import tensor_util

from loopwright import disk
from loopwright.dispatch import RunFile, attempted, cut, lengths_of, tolerated
from loopwright.events import (
    EpochEnded,
    Event,
    Finished,
    GradientsWatched,
    ImagesDrawn,
    Metrics,
    RunFacts,
    Started,
    Trained,
    Validated,
)

HOME = "tensorboard"
PREFIX = "events.out.tfevents."
_VERSION = "brain.Event:2"
_SECONDS_BETWEEN_FLUSHES = 1.0
_counted = itertools.count()
_SECONDS_BETWEEN_TRAINED = 1.0
_MOST_IMAGES = 16


def event_files(run_dir: Path) -> list[str]:
    """Return the paths of a run's event files inside its directory."""
    found = disk.files_below(run_dir, HOME)
    return [name for name in found if name.rpartition("/")[2].startswith(PREFIX)]


@final
class EventFile:
    """A new event file in a directory; what is added is in the file about a second later.

    Records are written without an operation of `tf.summary` for each, which costs a third of a
    millisecond: a lot beside an epoch of ten.
    """

    def __init__(self, directory: Path, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._flushed_at = clock()
        # As TensorFlow names them: TensorBoard reads the files of a directory in this order.
        parts = f"{int(self._flushed_at):010d}", socket.gethostname(), os.getpid(), next(_counted)
        name = PREFIX + ".".join(map(str, parts)) + ".v2"
        self._records = tf.io.TFRecordWriter(str(directory / name))
        self._write(Record(file_version=_VERSION))
        self.flush()

    def add(self, summary: Any, step: int) -> None:
        """Append a summary of a step."""
        self._write(Record(step=step, summary=summary))

    def add_graph(self, graph: Any) -> None:
        """Append the definition of a graph."""
        self._write(Record(graph_def=graph.SerializeToString()))

    def flush(self) -> None:
        """Give every record to the operating system."""
        self._records.flush()
        self._flushed_at = self._clock()

    def close(self) -> None:
        """Close the file."""
        self._records.close()

    def _write(self, event: Any) -> None:
        event.wall_time = now = self._clock()
        self._records.write(event.SerializeToString())
        if now - self._flushed_at >= _SECONDS_BETWEEN_FLUSHES:
            self.flush()


def scalars(numbers: Mapping[str, Any]) -> Any:
    """Return the summary of some numbers, by their tags."""
    values = [scalar_pb(tag, float(number)).value[0] for tag, number in numbers.items()]
    return Summary(value=values)


def images(tag: str, pixels: Any) -> Any:
    """Return the summary of images of one size: numbers from 0 to 1, or bytes."""
    shown = tf.image.convert_image_dtype(pixels, tf.uint8, saturate=True)
    _, height, width, _ = shown.shape
    encoded = [tf.image.encode_png(image).numpy() for image in shown]
    texts = [str(width).encode(), str(height).encode(), *encoded]
    summary = Summary()
    about = metadata.create_summary_metadata(display_name=None, description=None)
    summary.value.add(tag=tag, tensor=tensor_util.make_tensor_proto(texts), metadata=about)
    return summary


@final
class TensorBoardFiles(RunFile):
    """A sink that writes event files; of `Trained`, it writes one per second."""

    def __init__(self, directory: Path, clock: Callable[[], float]) -> None:
        self._run_dir, self._home, self._clock = directory.parent, directory.name, clock
        self._facts: RunFacts | None = None
        self._files: dict[str, EventFile] = {}
        self._last_trained = -math.inf
        self._draw = tolerated(self.draw)  # numbers are still written if images fail

    def open(self, lengths: Mapping[str, int], *, is_new_leg: bool) -> None:
        """Truncate the files of earlier starts; this one writes new files."""
        cut(self._run_dir, event_files(self._run_dir), lengths)

    def _begin(self) -> None:
        """Write hyperparameters and the graph of the step, if the run has no event file yet."""
        facts = self._facts
        if facts is None or event_files(self._run_dir):
            return
        with attempted("The hyperparameters and the graph for TensorBoard"):
            name = self._run_dir.name
            self._file(".").add(hparams.hparams_pb(dict(facts.hyperparameters), trial_id=name), 0)
            if facts.graph is not None:
                with tf.Graph().as_default() as shown:
                    tf.import_graph_def(facts.graph, name="")
                self._file("train").add_graph(shown.as_graph_def(add_shapes=True))

    def draw(self, event: Event) -> None:
        """Write images: numbers from 0 to 1, or bytes; one, or several of one size."""
        if isinstance(event, ImagesDrawn):
            for name, drawn in event.images.items():
                shown = np.asarray(drawn)
                shown = shown[None] if shown.ndim == 3 else shown
                self._file("train").add(images(name, shown[:_MOST_IMAGES]), event.step)

    def __call__(self, event: Event) -> None:
        """Write the numbers of an event."""
        match event:
            case Started():
                self._facts = event.facts
                self._begin()
            case Trained():
                now = self._clock()
                if now - self._last_trained >= _SECONDS_BETWEEN_TRAINED:
                    self._last_trained = now
                    rate = {"steps_per_second": event.steps / max(event.seconds, 1e-9)}
                    self._write("train", "batch_{0}", {**event.metrics, **rate}, event.step)
            case GradientsWatched():
                self._write_histograms(event.gradients, event.step)
            case Validated():
                tag = "evaluation_{0}_vs_iterations"
                self._write("validation", tag, event.metrics, event.step)
            case EpochEnded():
                rate = {"steps_per_second": event.steps / max(event.seconds, 1e-9)}
                numbers = {**event.metrics, **event.learning_rates, **rate}
                self._write("train", "epoch_{0}", numbers, event.epoch)
                self._write("validation", "epoch_{0}", event.validation, event.epoch)
            case ImagesDrawn():
                self._draw(event)
            case Finished():
                self._flush()
            case _:
                pass

    def lengths(self) -> Mapping[str, int]:
        """Return the lengths of the files, which have every number by then."""
        self._flush()
        return lengths_of(self._run_dir, event_files(self._run_dir))

    def cut(self, lengths: Mapping[str, int]) -> None:
        """Truncate the files after a rollback; later events are written to new files."""
        self.close()
        cut(self._run_dir, event_files(self._run_dir), lengths)
        self._begin()

    def close(self) -> None:
        """Close the files; later events are written to new files."""
        for file in self._files.values():
            file.close()
        self._give_modes()
        self._files.clear()

    def _flush(self) -> None:
        for file in self._files.values():
            file.flush()
        self._give_modes()

    def _write(self, part: str, tag: str, numbers: Metrics, step: int) -> None:
        plain = {tag.format(name): value for name, value in numbers.items() if np.ndim(value) == 0}
        if plain:
            self._file(part).add(scalars(plain), step)

    def _write_histograms(self, gradients: Mapping[str, Any], step: int) -> None:
        for name, values in gradients.items():
            # NaN and infinity have no bucket.
            finite = values[np.isfinite(values)]
            self._file("train").add(histogram_pb(f"gradient/{name}", finite), step)

    def _file(self, part: str) -> EventFile:
        if part not in self._files:
            name = f"{self._home}/{part}"
            disk.make_directory(self._run_dir, name)  # TensorFlow would follow a symlink
            self._files[part] = EventFile(self._run_dir / name, self._clock)
        return self._files[part]

    def _give_modes(self) -> None:
        """Set the modes of the files, which TensorFlow creates by the umask of the process."""
        if self._files:
            disk.give_modes(self._run_dir, self._home)
