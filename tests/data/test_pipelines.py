"""Pipelines of `tf.data`: those that go on exactly in another process, and those refused."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.data.recorder import Recorder, fit

import loopwright as lw
from loopwright.data.readers import Read, StreamReader
from loopwright.data.source import Epochs

Dataset = tf.data.Dataset
READ = 14
SAVED = 9
"""Batches of four epochs; places in the first three of them, their ends among these."""


@pytest.fixture(autouse=True)
def _no_seed_for_all() -> None:
    """Other tests set one, and then no shuffle is without."""
    tf.random.set_seed(None)


def numbers(count: int = 10) -> Any:
    return Dataset.range(count)


def shuffled(count: int = 10, seed: int = 3) -> Any:
    return numbers(count).shuffle(6, seed=seed)


def rescaled(n: Any) -> Any:
    return keras.layers.Rescaling(2.0)(tf.cast(n, "float32")[None])


def looked_up() -> Any:
    keys = tf.lookup.KeyValueTensorInitializer(tf.range(10), tf.range(10))
    table = tf.lookup.StaticHashTable(keys, 0)
    return shuffled().map(lambda n: table.lookup(tf.cast(n, tf.int32))).batch(4)


def sampled(**options: Any) -> Any:
    both = [shuffled(6), numbers(16).skip(10)]
    return Dataset.sample_from_datasets(both, [0.5, 0.5], **options).batch(4)


def sampled_from_endless() -> Any:
    both = [shuffled(6).repeat(), numbers(6).repeat()]
    return Dataset.sample_from_datasets(both, [0.5, 0.5], seed=3).batch(4)


def chosen() -> Any:
    return Dataset.choose_from_datasets([shuffled(6), numbers(6)], numbers(2).repeat(6)).batch(4)


def files_then_examples() -> Any:
    files = numbers(4).shuffle(4, seed=1)
    examples = files.interleave(
        lambda n: numbers(3).map(lambda i: 10 * n + i),
        cycle_length=2,
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    changed = examples.shuffle(5, seed=2).map(lambda n: n + 1, tf.data.AUTOTUNE)
    return changed.batch(4).prefetch(tf.data.AUTOTUNE)


def with_options(dataset: Any, **options: Any) -> Any:
    wanted = tf.data.Options()
    for name, value in options.items():
        setattr(wanted, name, value)
    return dataset.with_options(wanted)


EXACT: dict[str, Callable[[], Any]] = {
    "in order": lambda: numbers().batch(4),
    "shuffled": lambda: shuffled().batch(4),
    "without a last smaller batch": lambda: shuffled().batch(4, drop_remainder=True),
    "shuffled once": lambda: numbers().shuffle(6, 3, reshuffle_each_iteration=False).batch(4),
    "shuffled batches": lambda: numbers().batch(3).shuffle(3, seed=3),
    "shuffled twice": lambda: shuffled().shuffle(3, seed=4).batch(4).shuffle(2, seed=5),
    "of unknown length": lambda: shuffled(20).filter(lambda n: n % 2 == 0).batch(4),
    "repeated by its owner": lambda: shuffled(6).repeat(2).batch(5),
    "endless": lambda: shuffled().repeat().batch(4),
    "one after the other": lambda: shuffled(6).concatenate(shuffled(4, seed=4)).batch(4),
    "side by side": lambda: Dataset.zip(shuffled(), shuffled(9, seed=4)).batch(4),
    "a part of it": lambda: shuffled(12).take(8).skip(1).batch(3),
    "files, then examples": files_then_examples,
    "parallel map": lambda: shuffled().map(lambda n: 2 * n, tf.data.AUTOTUNE).batch(4).prefetch(2),
    "cached": lambda: numbers().map(lambda n: 2 * n).cache().shuffle(6, seed=1).batch(4),
    "stateless random": lambda: (
        shuffled().map(lambda n: tf.random.stateless_uniform((), [n, 4])).batch(4)
    ),
    "seeded random dataset": lambda: Dataset.zip(
        numbers(), Dataset.random(seed=4, rerandomize_each_iteration=True)
    ).batch(4),
    "pure Python, as declared": lambda: (
        shuffled()
        .map(lambda n: tf.numpy_function(lambda m: m, [n], tf.int64, stateful=False))
        .map(lambda n: tf.ensure_shape(n, ()))
        .batch(4)
    ),
    "a layer without state": lambda: shuffled().map(rescaled).batch(4),
    "a table": looked_up,
    "errors ignored": lambda: (
        shuffled().map(lambda n: tf.constant(60, tf.int64) // n).ignore_errors().batch(4)
    ),
    "windows": lambda: shuffled(12).window(4, shift=2).flat_map(lambda w: w.batch(4)),
    "buckets": lambda: shuffled().group_by_window(
        lambda n: n % 2, lambda _, some: some.batch(3), window_size=3
    ),
    "sampled until one ends": lambda: sampled(seed=3, stop_on_empty_dataset=True),
    "sampled from endless ones": sampled_from_endless,
    "chosen": chosen,
    "ragged": lambda: shuffled().map(tf.range).ragged_batch(4),
    "symbolic checkpoints": lambda: with_options(
        shuffled().batch(4), experimental_symbolic_checkpoint=True
    ),
}


def reader(dataset: Any, **options: Any) -> StreamReader:
    steps = 3 if dataset.cardinality() == tf.data.INFINITE_CARDINALITY else None
    epochs = Epochs(**{"steps_per_epoch": steps, **options})
    return lw.Stream(dataset).training(epochs).open()


def read(reader: StreamReader, count: int) -> list[Any]:
    """What comes next; the end of an epoch of unknown length is None."""
    elements = []
    for _ in range(count):
        element = reader.iterator.get_next()
        if isinstance(element, tf.experimental.Optional):
            element = element.get_value() if element.has_value() else tf.constant(0)
        leaves = tf.nest.flatten(element, expand_composites=True)
        elements.append([np.asarray(leaf).tolist() for leaf in leaves])
    return elements


@pytest.mark.parametrize("kind", EXACT)
def test_a_pipeline_goes_on_exactly_from_every_place(kind: str):
    make = EXACT[kind]
    assert lw.Stream(make()).objection_to_resume() is None
    check_resumed(make(), make, range(SAVED))


def check_resumed(whole: Any, make: Callable[[], Any], places: Iterable[int]) -> None:
    """Reading that resumes at these places gives what reading the whole data gives."""
    once, states, seen = reader(whole), list[Any](), list[Any]()
    for _ in range(SAVED):
        states.append(once.state())
        seen += read(once, 1)
    seen += read(once, READ - SAVED)
    for place in places:
        resumed = reader(make())
        resumed.restore(Read(batches=place), states[place])
        assert read(resumed, READ - place) == seen[place:], f"after {place} batches"


@pytest.mark.parametrize("kind", ["shuffled twice", "of unknown length", "seeded random dataset"])
def test_the_order_of_a_pass_does_not_depend_on_those_asked_for_before(kind: str):
    make, again = EXACT[kind], EXACT[kind]()
    orders = {}
    for passes in (0, 1, 2, 5, 5, 3, 6, 0, 1):
        begun = reader(again, first_epoch=passes)
        orders[passes] = read(begun, 7)
        fresh = reader(make(), first_epoch=passes)
        assert orders[passes] == read(fresh, 7), passes
    assert len({str(order) for order in orders.values()}) == len(orders)


@pytest.mark.parametrize("kind", ["shuffled", "of unknown length", "shuffled batches"])
def test_with_one_shuffle_the_order_is_that_of_tensorflow(kind: str):
    make = EXACT[kind]
    epochs = make()  # each iterator over a dataset is a pass, with seeds of its own
    expected = [n.numpy().tolist() for _ in range(3) for n in epochs]

    assert [batch.tolist() for batch in fit(make(), epochs=3).trained] == expected


COMBINED: dict[str, Callable[[Any, Any], Any]] = {
    "mapped": lambda a, _: a.map(lambda n: n + 1).batch(4),
    "shuffled again": lambda a, _: a.shuffle(3, seed=5).batch(4),
    "before another": lambda a, b: Dataset.zip(a, b).batch(4),
    "after another": lambda a, b: Dataset.zip(b, a).batch(4),
    "twice side by side": lambda a, _: Dataset.zip(a, a).batch(4),
    "beside one in order": lambda a, _: Dataset.zip(a, numbers()).batch(4),
    "followed by another": lambda a, b: a.concatenate(b).batch(4),
    "followed by itself": lambda a, _: a.concatenate(a).batch(4),
    "chosen": lambda a, b: Dataset.choose_from_datasets([a, b], numbers(2).repeat(8)).batch(4),
    "sampled": lambda a, b: Dataset.sample_from_datasets(
        [a.repeat(), b.repeat()], [0.5, 0.5], seed=3
    ).batch(4),
}


@pytest.mark.parametrize("kind", COMBINED)
def test_a_dataset_that_was_read_before_goes_on_exactly_as_part_of_another(kind: str):
    end = dict[str, Any]()

    def combined(*, is_skipped: bool) -> Any:
        """Two datasets after a call of `fit` with the first, in this process or in another."""
        one, other = shuffled(), shuffled(12, seed=4)
        before = reader(one.batch(4))
        if is_skipped:
            before.restore(Read(batches=5), end)
        else:
            read(before, 5)
            end.update(before.state())
        return COMBINED[kind](one, other)

    whole = combined(is_skipped=False)
    check_resumed(whole, lambda: combined(is_skipped=True), (0, 1, 3, SAVED - 1))


def test_the_order_of_zipped_datasets_does_not_depend_on_others_zipped_before():
    def order(*before: str) -> list[Any]:
        parts = {name: shuffled(seed=seed) for seed, name in enumerate("abc", 5)}
        for names in before:
            reader(Dataset.zip(*map(parts.get, names)).batch(4))
        return read(reader(Dataset.zip(parts["a"], parts["b"]).batch(4)), 6)

    assert order("ac", "ba") == order("ac", "b") == order("a", "c") == order("bc")


def test_what_follows_a_leg_has_the_same_order_if_that_leg_is_skipped(tmp_path: Path):
    def fitted(dataset: Any, name: str) -> list[Any]:
        task = Recorder()
        trainer = lw.Trainer(task, plan="graph", run_dir=tmp_path / name, exact="best_effort")
        trainer.fit(dataset, epochs=3, verbose=0)
        return [np.asarray(leaf).tolist() for batch in task.trained for leaf in batch]

    orders = []
    for name in ("killed", "started again"):
        one, other = shuffled(), shuffled(seed=4)
        fitted(Dataset.zip(one, numbers()).batch(4), "first")
        orders.append(fitted(Dataset.zip(one, other).batch(4), name))

    assert orders[0] == orders[1]


# --- those that do not ---


def drawing(n: Any) -> Any:
    return tf.cond(n > 3, lambda: tf.random.normal(()), lambda: 0.0)


def python(n: Any) -> Any:
    return tf.ensure_shape(tf.numpy_function(lambda m: m, [n], tf.int64), ())


def eager_python(n: Any) -> Any:
    return tf.ensure_shape(tf.py_function(lambda m: m, [n], tf.int64), ())


def generated() -> Any:
    signature = tf.TensorSpec((), tf.int64)
    return Dataset.from_generator(lambda: iter(range(10)), output_signature=signature).batch(4)


def with_a_generator() -> Any:
    generator = tf.random.Generator.from_seed(1)
    return numbers().map(lambda _: generator.uniform(())).batch(4)


def with_a_random_layer() -> Any:
    flip = keras.layers.RandomFlip(seed=1)
    image = tf.reshape(tf.range(12.0), (2, 2, 3))
    return numbers().map(lambda _: flip(image)).batch(4)


def with_a_variable() -> Any:
    steps = tf.Variable(0, dtype=tf.int64)
    return numbers().map(lambda n: n + steps.assign_add(1)).batch(4)


def interleaved(**options: Any) -> Any:
    return numbers(4).interleave(lambda n: numbers(n + 1), 2, num_parallel_calls=2, **options)


def made_in_a_function() -> Any:
    return tf.function(lambda: numbers().shuffle(5).batch(4))()


RANDOM = "it draws random numbers"
ORDER = "has deterministic=False: elements come in the order in which they are ready"
PYTHON = "it calls Python code (from_generator, py_function or numpy_function)"
INSIDE = "there is a shuffle inside the function of a flat_map, interleave or map"
CANNOT_BE_SAVED: dict[str, tuple[Callable[[], Any], str]] = {
    "generator": (generated, PYTHON),
    "numpy_function": (lambda: numbers().map(python).batch(4), PYTHON),
    "py_function": (lambda: numbers().map(eager_python).batch(4), PYTHON),
    "random": (lambda: numbers().map(lambda _: tf.random.uniform(())).batch(4), RANDOM),
    "seeded random": (
        lambda: numbers().map(lambda _: tf.random.uniform((), seed=1)).batch(4),
        f"{RANDOM} (RandomUniform): use tf.random.stateless_* with a seed for each example",
    ),
    "random in a branch": (lambda: numbers().map(drawing).batch(4), RANDOM),
    "random in a function": (lambda: numbers().map(tf.function(drawing)).batch(4), RANDOM),
    "random, cached": (lambda: numbers().map(drawing).cache().batch(4), RANDOM),
    "Generator": (with_a_generator, "it draws from a tf.random.Generator"),
    "Keras layer": (with_a_random_layer, "Keras' Random* layers have one: put them into the step"),
    "variable": (with_a_variable, "it uses a variable, which is not saved with it"),
    "nested shuffle": (lambda: numbers(3).flat_map(lambda n: shuffled()).batch(4), INSIDE),
    "prefetch_to_device": (
        lambda: numbers().batch(4).apply(tf.data.experimental.prefetch_to_device("CPU:0")),
        "TensorFlow cannot save prefetch_to_device()",
    ),
    "something else": (
        lambda: (
            shuffled()
            .map(lambda n: tf.debugging.check_numerics(tf.cast(n, "float32"), ""))
            .batch(4)
        ),
        "TensorFlow cannot save it: ",
    ),
}
GOES_ON_OTHERWISE: dict[str, tuple[Callable[[], Any], str]] = {
    "unseeded": (lambda: numbers().shuffle(10).batch(4), "shuffle() has no seed: pass seed=1"),
    "unseeded, shuffled once": (
        lambda: numbers(10**5).shuffle(10**5, reshuffle_each_iteration=False).batch(2 * 10**4),
        "shuffle() has no seed",
    ),
    "unseeded, further up": (
        lambda: numbers().shuffle(10).map(lambda n: n).batch(4).prefetch(2),
        "shuffle() has no seed",
    ),
    "unseeded random dataset": (
        lambda: Dataset.zip(numbers(), Dataset.random()).batch(4),
        "Dataset.random(), sample_from_datasets() or similar has no seed",
    ),
    "made in a function": (made_in_a_function, "it has a shuffle made inside a tf.function"),
    "the clock": (
        lambda: numbers().map(lambda _: tf.timestamp()).batch(4),
        "it reads the clock (tf.timestamp)",
    ),
}
HAS_NO_ORDER: dict[str, tuple[Callable[[], Any], str]] = {
    "shuffled, then cached": (
        lambda: shuffled().cache().batch(4),
        "cache() keeps the order of a shuffle before it: put it first",
    ),
    "shuffle_and_repeat": (
        lambda: numbers().apply(tf.data.experimental.shuffle_and_repeat(6, 1, seed=3)).batch(4),
        "shuffle_and_repeat() loses its position between two epochs",
    ),
    "map": (lambda: numbers().map(lambda n: n, 2, deterministic=False).batch(4), f"map() {ORDER}"),
    "batch": (
        lambda: numbers().batch(4, num_parallel_calls=2, deterministic=False),
        f"batch() {ORDER}",
    ),
    "interleave": (
        lambda: interleaved(deterministic=False).batch(4),
        f"interleave() {ORDER}",
    ),
    "within a function": (
        lambda: numbers(3).flat_map(lambda _: interleaved(deterministic=False)).batch(4),
        ORDER,
    ),
    "warm start": (
        lambda: with_options(shuffled().map(lambda n: n, 2).batch(4), experimental_warm_start=True),
        "its options set experimental_warm_start, which starts reading too early",
    ),
    "its options": (
        lambda: with_options(numbers().map(lambda n: n, 2).batch(4), deterministic=False),
        "its options set deterministic=False",
    ),
    "sampled to the end": (
        lambda: sampled(seed=3),
        "sample_from_datasets() never ends if it is restored after one of its datasets has",
    ),
    "sampled without a seed": (lambda: sampled(stop_on_empty_dataset=True), "has no seed"),
}


@pytest.mark.parametrize(("make", "why"), CANNOT_BE_SAVED.values(), ids=CANNOT_BE_SAVED.keys())
def test_what_tensorflow_cannot_save_is_refused_by_name(
    make: Callable[[], Any], why: str, tmp_path: Path
):
    assert_refused(make(), why)
    iterator = iter(make())
    with pytest.raises((tf.errors.FailedPreconditionError, tf.errors.UnimplementedError)):
        tf.train.Checkpoint(iterator=iterator).write(str(tmp_path / "state"))


@pytest.mark.parametrize(("make", "why"), GOES_ON_OTHERWISE.values(), ids=GOES_ON_OTHERWISE.keys())
def test_what_would_go_on_otherwise_is_refused_by_name(
    make: Callable[[], Any], why: str, tmp_path: Path
):
    assert_refused(make(), why)

    def goes_on_otherwise(place: int) -> bool:
        whole, resumed = iter(make().repeat()), iter(make().repeat())
        for _ in range(place):
            next(whole)
        path = tf.train.Checkpoint(iterator=whole).write(str(tmp_path / f"{place}"))
        tf.train.Checkpoint(iterator=resumed).read(path)
        pairs = [(next(whole), next(resumed)) for _ in range(12)]
        leaves = [(tf.nest.flatten(one), tf.nest.flatten(other)) for one, other in pairs]
        return any(not np.array_equal(a, b) for pair in leaves for a, b in zip(*pair, strict=True))

    assert any(goes_on_otherwise(place) for place in range(7))


@pytest.mark.parametrize(("make", "why"), HAS_NO_ORDER.values(), ids=HAS_NO_ORDER.keys())
def test_what_promises_no_order_is_refused_by_name(make: Callable[[], Any], why: str):
    assert_refused(make(), why)


@pytest.mark.parametrize(
    "kind", ["unseeded", "unseeded, further up", "made in a function", "interleave", "its options"]
)
def test_what_cannot_be_repeated_still_goes_on_within_its_epoch(kind: str):
    make, _ = {**GOES_ON_OTHERWISE, **HAS_NO_ORDER}[kind]
    objection = lw.Stream(make()).objection_to_resume()
    assert objection is not None
    assert not objection.loses_position
    epoch = [number for batch in make() for number in batch.numpy().tolist()]
    for place in (1, 3, 4):
        whole, resumed = reader(make()), reader(make())
        seen = read(whole, place)
        resumed.restore(Read(batches=place), whole.state())

        def numbers_of(elements: list[Any]) -> list[int]:
            # The end of an epoch of unknown length is a single number.
            return [n for leaf, *_ in elements if isinstance(leaf, list) for n in leaf]

        while len(numbers_of(seen)) < 2 * len(epoch):
            seen += read(resumed, 1)
        assert sorted(numbers_of(seen)) == sorted(2 * epoch), f"after {place} batches"


def test_order_may_be_left_to_the_options_as_long_as_they_keep_it():
    assert lw.Stream(interleaved().batch(4)).objection_to_resume() is None
    assert lw.Stream(interleaved(deterministic=True).batch(4)).objection_to_resume() is None


def test_a_snapshot_on_disk_is_refused(tmp_path: Path):
    assert_refused(numbers().snapshot(str(tmp_path)).batch(4), "snapshot() cannot be restored")


def test_a_cache_on_disk_is_refused_until_it_is_whole(tmp_path: Path):
    cached = numbers().cache(str(tmp_path / "cache")).batch(4)

    assert_refused(cached, "cannot be used again if a run ends while it is written")
    assert len(list(cached)) == 3
    assert lw.Stream(cached).objection_to_resume() is None


def assert_refused(dataset: Any, why: str) -> None:
    found = lw.Stream(dataset).objection_to_resume()
    assert found is not None
    objection = str(found)
    assert objection.startswith("A run with this data could not be resumed exactly.\n")
    assert re.search(rf"\n  received: .*{re.escape(why)}", objection)
    for remedy in (
        "arrays or a PyDataset",
        "change the pipeline",
        "lw.Stream(dataset, replay=True)",
    ):
        assert remedy in objection


def test_looking_at_a_pipeline_changes_nothing_about_its_order():
    untouched, looked_at = shuffled().batch(10), shuffled().batch(10)

    for _ in range(3):
        assert lw.Stream(looked_at).objection_to_resume() is None
        lw.Stream(looked_at).fingerprint()

    for _ in range(3):
        assert next(iter(looked_at)).numpy().tolist() == next(iter(untouched)).numpy().tolist()


def test_a_global_seed_is_a_seed():
    try:
        tf.random.set_seed(1)
        assert lw.Stream(numbers().shuffle(10).batch(4)).objection_to_resume() is None
    finally:
        tf.random.set_seed(None)
