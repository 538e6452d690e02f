"""Batch hooks of callbacks get the steps and the values that Keras' own `fit` gives them.

Stand-ins have the names and the hooks of W&B and tqdm; `test_real_callbacks.py` has the
packages themselves.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import callbacks as kc
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests.mirrored import mirrored
from tests.tasks import ByHand

import loopwright as lw

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(77, 4)).astype("float32")
Y = np.argmax(X[:, :3] + RANDOM.normal(size=(77, 3)), axis=1)
STEPS = 8  # the last batch has seven examples
EPOCHS = 3
DATA: dict[str, Any] = {"batch_size": 10, "shuffle": False, "verbose": 0}
ROUTES = ["supervised", "compiled"]
PLANS: list[Any] = [
    "graph",
    "xla",
    "fused",
    "eager",
    lw.Plan("graph", "python"),
    lw.Plan("graph", "graph", "stream"),
    lw.Plan("graph", "graph", "chunk"),
    lw.Plan("xla", "fused", "chunk"),
]


def network() -> keras.Model:
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dense(6, "tanh"), keras.layers.Dense(3)]
    return keras.Sequential([keras.Input((4,)), *layers])


def settings(rate: Any = 0.2) -> dict[str, Any]:
    return {
        "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "optimizer": keras.optimizers.SGD(rate, momentum=0.9),
        "metrics": ["accuracy"],
    }


def decaying() -> keras.optimizers.schedules.LearningRateSchedule:
    return keras.optimizers.schedules.ExponentialDecay(0.2, 2, 0.9)


def fitting(route: str, *, plan: Any = "graph", rate: Any = 0.2, **options: Any) -> Any:
    """`fit` of a new model: of Keras, or of a trainer for it."""
    model, parts = network(), settings(rate)
    if route == "supervised":
        return lw.Trainer(lw.Supervised(model, **parts), plan=plan, **options).fit
    model.compile(**parts, jit_compile=False)
    return model.fit if route == "keras" else lw.Trainer(model, plan=plan, **options).fit


def run(route: str, callback: kc.Callback, epochs: int = EPOCHS, **options: Any) -> kc.Callback:
    fitting(route, **options)(X, Y, epochs=epochs, callbacks=[callback], **DATA)
    return callback


# --- TensorBoard --------------------------------------------------------------------------------


def scalars(directory: Path) -> dict[str, list[tuple[int, float]]]:
    reader = EventAccumulator(str(directory / "train"), size_guidance={"tensors": 0})
    reader.Reload()
    return {
        tag: [(e.step, float(tf.make_ndarray(e.tensor_proto))) for e in reader.Tensors(tag)]
        for tag in reader.Tags()["tensors"]
        if tag.startswith("batch_")
    }


@functools.cache
def board_of_keras(frequency: Any, directory: Path) -> dict[str, list[tuple[int, float]]]:
    run("keras", kc.TensorBoard(directory / str(frequency), update_freq=frequency))
    return scalars(directory / str(frequency))


@pytest.fixture(scope="module")
def files_of_keras(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keras")


def assert_same(ours: Any, expected: Any) -> None:
    assert sorted(ours) == sorted(expected)
    for tag, points in expected.items():
        np.testing.assert_allclose(ours[tag], points, rtol=2e-3, atol=1e-5, err_msg=tag)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("frequency", [5, "batch"])
def test_tensorboard_writes_the_steps_and_values_of_keras(
    frequency: Any, route: str, files_of_keras: Path, tmp_path: Path
):
    expected = board_of_keras(frequency, files_of_keras)
    assert [step for step, _ in expected["batch_loss"]][:2] == (
        [5, 10] if frequency == 5 else [1, 2]
    )

    run(route, kc.TensorBoard(tmp_path, update_freq=frequency))

    assert_same(scalars(tmp_path), expected)


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_every_plan_records_the_values_of_each_step(
    plan: Any, files_of_keras: Path, tmp_path: Path
):
    run("supervised", kc.TensorBoard(tmp_path, update_freq=1), plan=plan)
    assert_same(scalars(tmp_path), board_of_keras("batch", files_of_keras))


def test_a_compiled_loop_runs_many_steps_between_two_calls_of_a_counter(tmp_path: Path):
    """Guards the tests above: with a stop at every step the numbers would be right as well."""
    board, trained = kc.TensorBoard(tmp_path, update_freq=1), []
    trainer = lw.Trainer(lw.Supervised(network(), **settings()), plan="fused")
    for event in trainer.events(X, Y, epochs=EPOCHS, callbacks=[board], **DATA):
        trained += [event.steps] if isinstance(event, lw.Trained) else []
    assert max(trained) > 1
    assert sum(trained) == EPOCHS * STEPS


@pytest.mark.parametrize("plan", ["graph", "fused", lw.Plan("xla", "fused", "chunk")], ids=str)
def test_recording_changes_no_bit_of_the_training(plan: Any, tmp_path: Path):
    ends = []
    for callbacks in ([], [kc.TensorBoard(tmp_path, update_freq=3)], [Wandb("batch")]):
        trainer = lw.Trainer(lw.Supervised(network(), **settings(decaying())), plan=plan)
        history = trainer.fit(X, Y, epochs=2, callbacks=callbacks, **DATA).history
        ends.append((trainer.task.model.get_weights(), history))
    for weights, history in ends[1:]:
        for got, wanted in zip(weights, ends[0][0], strict=True):
            np.testing.assert_array_equal(got, wanted)
        assert history["accuracy"] == ends[0][1]["accuracy"]
        assert history["loss"] == pytest.approx(ends[0][1]["loss"], rel=1e-12)


class Odd(keras.metrics.Metric):
    """A metric whose result cannot be computed in a graph."""

    def __init__(self) -> None:
        super().__init__(name="odd")
        self.seen = self.add_variable((), "zeros", name="seen")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.seen.assign_add(1.0)

    def result(self) -> Any:
        return float(np.asarray(self.seen.value)) * 2


def test_a_metric_that_no_graph_can_compute_is_read_after_every_step():
    class Own(ByHand):
        def __init__(self) -> None:
            super().__init__(network())
            self.odd = Odd()

        def loss_of(self, x: Any, y: Any) -> Any:
            self.odd.update_state(y, y)
            return tf.reduce_mean(tf.square(self.model(x, training=True)))

    logger = Wandb("batch")
    lw.Trainer(Own(), plan="graph").fit(X, Y, callbacks=[logger], **DATA)
    assert [point["odd"] for point in logger.points] == [2.0 * n for n in range(1, STEPS + 1)]


def test_a_profile_covers_the_batches_that_it_was_asked_for(tmp_path: Path):
    calls: list[tuple[str, int]] = []

    class Board(kc.TensorBoard):
        def _start_trace(self) -> None:
            calls.append(("start", int(self.model.optimizer.iterations.numpy())))
            self._is_tracing = True

        def _stop_trace(self, batch: Any = None) -> None:
            calls.append(("stop", int(self.model.optimizer.iterations.numpy())))
            self._is_tracing = False

    run("supervised", Board(tmp_path, profile_batch=(11, 14)))
    assert calls == [("start", 10), ("stop", 14)]


# --- W&B, tqdm ----------------------------------------------------------------------------------


class Wandb(kc.Callback):
    """As `WandbMetricsLogger` of wandb 0.31."""

    __module__ = "wandb.integration.keras.callbacks.metrics_logger"
    __qualname__ = "WandbMetricsLogger"

    def __init__(self, log_freq: Any) -> None:
        super().__init__()
        self.log_freq = 1 if log_freq == "batch" else log_freq
        self.logging_batch_wise = isinstance(self.log_freq, int)
        self.global_batch = self.global_step = 0
        self.points: list[dict[str, float]] = []

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        self.global_step += 1
        if self.logging_batch_wise and batch % self.log_freq == 0:
            rate = float(tf.convert_to_tensor(self.model.optimizer.learning_rate))
            self.points.append({**logs, "step": self.global_batch, "rate": rate})
            self.global_batch += self.log_freq

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.on_batch_end(batch, logs if logs else {})


Wandb.__name__ = "WandbMetricsLogger"


def tqdm_like(bar: list[dict[str, float]]) -> Callable[..., None]:
    def callback(_: int, logs: Any = None) -> None:
        bar.append(dict(logs))

    callback.__module__ = "tqdm.keras"
    return callback


class Tqdm(kc.Callback):
    """As `TqdmCallback` of tqdm 4, which makes its hook by itself."""

    __module__ = "tqdm.keras"

    def __init__(self) -> None:
        self.points: list[dict[str, float]] = []
        self.on_batch_end = tqdm_like(self.points)


Tqdm.__name__ = "TqdmCallback"

LOGGERS: dict[str, Callable[[], Any]] = {
    "wandb by batch": lambda: Wandb("batch"),
    "wandb by three": lambda: Wandb(3),
    "tqdm": Tqdm,
}


@functools.cache
def points_of_keras(name: str) -> list[dict[str, float]]:
    logger = LOGGERS[name]()
    run("keras", logger, rate=decaying())
    return logger.points


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", LOGGERS)
def test_a_logger_gets_every_step_with_its_values_and_its_learning_rate(name: str, route: str):
    expected, logger = points_of_keras(name), LOGGERS[name]()
    run(route, logger, rate=decaying())
    assert len(logger.points) == len(expected) > EPOCHS
    for got, wanted in zip(logger.points, expected, strict=True):
        assert got == pytest.approx(wanted, rel=2e-3, abs=1e-5)


def test_a_logger_counts_on_when_a_run_is_resumed(tmp_path: Path):
    class Interrupt(kc.Callback):
        needs_every_step = True

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if int(self.model.optimizer.iterations.numpy()) == 11:
                raise RuntimeError("killed")

    class Silent(Interrupt):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            """Goes on."""

    Silent.__name__ = "Interrupt"
    options: dict[str, Any] = {"epochs": 2, "save_every": "3 steps", **DATA}
    fit = fitting("supervised", run_dir=tmp_path)
    with pytest.raises(RuntimeError, match="killed"):
        fit(X, Y, callbacks=[Wandb("batch"), Interrupt()], **options)
    logger = Wandb("batch")
    fitting("supervised", run_dir=tmp_path)(X, Y, callbacks=[logger, Silent()], **options)
    assert [point["step"] for point in logger.points] == list(range(9, 2 * STEPS))


def test_steps_without_data_are_recorded_too():
    class Counting(lw.Task):
        def __init__(self) -> None:
            super().__init__()
            self.total = tf.Variable(0.0)
            self.model, self.optimizer = network(), keras.optimizers.SGD(0.1)

        def train_step(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            return {"total": self.total.assign_add(1.0)}

    logger = Wandb("batch")
    lw.Trainer(Counting(), plan="graph").fit(None, until="40 steps", callbacks=[logger], verbose=0)
    means = [(n + 1) / 2 for n in range(1, 41)]  # of 1, 2, ... n
    assert [point["total"] for point in logger.points] == pytest.approx(means)


@pytest.mark.parametrize("plan", ["graph", lw.Plan("graph", "graph", "chunk")], ids=str)
def test_a_stream_whose_end_is_unknown_is_counted_right(
    plan: Any, files_of_keras: Path, tmp_path: Path
):
    stream = tf.data.Dataset.from_tensor_slices((X, Y)).batch(10).filter(lambda *_: True)
    board = kc.TensorBoard(tmp_path, update_freq=5)
    fitting("supervised", plan=plan)(stream, epochs=EPOCHS, callbacks=[board], verbose=0)
    assert_same(scalars(tmp_path), board_of_keras(5, files_of_keras))


@pytest.mark.parametrize("on_nan", ["skip", "rollback"])
def test_batches_that_are_left_out_are_counted_as_steps(on_nan: Any, tmp_path: Path):
    poisoned = X.copy()
    poisoned[52] = np.nan
    board = kc.TensorBoard(tmp_path / "board", update_freq=1)
    run_dir = tmp_path / "run" if on_nan == "rollback" else None
    fit = fitting("supervised", on_nan=on_nan, run_dir=run_dir)
    fit(poisoned, Y, epochs=2, callbacks=[board, Tqdm()], save_every="2 steps", **DATA)
    steps = [step for step, _ in scalars(tmp_path / "board")["batch_loss"]]
    assert set(steps) == {*range(1, 2 * STEPS + 1)}
    assert board._global_train_batch == 2 * STEPS
    assert np.isfinite([value for _, value in scalars(tmp_path / "board")["batch_loss"]]).all()


@pytest.mark.parametrize("plan", ["graph", "fused"])
def test_the_records_of_skipped_batches_are_those_of_steps_run_one_by_one(
    plan: str, tmp_path: Path
):
    poisoned = X.copy()
    poisoned[[2, 52, 53, 62]] = np.nan
    for directory, each in (("loop", plan), ("python", lw.Plan("graph", "python"))):
        board = kc.TensorBoard(tmp_path / directory, update_freq=1)
        fit = fitting("supervised", on_nan="skip", plan=each)
        fit(poisoned, Y, epochs=2, callbacks=[board], **DATA)
    assert_same(scalars(tmp_path / "loop"), scalars(tmp_path / "python"))


def test_several_replicas_record_every_step():
    def make() -> lw.Task:
        return lw.Supervised(network(), **settings(decaying()))

    logger = Wandb("batch")
    trainer = lw.Trainer(make, strategy=mirrored())
    trainer.fit(X, Y, epochs=EPOCHS, callbacks=[logger], **DATA)
    for got, wanted in zip(logger.points, points_of_keras("wandb by batch"), strict=True):
        assert got == pytest.approx(wanted, rel=5e-3, abs=1e-4)


# --- callbacks of one's own ---------------------------------------------------------------------


class Own(kc.Callback):
    """Changes the learning rate after every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches.append(batch)
        self.model.optimizer.learning_rate = 0.2 / (len(self.batches) + 1)


class ByAlias(Own):
    on_train_batch_end = kc.Callback.on_train_batch_end

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        Own.on_train_batch_end(self, batch, logs)


class OnTheInstance(Own):
    on_train_batch_end = kc.Callback.on_train_batch_end

    def __init__(self) -> None:
        super().__init__()
        self.on_batch_end = functools.partial(Own.on_train_batch_end, self)


class Checkpoint(kc.ModelCheckpoint):
    """A known callback with a hook of somebody's own."""

    def __init__(self) -> None:
        super().__init__("never.keras")
        self.batches: list[int] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches.append(batch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Saves nothing."""


@pytest.mark.parametrize("kind", [Own, ByAlias, OnTheInstance, Checkpoint])
def test_a_batch_hook_of_ones_own_is_called_after_every_step(kind: Any):
    callback = kind()
    run("supervised", callback, plan="fused")
    assert callback.batches == [*range(STEPS)] * EPOCHS


def test_a_learning_rate_set_after_every_batch_counts_from_the_next_step_on():
    weights = []
    for route in ("keras", "supervised"):
        callback = Own()
        run(route, callback)
        weights.append(callback.model.get_weights())
    for got, wanted in zip(*weights, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-5)


def test_what_a_batch_hook_costs_is_said_once_with_the_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    heard = []
    fit = fitting("supervised", run_dir=tmp_path, sinks=[heard.append])
    fit(X, Y, epochs=2, callbacks=[Own()], **(DATA | {"verbose": 2}))
    (note,) = [event for event in heard if isinstance(event, lw.Noted)]
    assert "Own overrides on_train_batch_end" in note.text
    assert "needs_every_step = False" in note.text
    for text in (capsys.readouterr().out, (tmp_path / "train.log").read_text()):
        assert text.count("Own overrides on_train_batch_end") == 1


@pytest.mark.parametrize("callback", [kc.EarlyStopping("loss"), kc.TensorBoard, Tqdm])
def test_nothing_is_said_about_callbacks_that_cost_nothing(callback: Any, tmp_path: Path):
    heard = []
    made = callback(tmp_path) if callback is kc.TensorBoard else callback
    made = made() if callback is Tqdm else made
    fitting("supervised", sinks=[heard.append])(X, Y, callbacks=[made], **DATA)
    assert not [event for event in heard if isinstance(event, lw.Noted)]


def test_batches_are_numbered_on_when_a_run_is_resumed_inside_an_epoch(tmp_path: Path):
    class Numbers(kc.Callback):
        def __init__(self, fails_after: int) -> None:
            super().__init__()
            self.begun: list[int] = []
            self.fails_after = fails_after

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.begun.append(batch)
            if len(self.begun) == self.fails_after:
                raise RuntimeError("killed")

    options: dict[str, Any] = {"save_every": "3 steps", **DATA}
    with pytest.raises(RuntimeError, match="killed"):
        fitting("supervised", run_dir=tmp_path)(X, Y, callbacks=[Numbers(5)], **options)
    numbers = Numbers(0)
    fitting("supervised", run_dir=tmp_path)(X, Y, callbacks=[numbers], **options)
    assert numbers.begun == [*range(3, STEPS)]


# --- validation batches -------------------------------------------------------------------------


class TestBatches(kc.Callback):
    __test__ = False

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, int]] = []
        self.losses: list[float] = []

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.calls.append(("begin", batch))

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self.calls.append(("end", batch))
        self.losses.append(logs["loss"])


@pytest.mark.parametrize("route", ROUTES)
def test_test_batch_hooks_are_called_as_in_keras(route: str):
    found = []
    for each in ("keras", route):
        callback = TestBatches()
        held = (X[:25], Y[:25])
        fitting(each)(X, Y, epochs=2, validation_data=held, callbacks=[callback], **DATA)
        found.append(callback)
    expected, ours = found
    assert ours.calls == expected.calls
    np.testing.assert_allclose(ours.losses, expected.losses, rtol=2e-3)


# --- evaluate and predict in a callback ---------------------------------------------------------


class Scores(kc.Callback):
    """Evaluates and predicts in the middle of an epoch and at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Any] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 3:
            self.model.evaluate(X[:30], Y[:30], verbose=0)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        options: dict[str, Any] = {"batch_size": 8, "verbose": 0}
        self.found.append(self.model.evaluate(X[:30], Y[:30], **options))
        self.found.append(list(self.model.evaluate(X[:30], Y[:30], return_dict=True, **options)))
        self.found.append(self.model.predict(X[:30], **options))


def test_evaluate_and_predict_work_in_a_callback_and_do_not_disturb_the_training():
    class AtTheEnd(Scores):
        on_train_batch_end = kc.Callback.on_train_batch_end

    expected, ours = AtTheEnd(), Scores()
    run("keras", expected, epochs=2)
    trainer = lw.Trainer(lw.Supervised(network(), **settings()), plan="graph")
    history = trainer.fit(X, Y, epochs=2, callbacks=[ours], **DATA).history
    alone = lw.Trainer(lw.Supervised(network(), **settings()), plan="graph")
    undisturbed = alone.fit(X, Y, epochs=2, **DATA).history

    for got, wanted in zip(ours.found, expected.found, strict=True):
        if isinstance(wanted[0], str):
            assert sorted(got) == sorted(wanted)
        else:
            np.testing.assert_allclose(got, wanted, rtol=2e-3, atol=1e-4)
    assert history["accuracy"] == undisturbed["accuracy"]
    assert history["loss"] == pytest.approx(undisturbed["loss"], rel=1e-9)
    with pytest.raises(ValueError, match="compile"):  # given back as it was
        trainer.task.model.evaluate(X, Y)


class Two(lw.Task):
    """Two models, and no step to score or predict with."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = network(), network()
        self.optimizer = keras.optimizers.SGD(0.1)

    def train_step(self, batch: Any) -> Any:
        x, _ = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.left(x) - self.right(x) + 1.0))
        self.minimize(loss, [*self.left.trainable_weights], self.optimizer, tape)
        return {"loss": loss}


class Scored(Two):
    def test_step(self, batch: Any) -> Any:
        return {"loss": tf.reduce_mean(self.left(batch[0]))}

    def predict_step(self, batch: Any) -> Any:
        return self.left(batch)


def test_a_task_of_ones_own_scores_and_predicts_with_its_own_steps():
    callback = Scores()
    trainer = lw.Trainer(Scored(), plan="graph")
    trainer.fit(X, Y, callbacks=[callback], **DATA)
    assert callback.found[0] == pytest.approx(trainer.evaluate(X[:30], Y[:30])["loss"], rel=1e-5)
    np.testing.assert_allclose(callback.found[2], trainer.predict(X[:30]), rtol=1e-5)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda model: model.evaluate(X, Y), "Two has no test_step"),
        (lambda model: model.predict(X), "self.callback_model = "),
    ],
)
def test_a_task_that_cannot_score_says_what_is_missing(call: Any, words: str):
    class Calling(kc.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            call(self.model)

    with pytest.raises(lw.LoopwrightError) as caught:
        lw.Trainer(Two(), plan="graph").fit(X, Y, callbacks=[Calling()], **DATA)
    assert words in str(caught.value)
