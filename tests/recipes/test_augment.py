"""The recipe `augment`: changed images help, and both ways of changing them resume exactly."""

from pathlib import Path

import keras
import numpy as np
import pytest

import loopwright as lw
from loopwright import testing
from loopwright.recipes import augment


def test_both_ways_of_changing_images_help_and_a_second_call_says_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(augment, "find_spec", lambda name: None)  # three ways on every machine
    run_dir = str(tmp_path / "run")
    scores = augment.main(run_dir, plan="graph", quick=True)
    assert scores["by layers"] > scores["as they are"]
    assert scores["by a function"] > scores["as they are"]
    assert augment.main(run_dir, plan="graph", quick=True) == scores
    assert (tmp_path / "run" / "figures" / "accuracy.png").is_file()


@pytest.mark.parametrize("way", ["by layers", "by a function", "by albumentations"])
def test_images_changed_at_random_resume_exactly(way: str, monkeypatch: pytest.MonkeyPatch):
    if way == "by albumentations":
        # It would ask the network for a newer version.
        monkeypatch.setenv("NO_ALBUMENTATIONS_UPDATE", "1")
        pytest.importorskip("albumentations", reason="pip install 'loopwright[augment]'")
    images, labels = augment.load()["train"]
    testing.assert_resumes_exactly(
        lambda run_dir: lw.Trainer(small_task(way), run_dir=run_dir, plan="graph"),
        augment.make_data(way, images[:10], labels[:10]),
        batch_size=50,
        epochs=3,
        break_at=[3],
    )


def small_task(way: str) -> lw.Task:
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10)]
    )
    return augment.Classifier(model, augment.make_layers(0) if way == "by layers" else None)


def test_an_image_is_changed_in_another_way_each_time_it_is_shown():
    images, labels = augment.load()["train"]
    seen = [augment.changed((images[0], labels[0]), seed)[0] for seed in range(20)]
    assert len({image.tobytes() for image in seen}) == 20
    assert all(image.shape == (8, 8, 1) and image.dtype == "float32" for image in seen)
    assert all(image.min() >= 0 and image.max() <= 1 for image in seen)


def test_a_turned_image_keeps_its_border(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(augment, "DEGREES", 0.1)
    white = np.ones((8, 8, 1), "float32")
    seen = [augment.changed((white, 0), seed)[0] for seed in range(8)]
    # A shift of one pixel in both directions leaves 49 of the 64 pixels.
    assert min(image.sum() for image in seen) > 48


def test_no_image_is_in_two_sets():
    for seed in range(3):
        data = augment.load(seed)
        assert np.bincount(data["train"][1]).tolist() == [augment.IMAGES_PER_DIGIT] * 10
        assert [len(data[name][0]) for name in ("train", "validation", "test")] == [100, 798, 899]
        sets = [{image.tobytes() for image in data[name][0]} for name in data]
        assert len(set.union(*sets)) == 1797
