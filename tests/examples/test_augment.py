"""The example `augment`: changed images help, and every way of changing them resumes exactly."""

from typing import Any

import keras
import numpy as np
import pytest
from tests.examples.conftest import Quick

import augment
import loopwright as lw
from loopwright import testing


def test_every_way_of_changing_images_helps(quick: Quick):
    assert set(quick.scores) >= {"plain", "layers", "function"}
    helped = [score for way, score in quick.scores.items() if way != "plain"]
    assert min(helped) > quick.scores["plain"] > 0.5
    assert quick.history["val_layers"][-1] > quick.history["val_layers"][0]
    assert quick.figures == {"accuracy.png"}


@pytest.mark.parametrize("way", ["layers", "function", "albumentations"])
def test_images_changed_at_random_resume_exactly(way: str, monkeypatch: pytest.MonkeyPatch):
    if way == "albumentations":
        pytest.importorskip("albumentations", reason="pip install 'loopwright[augment]'")
    functions = {key: f for key, f in augment.FUNCTIONS.items() if key == way}
    monkeypatch.setattr(augment, "FUNCTIONS", functions)
    images, labels = augment.load()["train"]
    testing.assert_resumes_exactly(
        lambda run_dir: lw.Trainer(small_task(way), run_dir=run_dir, plan="eager"),
        augment.make_data(images[:10], labels[:10]),
        batch_size=50,
        epochs=2,
        break_at=[3],
    )


def small_task(way: str) -> lw.Task:
    keras.utils.set_random_seed(0)
    layers: list[Any] = [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10)]
    return augment.Comparison({way: keras.Sequential(layers)}, augment.make_layers(0))


def test_an_image_is_changed_in_another_way_each_time_it_is_shown():
    images, _ = augment.load()["train"]
    seen = [augment.changed(images[0], seed) for seed in range(20)]
    assert len({image.tobytes() for image in seen}) == 20
    assert all(image.shape == (8, 8, 1) and image.dtype == "float32" for image in seen)
    assert all(image.min() >= 0 and image.max() <= 1 for image in seen)


def test_a_turned_image_keeps_its_border(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(augment, "DEGREES", 0.1)
    white = np.ones((8, 8, 1), "float32")
    seen = [augment.changed(white, seed) for seed in range(8)]
    # A shift of one pixel in both directions leaves 49 of the 64 pixels.
    assert min(image.sum() for image in seen) > 48


def test_models_begin_with_the_same_weights():
    task = augment.make_task(seed=3)
    plain, *others = (model.get_weights() for model in task.models.values())
    for weights in others:
        for one, other in zip(plain, weights, strict=True):
            np.testing.assert_array_equal(one, other)


def test_no_image_is_in_two_sets():
    for seed in range(3):
        data = augment.load(seed)
        assert np.bincount(data["train"][1]).tolist() == [augment.IMAGES_PER_DIGIT] * 10
        assert [len(data[name][0]) for name in ("train", "validation", "test")] == [100, 798, 899]
        sets = [{image.tobytes() for image in data[name][0]} for name in data]
        assert len(set.union(*sets)) == 1797
