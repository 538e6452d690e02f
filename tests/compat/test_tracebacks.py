"""Tracebacks: what a person sees on the terminal when a call raises."""

import traceback
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import loopwright as lw
from loopwright.compat import lines

X = np.arange(24, dtype="float32").reshape(6, 4) / 24
LABELS = np.array([0, 1, 2, 0, 1, 9])


def classifier() -> lw.Supervised:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return lw.Supervised(model, loss, "sgd")


@pytest.mark.parametrize(
    ("place", "is_users"),
    [
        ("ada/.local/lib/python3.11/site-packages", False),
        ("usr/lib/python3/dist-packages", False),
        ("ada/project", True),
    ],
)
def test_code_of_a_package_is_not_the_users_wherever_it_is_installed(
    place: str, is_users: bool, tmp_path: Path
):
    file = tmp_path / place / "library.py"
    file.parent.mkdir(parents=True)
    file.write_text("def scale(x):\n    return 2 * x\n")
    assert lines.is_own(str(file), 2) == is_users


def files_in(error: BaseException | None) -> list[str]:
    assert error is not None
    return [Path(frame.filename).name for frame in traceback.extract_tb(error.__traceback__)]


def fail(**options: Any) -> lw.StepError:
    trainer = lw.Trainer(classifier(), plan="graph")
    with pytest.raises(lw.StepError) as caught:
        trainer.fit(X, LABELS, batch_size=2, verbose=0, **options)
    return caught.value


@pytest.fixture(scope="module")
def failed() -> lw.StepError:
    return fail()


def test_only_the_persons_own_frames_are_in_the_traceback(failed: lw.StepError):
    assert files_in(failed) == ["test_tracebacks.py"]


def test_the_error_of_tensorflow_is_the_cause_in_one_line_of_its_own(failed: lw.StepError):
    assert isinstance(failed.__cause__, tf.errors.InvalidArgumentError)
    assert str(failed.__cause__).startswith("Received a label value of 9")
    assert "\n" not in str(failed.__cause__)
    assert files_in(failed.__cause__) == []


def test_events_evaluate_and_predict_show_no_inner_frames_either():
    model = keras.Sequential([keras.Input((2,), dtype="int64"), keras.layers.Embedding(3, 1)])
    trainer = lw.Trainer(lw.Supervised(model, "mse", "sgd"), plan="graph")
    x, y = np.full((4, 2), 5), np.zeros((4, 2, 1), "float32")
    titles = []
    for call in (
        lambda: list(trainer.events(x, y)),
        lambda: trainer.evaluate(x, y),
        lambda: trainer.predict(x),
    ):
        with pytest.raises(lw.StepError) as caught:
            call()
        titles.append(str(caught.value).splitlines()[0])
        assert set(files_in(caught.value)) == {"test_tracebacks.py"}
    steps = ["train_step", "test_step", "predict_step"]
    assert titles == [
        f"Supervised.{step} looks up an index that is out of range." for step in steps
    ]


def test_the_lines_of_a_callback_that_raises_stay():
    class Raising(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full") as caught:
        lw.Trainer(classifier(), plan="eager").fit(X, LABELS % 3, verbose=0, callbacks=[Raising()])
    assert set(files_in(caught.value)) == {"test_tracebacks.py"}
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert last.name == "on_epoch_end"


@pytest.mark.parametrize("way", ["variable", "keras"])
def test_every_frame_is_shown_on_request(way: str, monkeypatch: pytest.MonkeyPatch):
    if way == "variable":
        monkeypatch.setenv("LOOPWRIGHT_FULL_TRACEBACK", "1")
        error = fail()
    else:
        keras.config.disable_traceback_filtering()
        try:
            error = fail()
        finally:
            keras.config.enable_traceback_filtering()
    assert "compiled_loop.py" in files_in(error)
    assert "Graph execution error" in str(error.__cause__)
