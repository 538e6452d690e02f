"""The example `unet`: water is found on unseen longitudes, and a run is repeated to the bit."""

import keras
from tests.examples.conftest import Quick

import loopwright as lw
import unet
from loopwright import testing


def test_water_is_found_on_unseen_longitudes(quick: Quick):
    all_is_water = unet.load()["test"][1][:, 4:8].mean() / 2
    assert quick.scores["mean_iou"] > all_is_water + 0.2
    assert quick.history["loss"][-1] < 0.8 * quick.history["loss"][0]
    assert quick.figures == {"overlay.png"}


def test_a_shuffled_and_mirrored_pipeline_resumes_exactly():
    few = (part[9:13, 3:5] for part in unet.load()["train"])
    image, water = (part[..., :16, :16, :] for part in few)
    data = unet.pipeline((image, water), training=True).unbatch().batch(2)

    testing.assert_resumes_exactly(
        lambda run_dir: lw.Trainer(small_task(), run_dir=run_dir, plan="graph"),
        data,
        epochs=2,
        break_at=[5],
    )


def small_task() -> lw.Task:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((16, 16, 3)), keras.layers.Conv2D(1, 1)])
    return lw.Supervised(model, "mse", "sgd")


def test_tiles_come_in_another_order_each_time_mirrored_together_with_their_water():
    tiles = tuple(part[9:11, 3:5] for part in unet.load()["train"])
    batches = [next(iter(unet.pipeline(tiles, training=True).repeat().skip(n))) for n in range(4)]
    plain = {tile.tobytes() for tile in tiles[1].reshape(-1, 64, 64)}
    mirrored = {
        t[::i, ::j].tobytes()
        for t in tiles[1].reshape(-1, 64, 64)
        for i in (1, -1)
        for j in (1, -1)
    }
    found = [water.numpy().astype("uint8").reshape(-1, 64, 64) for _, water in batches]
    assert {tile.tobytes() for group in found for tile in group} <= mirrored
    assert not {tile.tobytes() for group in found for tile in group} <= plain
    # A tile has as much water however it is mirrored: another order shows in the sums.
    orders = {tuple(tile.sum() for tile in group) for group in found}
    assert len(orders) > 1


def test_no_longitude_is_in_two_sets():
    data = unet.load()
    columns = [len(data[name][0]) for name in ("train", "validation", "test")]
    assert sum(columns) == 2048 // 64
    seen = [{column.tobytes() for column in data[name][0]} for name in data]
    assert not seen[0] & seen[1]
    assert not seen[0] & seen[2]
    assert not seen[1] & seen[2]
