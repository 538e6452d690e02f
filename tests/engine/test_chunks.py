"""Several batches at once: what is pulled, when it stops, how it is run."""

import numpy as np
import pytest
import tensorflow as tf

import loopwright as lw
from loopwright.engine import chunks
from loopwright.engine.loop_graph import next_optional
from loopwright.plans.plan import Plan

FUSED = Plan("xla", "fused", "chunk")


def numbers(sizes):
    """Batches of these sizes, of the numbers from 0 on."""
    ends = np.cumsum(sizes)
    spec = tf.TensorSpec([None], tf.int64)
    batches = [np.arange(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    return tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=spec)


def pulled(iterator, spec, size, limit):
    @tf.function(autograph=False)
    def pull(iterator, limit):
        return chunks.pull(lambda: next_optional(iterator, "exhausted"), spec, size, limit)

    found = pull(iterator, tf.constant(limit))
    count, chunk = int(found.batches), found.chunk.numpy()
    assert not chunk[count:].any(), "what is beyond the count is zeros"
    return chunk[:count].tolist(), found.other.numpy().tolist() if found.has_other else None


def test_a_chunk_ends_where_a_batch_has_another_size_which_is_not_lost():
    dataset = numbers([3, 3, 2, 3])
    iterator, spec = iter(dataset), dataset.element_spec
    assert pulled(iterator, spec, 3, 10) == ([[0, 1, 2], [3, 4, 5]], [6, 7])
    assert pulled(iterator, spec, 3, 10) == ([[8, 9, 10]], None)
    assert pulled(iterator, spec, 3, 10) == ([], None)


def test_nothing_is_pulled_beyond_the_limit():
    dataset = numbers([2] * 9)
    iterator, spec = iter(dataset), dataset.element_spec
    assert pulled(iterator, spec, 2, 3)[0] == [[0, 1], [2, 3], [4, 5]]
    assert next(iterator).numpy().tolist() == [6, 7]


def test_a_dataset_of_known_batch_size_is_pulled_the_same():
    dataset = tf.data.Dataset.range(10).batch(4, drop_remainder=True)
    iterator, spec = iter(dataset), dataset.element_spec
    assert pulled(iterator, spec, 4, 10) == ([[0, 1, 2, 3], [4, 5, 6, 7]], None)


@pytest.mark.parametrize(("size", "room"), [(1, 128), (4096, 128), (2**18, 2), (2**30, 1)])
def test_the_room_of_a_chunk_follows_from_the_bytes_of_a_batch(size, room):
    assert chunks.room(tf.TensorSpec([None], tf.int64), size) == room


class Seen(lw.Task):
    """Remembers every example it was given, in its order, also inside XLA."""

    def __init__(self, most=4096):
        super().__init__()
        self.seen = tf.Variable(tf.fill([most], tf.constant(-1, tf.int64)))
        self.count = tf.Variable(0)

    def train_step(self, batch):
        size = tf.shape(batch)[0]
        places = self.count + tf.range(size)
        self.seen.assign(tf.tensor_scatter_nd_update(self.seen, places[:, tf.newaxis], batch))
        self.count.assign_add(size)
        return {"first": batch[0]}

    @property
    def examples(self):
        return self.seen.numpy()[: int(self.count)].tolist()


@pytest.mark.parametrize(
    # `make test` runs the first one.
    "sizes",
    [[4] * 20 + [3, 4, 4, 2, 2, 2, 4], [4] * 20, [4] * 20 + [3], [1], [4, 3] * 6],
    ids=str,
)
@pytest.mark.parametrize("length", ["known", "unknown"])
def test_every_example_is_trained_once_and_in_order_whatever_the_sizes(sizes, length):
    dataset = numbers(sizes)
    if length == "known":
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(len(sizes)))
    trainer = lw.Trainer(Seen(), plan=FUSED)
    history = trainer.fit(dataset, epochs=2, verbose=0)
    assert trainer.task.examples == [*range(sum(sizes))] * 2
    assert history.epoch == [0, 1]
    assert int(trainer.task.step) == 2 * len(sizes)


def test_a_stream_goes_on_where_the_epoch_before_has_stopped():
    trainer = lw.Trainer(Seen(), plan=FUSED)
    trainer.fit(tf.data.Dataset.range(70).batch(2), epochs=7, steps_per_epoch=5, verbose=0)
    assert trainer.task.examples == [*range(70)]


def test_a_stop_in_the_middle_of_a_chunk_loses_nothing():
    dataset = tf.data.Dataset.range(40).batch(2)
    trainer = lw.Trainer(Seen(), plan=FUSED)
    seen = []
    for event in trainer.events(dataset, until="17 steps"):
        if isinstance(event, lw.Trained):
            seen.append(len(trainer.task.examples))
            assert trainer.task.examples == [*range(2 * event.step)]
    assert seen[-1] == 34
