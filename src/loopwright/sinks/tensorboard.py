"""TensorBoard: the numbers of a run under Keras' tags, so that curves overlay with those of `fit`.

`train/` and `validation/` hold `epoch_loss` over epochs, `batch_loss` over steps, and
`evaluation_loss_vs_iterations` over steps; `epoch_learning_rate` as well. Watched gradients are
histograms over steps: `gradient/model.layers[0].kernel`. The hyper-parameters lie above both, so
that TensorBoard finds the scores of either beside them.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

import numpy as np
import tensorflow as tf
from tensorboard.plugins.hparams import api as hparams
from tensorboard.plugins.scalar.summary_v2 import scalar_pb

from loopwright import disk
from loopwright.events import EpochEnded, Event, Finished, Metrics, Trained, Validated

HOME = "tensorboard"
_PREFIX = "events.out.tfevents."
_SECONDS_BETWEEN_TRAINED = 1.0
_MOST_IMAGES = 16
_SECONDS_BETWEEN_HISTOGRAMS = 10.0


def event_files(run_dir: Path) -> list[str]:
    """The event files of a run, by their paths in its directory."""
    found = disk.files_below(run_dir, HOME)
    return [name for name in found if name.rpartition("/")[2].startswith(_PREFIX)]


@final
class TensorBoardFiles:
    """A sink that writes event files; of many `Trained` in a second it writes one."""

    def __init__(
        self,
        directory: Path,
        clock: Callable[[], float],
        learning_rates: Callable[[], Mapping[str, Any]],
        gradients: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._run_dir, self._home, self._clock = directory.parent, directory.name, clock
        self._learning_rates, self._gradients = learning_rates, gradients
        self._writers: dict[str, Any] = {}
        self._last_trained = self._last_histograms = -math.inf

    def begin(self, hyperparameters: Mapping[str, Any], graph: Any) -> None:
        """Writes what does not change: hyper-parameters, and the graph of the step."""
        with self._writer(".").as_default(0):
            hparams.hparams(dict(hyperparameters), trial_id=self._run_dir.name)
        with self._writer("train").as_default(0), tf.Graph().as_default() as shown:
            tf.import_graph_def(graph, name="")
        with self._writer("train").as_default(0):
            tf.summary.graph(shown)

    def picture(self, name: str, images: Any, step: int) -> None:
        """Shows images: numbers from 0 to 1, or bytes; one, or several of one size."""
        shown = np.asarray(images)
        shown = shown[None] if shown.ndim == 3 else shown
        with self._writer("train").as_default(step):
            tf.summary.image(name, shown, max_outputs=_MOST_IMAGES)

    def __call__(self, event: Event) -> None:
        """Hears an event."""
        match event:
            case Trained():
                now = self._clock()
                if now - self._last_trained >= _SECONDS_BETWEEN_TRAINED:
                    self._last_trained = now
                    rate = {"steps_per_second": event.steps / max(event.seconds, 1e-9)}
                    self._write("train", "batch_{0}", {**event.metrics, **rate}, event.step)
                if now - self._last_histograms >= _SECONDS_BETWEEN_HISTOGRAMS:
                    self._last_histograms = now
                    self._write_histograms(self._gradients(), event.step)
            case Validated():
                tag = "evaluation_{0}_vs_iterations"
                self._write("validation", tag, event.metrics, event.step)
            case EpochEnded():
                rate = {"steps_per_second": event.steps / max(event.seconds, 1e-9)}
                numbers = {**event.metrics, **self._learning_rates(), **rate}
                self._write("train", "epoch_{0}", numbers, event.epoch)
                self._write("validation", "epoch_{0}", event.validation, event.epoch)
            case Finished():
                self.flush()
            case _:
                pass

    def flush(self) -> None:
        """Until every number is in its file."""
        for writer in self._writers.values():
            writer.flush()
        self._give_modes()

    def close(self) -> None:
        """Ends the files; what comes later goes into new ones."""
        for writer in self._writers.values():
            writer.close()
        self._give_modes()
        self._writers.clear()

    def _write(self, part: str, tag: str, numbers: Metrics, step: int) -> None:
        scalars = {name: value for name, value in numbers.items() if np.ndim(value) == 0}
        if not scalars:
            return
        values = [scalar_pb(tag.format(name), value) for name, value in scalars.items()]
        together = values[0]
        for more in values[1:]:
            together.MergeFrom(more)
        # One operation for all of them: of short epochs there are hundreds in a second.
        with self._writer(part).as_default(step):
            tf.summary.experimental.write_raw_pb(together.SerializeToString())

    def _write_histograms(self, gradients: Mapping[str, Any], step: int) -> None:
        if not gradients:
            return
        with self._writer("train").as_default(step):
            for name, values in gradients.items():
                # Buckets between NaN and infinity would be none.
                tf.summary.histogram(f"gradient/{name}", values[np.isfinite(values)])

    def _writer(self, part: str) -> Any:
        if part not in self._writers:
            name = f"{self._home}/{part}"
            disk.make_directory(self._run_dir, name)  # TensorFlow would follow a symlink
            self._writers[part] = tf.summary.create_file_writer(str(self._run_dir / name))
        return self._writers[part]

    def _give_modes(self) -> None:
        """TensorFlow makes its files as the process's umask says."""
        if self._writers:
            disk.give_modes(self._run_dir, self._home)


_SECONDS_BETWEEN_PICTURES = 30.0


@final
class Pictures:
    """A sink that shows the images of a task in TensorBoard."""

    def __init__(
        self,
        images: Callable[[], Mapping[str, Any]],
        board: TensorBoardFiles,
        clock: Callable[[], float],
    ) -> None:
        self._images, self._board, self._clock = images, board, clock
        self._drawn_at, self._drawn_step = -math.inf, -1

    def __call__(self, event: Event) -> None:
        """Hears an event; the end of a run is always shown."""
        is_due = isinstance(event, EpochEnded) and (
            self._clock() - self._drawn_at >= _SECONDS_BETWEEN_PICTURES
        )
        is_end = isinstance(event, Finished) and event.reason in ("complete", "stopped")
        if not (is_due or is_end) or event.step == self._drawn_step:
            return
        self._drawn_at, self._drawn_step = self._clock(), event.step
        for name, images in self._images().items():
            self._board.picture(name, images, event.step)
