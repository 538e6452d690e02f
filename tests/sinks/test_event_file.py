"""An event file is read by TensorBoard as if TensorFlow's own writer had written it."""

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.util import tensor_util

from loopwright.sinks.tensorboard import PREFIX, EventFile, images, scalars


def events(directory: Path) -> list[Any]:
    (path,) = directory.iterdir()
    assert path.name.startswith(PREFIX)
    return list(LegacyEventFileLoader(str(path)).Load())


def test_its_numbers_are_those_of_tf_summary(tmp_path: Path):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    pixels = np.linspace(0, 1, 2 * 4 * 3 * 3).reshape(2, 4, 3, 3)
    numbers = {"loss": 0.25, "count": 3, "bad": float("nan")}

    file = EventFile(ours, lambda: 1_700_000_000.5)
    file.add(scalars(numbers), step=7)
    file.add(images("drawn", pixels), step=8)
    file.close()
    with tf.summary.create_file_writer(str(theirs)).as_default():
        for name, number in numbers.items():
            tf.summary.scalar(name, number, step=7)
        tf.summary.image("drawn", pixels, step=8)

    assert written(events(ours)) == written(events(theirs))
    first, second, _ = events(ours)
    assert first.file_version == "brain.Event:2"
    assert second.wall_time == 1_700_000_000.5


def written(events: list[Any]) -> list[tuple[Any, ...]]:
    return [
        (event.step, value.tag, str(tensor_util.make_ndarray(value.tensor)), str(value.metadata))
        for event in events
        for value in event.summary.value
    ]


def test_what_was_added_is_in_the_file_about_a_second_later(tmp_path: Path):
    now = 100.0
    file = EventFile(tmp_path, lambda: now)
    file.add(scalars({"loss": 1.0}), step=1)
    now = 101.5
    file.add(scalars({"loss": 2.0}), step=2)

    assert [event.step for event in events(tmp_path)] == [0, 1, 2]
    file.close()
