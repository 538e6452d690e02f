"""What a traced step uses: values that Python computed once, and state that no checkpoint holds."""

import random
import re
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import loopwright as lw

RNG = np.random.default_rng(5)
X = RNG.normal(size=(16, 4)).astype("float32")
Y = X @ np.array([[1.0], [-2.0], [0.5], [0.0]], "float32")


class Regression(lw.Task):
    """A step by hand; `change` is what a test does in it."""

    def __init__(self, change: Callable[..., Any] = lambda task, x, y: (x, y)):
        super().__init__()
        keras.utils.set_random_seed(1)
        self.model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        self.optimizer = keras.optimizers.SGD(0.01)
        self.seed = keras.random.SeedGenerator(0)
        self.change = change
        self.traces: list[str] = []

    @property
    def traced(self) -> int:
        return len(self.traces)

    def train_step(self, batch):
        self.traces.append("train_step")
        x, y = self.change(self, *batch)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - self.model(x, training=True)))
        self.minimize(loss, self.model, self.optimizer, tape)
        return {"loss": loss}

    def test_step(self, batch):
        x, y = batch
        return {"loss": tf.reduce_mean(tf.square(y - self.model(x, training=False)))}


class Alone(Regression):
    """The same without a batch argument."""

    def train_step(self):  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().train_step((X, Y))


def fit(task: lw.Task, *data: Any, plan: Any = "graph", **options: Any) -> lw.Trainer:
    how = {name: options.pop(name) for name in ("run_dir", "silence", "on_nan") if name in options}
    trainer = lw.Trainer(task, plan=plan, **how)
    if data and data[0] is None:
        trainer.fit(None, until="4 steps", verbose=0, **options)
    else:
        trainer.fit(*(data or (X, Y)), batch_size=8, verbose=0, **options)
    return trainer


def refused(task: lw.Task, *data: Any, **options: Any) -> str:
    """The message with which `fit` refuses to take the first step."""
    with pytest.raises(lw.StepError) as caught:
        fit(task, *data, **options)
    assert int(task.step) == 0
    assert "\n  do: " in str(caught.value)
    return str(caught.value)


def line_of(marker: str) -> str:
    lines = Path(__file__).read_text().splitlines()
    number, code = next((n, t) for n, t in enumerate(lines, 1) if t.endswith(f"  # {marker}"))
    return f'file "test_traced_step.py", line {number}: {code.strip()}'


# --- values that Python computes while the step is traced --------------------------------------


def random_batch(x, y, size=8):
    rows = np.random.randint(len(x), size=size)  # the draw
    return x[rows], y[rows]


class Drawn(Regression):
    def train_step(self):  # pyright: ignore[reportIncompatibleMethodOverride]
        x, y = random_batch(X, Y)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - self.model(x, training=True)))
        self.minimize(loss, self.model, self.optimizer, tape)
        return {"loss": loss}


@pytest.mark.parametrize("plan", ["auto", "graph", "fused"])
def test_a_batch_drawn_by_numpy_inside_the_step_is_refused_by_name_and_line(plan: str):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lw.StepWarning)
        text = refused(Drawn(), None, plan=plan)
    assert text.startswith("Drawn.train_step uses a value that Python computed while the step was")
    assert f"drawn by np.random.randint ({line_of('the draw')})" in text
    assert "float32 (8, 4)" in text
    assert "keras.random" in text


def test_a_run_directory_refuses_a_batch_drawn_by_numpy(tmp_path: Path):
    text = refused(Drawn(), None, run_dir=tmp_path / "run", silence=["baked-in-array"])
    assert "uses a value that Python computed while the step was traced" in text


def noise(task, x, y):
    return x + np.random.normal(size=(1, 4)), y  # the noise


def scale(task, x, y):
    return x * random.random(), y  # the scale


def clock(task, x, y):
    return x + (time.time() % 1.0), y  # the clock


def shift(task, x, y):
    return tf.roll(x, int(RNG.integers(1000)), axis=1), y  # the shift


def counter(task, x, y):
    return x * task.traced, y  # the counter


def branch(task, x, y):
    task.heads = not getattr(task, "heads", False)
    return (tf.abs(x) if task.heads else x), y


@pytest.mark.parametrize("plan", ["graph", "fused"])
@pytest.mark.parametrize(
    ("change", "drawn", "marker"),
    [
        (noise, "np.random.normal", "the noise"),
        (scale, "random.random", "the scale"),
        (clock, "time.time", "the clock"),
        (counter, "", "the counter"),
    ],
    ids=["noise", "scale", "clock", "counter"],
)
def test_a_value_that_differs_between_two_traces_is_refused_with_its_line(
    change: Any, drawn: str, marker: str, plan: str
):
    text = refused(Regression(change), plan=plan)
    assert f"({line_of(marker)})" in text.splitlines()[0]
    assert f"drawn by {drawn} (" in text if drawn else "drawn by" not in text


@pytest.mark.parametrize("change", [shift, branch])
def test_an_index_and_a_branch_that_differ_between_two_traces_are_refused(change: Any):
    assert "two traces of the step gave" in refused(Regression(change))


def test_a_value_drawn_inside_a_branch_or_a_loop_is_refused():
    def inside(task, x, y):
        for _ in tf.range(3):
            if tf.reduce_sum(x) > 0:
                x += np.random.normal(size=(1, 4))
        return x, y

    assert "np.random.normal" in refused(Regression(inside))


def test_a_value_drawn_in_a_test_step_is_refused():
    class Scored(Regression):
        def test_step(self, batch):
            x, y = noise(self, *batch)
            return super().test_step((x, y))

    with pytest.raises(lw.StepError, match=r"^Scored.test_step uses a value that Python computed"):
        lw.Trainer(Scored(), plan="graph").evaluate(X, Y)


def test_a_keras_model_with_a_step_of_its_own_that_draws_is_refused():
    class Noisy(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            return self.dense(x)

        def train_step(self, data):
            x, y = data
            return super().train_step((x + np.random.normal(size=(1, 4)), y))

    model = Noisy()
    model.compile("sgd", "mse")
    with pytest.raises(lw.StepError, match=r"np\.random\.normal"):
        lw.Trainer(model, plan="graph").fit(X, Y, verbose=0)


def test_two_replicas_refuse_a_value_that_differs_between_two_traces():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    trainer = lw.Trainer(lambda: Regression(noise), strategy=strategy, plan="graph")
    with pytest.raises(lw.StepError, match=r"np\.random\.normal"):
        trainer.fit(X, Y, batch_size=8, verbose=0)


def test_an_eager_step_may_draw_with_numpy_but_not_in_a_run_directory(tmp_path: Path):
    def noise(task, x, y):
        if tf.reduce_sum(x) > 1e9:  # AutoGraph converts it while it is traced
            x *= 0.0
        return x + np.random.normal(size=(1, 4)), y

    fit(Regression(noise), plan="eager")

    text = refused(Regression(noise), plan="eager", run_dir=tmp_path / "run")
    assert "uses a value that Python computes again in each step" in text
    assert "or train without run_dir" in text


def test_values_that_stay_the_same_are_traced_as_often_as_before():
    weights = np.linspace(0.5, 2.0, 4)

    def right(task, x, y):
        x = x * weights + keras.random.normal((4,), seed=task.seed)
        if tf.reduce_sum(x) > 100:
            x *= 0.5
        return x, y

    task = Regression(right)
    fit(task)
    assert task.traced == 2  # one to build, one to run
    task = Regression(right)
    fit(task, plan="fused")
    assert task.traced == 2


# --- arrays that do not change ------------------------------------------------------------------


def warned(task: lw.Task, **options: Any) -> str:
    with pytest.warns(lw.StepWarning) as caught:
        fit(task, None, **options)
    assert int(task.step) == 4
    (text,) = {str(warning.message) for warning in caught}
    return text


def test_a_fixed_batch_in_a_step_without_one_is_warned_of_with_its_line():
    text = warned(Alone())
    assert text.startswith("Alone.train_step computes with a fixed array in every step")
    assert "float32 (16, 4)" in text
    assert text.endswith(
        '\n  silence: Trainer(..., silence=["baked-in-array"]), if this is intended'
    )


def test_a_fixed_batch_that_was_captured_is_warned_of():
    x, y = tf.constant(np.tile(X, (20, 1))), tf.constant(np.tile(Y, (20, 1)))
    assert "float32 (320, 4)" in warned(Alone(lambda *_: (x, y)))


def test_fixed_points_that_are_meant_can_be_silenced():
    fit(Alone(), None, silence=["baked-in-array"])  # a warning would be an error here


def test_rows_chosen_in_each_step_are_no_fixed_array():
    x, y = tf.constant(np.tile(X, (20, 1))), tf.constant(np.tile(Y, (20, 1)))

    def rows(task, *_):
        chosen = keras.random.randint((8,), 0, 320, seed=task.seed)
        return tf.gather(x, chosen), tf.gather(y, chosen)

    def in_a_loop(task, *_):
        chosen_x, chosen_y = rows(task)
        for _ in tf.range(2):
            more_x, more_y = rows(task)
            chosen_x, chosen_y = chosen_x + more_x, chosen_y + more_y
        return chosen_x, chosen_y

    fit(Alone(rows), None)
    fit(Alone(in_a_loop), None)


# --- warnings by id -----------------------------------------------------------------------------


@pytest.mark.parametrize("plan", ["graph", "eager"])
def test_a_warning_carries_its_id_and_is_silenced_by_it(plan: str):
    class Unused(Regression):
        def __init__(self):
            super().__init__()
            self.unused = tf.Variable(1.0)

        def train_step(self, batch):
            x, y = batch
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(y - self.model(x, training=True)))
            variables = [*self.model.trainable_variables, self.unused]
            self.minimize(loss, variables, self.optimizer, tape)
            return {"loss": loss}

    with pytest.warns(lw.StepWarning, match="have no gradient") as caught:
        fit(Unused(), plan=plan)
    assert {warning.message.id for warning in caught} == {"no-gradient"}  # pyright: ignore
    fit(Unused(), plan=plan, silence=["no-gradient"])
    with pytest.warns(lw.StepWarning, match="have no gradient"):
        fit(Unused(), plan=plan, silence=["broadcast"])


@pytest.mark.parametrize("given", [["no-gradients"], "no-gradient"])
def test_an_unknown_warning_is_refused_with_the_known_ones(given: Any):
    with pytest.raises(lw.ConfigurationError, match="silence") as caught:
        lw.Trainer(Regression(), silence=given)
    assert "baked-in-array, broadcast" in str(caught.value)


def test_every_id_is_told_of_on_the_page_about_debugging():
    page = (Path(__file__).parents[2] / "docs" / "debugging.md").read_text()
    with pytest.raises(lw.ConfigurationError) as caught:
        lw.Trainer(Regression(), silence=[""])
    known = str(caught.value).split("a list of: ")[1].splitlines()[0].split(", ")
    assert re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE) == known


# --- the arguments of a step --------------------------------------------------------------------


def test_data_for_a_step_without_a_batch_argument_is_refused_in_words():
    with pytest.raises(lw.ConfigurationError) as caught:
        fit(Alone())
    assert str(caught.value) == (
        "Alone.train_step takes no batch, but it was given data.\n"
        "  expected: def train_step(self, batch)\n"
        "  received: def train_step(self)\n"
        "  do: add the argument and take the examples from it: x, y = batch; "
        'or call fit(None, until="1000 steps")'
    )


class Unpacked(Regression):
    def train_step(self, x, y):  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().train_step((x, y))

    @tf.function
    def test_step(self, x, y):  # pyright: ignore[reportIncompatibleMethodOverride]
        return {"loss": 0.0}

    def predict_step(self):  # pyright: ignore[reportIncompatibleMethodOverride]
        return 0.0


@pytest.mark.parametrize(
    ("use", "received"),
    [
        (lambda trainer: trainer.fit(X, Y), "def train_step(self, x, y)"),
        (lambda trainer: trainer.evaluate(X, Y), "def test_step(self, x, y)"),
        (lambda trainer: trainer.predict(X), "def predict_step(self)"),
    ],
    ids=["fit", "evaluate", "predict"],
)
def test_a_step_with_other_arguments_than_a_batch_is_refused_in_words(use: Any, received: str):
    with pytest.raises(lw.ConfigurationError) as caught:
        use(lw.Trainer(Unpacked()))
    assert f"received: {received}\n" in str(caught.value)
    assert "x, y = batch" in str(caught.value)


def test_a_wrong_test_step_shows_before_training():
    task: Any = Regression()
    task.test_step = lambda x, y: {"loss": 0.0}
    with pytest.raises(lw.ConfigurationError, match=r"^Regression.test_step must take one"):
        fit(task, validation_data=(X, Y))
    assert int(task.step) == 0


def test_a_keras_model_whose_step_takes_other_arguments_is_refused_in_words():
    class Unpacking(keras.Sequential):
        def train_step(self, x, y):
            return {"loss": 0.0}

    model = Unpacking([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(lw.ConfigurationError, match=r"^Unpacking.train_step must take one"):
        lw.Trainer(model).fit(X, Y, verbose=0)


# --- state that is no variable ------------------------------------------------------------------


class Held(Regression):
    """A task that holds something else than variables."""

    def __init__(self, held: Any, change: Callable[..., Any]):
        super().__init__(change)
        self.held = held


def queue() -> tf.queue.FIFOQueue:
    filled = tf.queue.FIFOQueue(100, tf.float32)
    filled.enqueue_many(np.linspace(0, 1, 50).astype("float32"))
    return filled


def dequeued(task, x, y):
    scale = task.held.dequeue()
    scale.set_shape(())
    return x * scale, y  # the queue


def table() -> Any:
    return tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)


def counted(task, x, y):
    key = tf.constant(1, tf.int64)
    task.held.insert(key, task.held.lookup(key) + 1.0)
    return x * tf.reshape(task.held.lookup(key), ()), y


def dense_table() -> Any:
    return tf.lookup.experimental.DenseHashTable(
        tf.int64, tf.float32, 0.0, empty_key=-1, deleted_key=-2
    )


def iterator() -> Any:
    return iter(tf.data.Dataset.range(1000).map(lambda n: tf.cast(n, tf.float32)))


def advanced(task, x, y):
    return x * next(task.held), y


def in_a_branch(task, x, y):
    if tf.reduce_sum(x) > 1e9:
        y += task.held.dequeue()
    return x, y


def in_a_function(task, x, y):
    @tf.function
    def take(queue_ref):
        return tf.raw_ops.QueueDequeueV2(handle=queue_ref, component_types=[tf.float32])[0]

    return x, y + tf.reshape(take(task.held.queue_ref), ())


STATES = {
    "queue": (queue, dequeued, "self.held: FIFOQueue (QueueDequeueV2)"),
    "table": (
        table,
        counted,
        "self.held: MutableHashTable (LookupTableFindV2, LookupTableInsertV2)",
    ),
    "dense table": (dense_table, counted, "self.held: DenseHashTable ("),
    "iterator": (iterator, advanced, "self.held: OwnedIterator (IteratorGetNext)"),
    "branch": (queue, in_a_branch, "self.held: FIFOQueue (QueueDequeueV2)"),
    "function": (queue, in_a_function, "self.held: FIFOQueue (QueueDequeueV2)"),
}


@pytest.mark.parametrize("kind", STATES)
def test_a_run_directory_refuses_state_that_no_checkpoint_holds_by_name(kind: str, tmp_path: Path):
    make, change, received = STATES[kind]
    text = refused(Held(make(), change), run_dir=tmp_path / "run")
    assert text.startswith("Held.train_step uses a state that no checkpoint holds")
    assert received in text
    fit(Held(make(), change))  # without a run directory it trains


def test_the_path_to_a_state_leads_through_lists_and_objects(tmp_path: Path):
    class Box:
        def __init__(self):
            self.queues = {"left": [queue()]}

    def change(task, x, y):
        return x, y + task.held.queues["left"][0].dequeue()

    text = refused(Held(Box(), change), run_dir=tmp_path / "run")
    assert "self.held.queues['left'][0]: FIFOQueue" in text


def test_a_queue_that_the_task_does_not_hold_and_a_table_made_in_the_step_are_refused(
    tmp_path: Path,
):
    outside = queue()

    def other(task, x, y):
        return x, y + outside.dequeue()

    def own(task, x, y):
        made, key = table(), tf.constant(1, tf.int64)
        made.insert(key, made.lookup(key) + 1.0)
        return x, y + tf.reshape(made.lookup(key), ())

    text = refused(Regression(other), run_dir=tmp_path / "other")
    assert "a resource that is not an attribute of the task (QueueDequeueV2)" in text
    assert "MutableHashTableV2, created inside the step" in refused(
        Regression(own), run_dir=tmp_path / "own"
    )


def test_tables_that_are_only_read_and_summary_writers_are_no_state_of_the_training(tmp_path: Path):
    keys, values = tf.range(4, dtype=tf.int64), tf.linspace(0.0, 1.0, 4)
    static = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), 0.0)
    filled = table()
    filled.insert(keys, values)
    writer = tf.summary.create_file_writer(str(tmp_path / "summaries"))

    def read(task, x, y):
        with writer.as_default(step=task.step):
            tf.summary.scalar("mean", tf.reduce_mean(x))
        key = tf.cast(x[:1, 0] > 0, tf.int64)
        array = tf.TensorArray(tf.float32, 1).write(0, static.lookup(key))
        return x * tf.reshape(array.read(0) + filled.lookup(key), ()), y

    fit(Held([static, filled, writer], read), run_dir=tmp_path / "run")


def test_a_keras_lookup_layer_trains_in_a_run_directory(tmp_path: Path):
    words = np.array(["a", "b", "c", "a"] * 4)

    class Words(lw.Task):
        def __init__(self):
            super().__init__()
            self.lookup = keras.layers.StringLookup(vocabulary=["a", "b", "c"])
            self.model = keras.Sequential([keras.layers.Embedding(4, 2), keras.layers.Dense(1)])
            self.optimizer = keras.optimizers.SGD(0.01)

        def train_step(self, batch):
            x, y = batch
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(y - self.model(self.lookup(x), training=True)))
            self.minimize(loss, self.model, self.optimizer, tape)
            return {"loss": loss}

    fit(Words(), words, Y, run_dir=tmp_path / "run")


class Scored(Held):
    def test_step(self, batch):
        x, y = self.change(self, *batch)
        return super().test_step((x, y))

    def train_step(self, batch):
        change, self.change = self.change, lambda task, x, y: (x, y)
        try:
            return super().train_step(batch)
        finally:
            self.change = change


def test_a_test_step_with_state_of_its_own_is_refused_in_a_run_directory(tmp_path: Path):
    text = refused(Scored(queue(), dequeued), run_dir=tmp_path / "run", validation_data=(X, Y))
    assert text.startswith("Scored.test_step uses a state that no checkpoint holds")
    fit(Scored(queue(), dequeued), validation_data=(X, Y))


@pytest.mark.parametrize(
    ("draw", "named"),
    [
        (lambda: keras.random.normal((4,)), "uses variables that the task does not hold"),
        (lambda: tf.random.normal((4,)), "draws random numbers that cannot be repeated"),
    ],
    ids=["keras", "tf"],
)
def test_a_test_step_that_cannot_be_repeated_is_refused_in_a_run_directory(
    draw: Any, named: str, tmp_path: Path
):
    task = Scored(None, lambda task, x, y: (x + draw(), y))
    text = refused(task, run_dir=tmp_path / "run", validation_data=(X, Y))
    assert text.startswith("Scored.test_step")
    assert named in text


def test_validation_that_would_take_from_the_queue_of_the_training_is_refused():
    class Both(Held):
        def test_step(self, batch):
            x, y = self.change(self, *batch)
            return super().test_step((x, y))

    task = Both(queue(), dequeued)
    with pytest.raises(lw.StepError, match="validation would change the training") as caught:
        fit(task, validation_data=(X, Y))
    assert "self.held: FIFOQueue" in str(caught.value)
    assert int(task.step) == 0


def test_a_queue_cannot_be_put_back_when_a_step_is_skipped():
    text = refused(Held(queue(), dequeued), on_nan="skip")
    assert "a skipped step cannot restore" in text
