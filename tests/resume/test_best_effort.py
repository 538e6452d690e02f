"""exact="best_effort": training that cannot be resumed exactly still resumes, and says so."""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import loopwright as lw

EXAMPLES, BATCH, STEPS = 12, 2, 6
WHY = "not exactly resumable: "


@pytest.fixture(autouse=True)
def _no_seed_for_all() -> None:
    """Other tests set one, and then no shuffle is without."""
    tf.random.set_seed(None)


class Counting(lw.Task):
    """Counts how often it has seen each example; an example is its number."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = tf.Variable(1.0)
        self.seen = tf.Variable(tf.zeros(EXAMPLES), trainable=False)
        self.optimizer = keras.optimizers.SGD(0.001)

    def train_step(self, batch: Any) -> Any:
        numbers = tf.cast(batch, tf.int32)
        self.seen.scatter_nd_add(numbers[:, None], tf.ones_like(batch, tf.float32))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.weight * tf.cast(batch, tf.float32) - self.noise()) ** 2)
        self.minimize(loss, [self.weight], self.optimizer, tape)
        return {"loss": loss, "number": tf.reduce_mean(tf.cast(batch, tf.float32))}

    def noise(self) -> Any:
        return 1.0


class DrawsStatefully(Counting):
    def noise(self) -> Any:
        return tf.random.normal(())


class DrawsFromKeras(Counting):
    def noise(self) -> Any:
        return keras.random.normal(())


class DrawsInPython(Counting):
    def noise(self) -> Any:
        return float(np.random.default_rng().normal())


class Rows(keras.utils.PyDataset):
    """Batches by number."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = np.arange(EXAMPLES, dtype="int64")

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> Any:
        return self.numbers[BATCH * index : BATCH * (index + 1)]


class Reshuffles(Rows):
    def __init__(self) -> None:
        super().__init__()
        np.random.default_rng().shuffle(self.numbers)

    def on_epoch_end(self) -> None:
        np.random.default_rng().shuffle(self.numbers)


class Augments(Rows):
    """Adds a little noise to each batch."""

    def __getitem__(self, index: int) -> Any:
        numbers = super().__getitem__(index)
        return numbers + np.random.default_rng().normal(scale=1e-3, size=numbers.shape)


def numbers() -> Any:
    return tf.data.Dataset.range(EXAMPLES)


def unseeded() -> Any:
    return numbers().shuffle(EXAMPLES).batch(BATCH)


def generated() -> Any:
    signature = tf.TensorSpec((), tf.int64)  # type: ignore[call-arg]
    made = tf.data.Dataset.from_generator(lambda: range(EXAMPLES), output_signature=signature)
    return made.batch(BATCH)


def yielded() -> Iterator[Any]:
    while True:
        yield from np.arange(EXAMPLES).reshape(STEPS, BATCH)


SOURCES: dict[str, tuple[Callable[[], Any], str]] = {
    "an unseeded shuffle": (unseeded, "shuffle() has no seed"),
    "from_generator": (generated, "it calls Python code"),
    "a reshuffling PyDataset": (Reshuffles, "Reshuffles.on_epoch_end may change"),
    "an augmenting PyDataset": (Augments, "Augments returns a different batch"),
    "a generator": (yielded, "a generator"),
}
STEPS_THAT_DRAW: dict[str, tuple[type[Counting], str, str]] = {
    "tf.random": (DrawsStatefully, "graph", "tf.random.normal"),
    "keras.random": (DrawsFromKeras, "graph", "seed_generator_state"),
    "NumPy": (DrawsInPython, "eager", "that Python computes again"),
}


def trainer_in(run_dir: Path, task: Callable[[], Counting] = Counting, **options: Any) -> Any:
    return lw.Trainer(task(), run_dir=run_dir, **{"plan": "graph", **options})


def broken_down(run_dir: Path, data: Any, at_step: int, **options: Any) -> Any:
    """Trains until an exception after a step; a new trainer for the same run."""
    trainer = trainer_in(run_dir, exact="best_effort")
    with contextlib.suppress(ZeroDivisionError):
        for event in trainer.events(data, save_every="1 steps", **options):
            if isinstance(event, lw.Trained) and event.step == at_step:
                raise ZeroDivisionError
        pytest.fail("the training did not break down")
    return trainer_in(run_dir, exact="best_effort")


def notes_of(run_dir: Path) -> list[str]:
    lines = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return [line["text"] for line in lines if line["event"] == "noted"]


@pytest.mark.parametrize(("make", "why"), SOURCES.values(), ids=SOURCES)
def test_data_that_cannot_be_resumed_exactly_is_refused_with_the_way_out(
    tmp_path: Path, make: Callable[[], Any], why: str
):
    for exact in ("warn", "require"):
        with pytest.raises(lw.ConfigurationError) as caught:
            trainer_in(tmp_path, exact=exact).fit(make(), steps_per_epoch=STEPS, verbose=0)
        text = str(caught.value)
        assert why in text
        assert 'exact="best_effort"' in text.partition("do: ")[2]
        assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize(("task", "plan", "why"), STEPS_THAT_DRAW.values(), ids=STEPS_THAT_DRAW)
def test_a_step_that_cannot_be_resumed_exactly_is_refused_and_trains_with_best_effort(
    tmp_path: Path, task: type[Counting], plan: str, why: str
):
    with pytest.raises(lw.StepError) as caught:
        trainer_in(tmp_path / "refused", task, plan=plan).fit(Rows(), verbose=0)
    assert why in str(caught.value)
    assert 'exact="best_effort"' in str(caught.value).partition("do: ")[2]
    for epochs in (1, 2):
        trainer = trainer_in(tmp_path / "run", task, plan=plan, exact="best_effort")
        assert len(trainer.fit(Rows(), epochs=epochs, verbose=0).history["loss"]) == epochs
    assert trainer.task.seen.numpy().tolist() == [2.0] * EXAMPLES
    notes = [note for note in notes_of(tmp_path / "run") if note.startswith(WHY)]
    assert len(notes) == 2
    assert all(why in note for note in notes)


def test_a_variable_that_the_task_does_not_hold_is_refused_whatever_is_asked(tmp_path: Path):
    outside = tf.Variable(1.0)

    class Leaks(Counting):
        def noise(self) -> Any:
            return outside.assign_add(keras.random.normal(()))

    with pytest.raises(lw.StepError, match="does not hold") as caught:
        trainer_in(tmp_path, Leaks, exact="best_effort").fit(Rows(), verbose=0)
    assert "best_effort" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "at_step"), [(unseeded, 3), (Reshuffles, STEPS)], ids=["unseeded", "at its end"]
)
def test_an_epoch_goes_on_and_loses_no_example_where_it_need_not_be_restarted(
    tmp_path: Path, make: Callable[[], Any], at_step: int
):
    options: Any = {"epochs": 2, "verbose": 0}
    resumed = broken_down(tmp_path, make(), at_step, **options)
    assert resumed.fit(make(), **options).epoch_steps == [6, 12]
    assert resumed.task.seen.numpy().tolist() == [2.0] * EXAMPLES
    assert not [note for note in notes_of(tmp_path) if "restarting" in note]


@pytest.mark.parametrize("make", [generated, Reshuffles], ids=["unknown length", "known length"])
def test_a_source_that_cannot_be_saved_starts_the_interrupted_epoch_again(
    tmp_path: Path, make: Callable[[], Any]
):
    options: Any = {"epochs": 3, "verbose": 0}
    resumed = broken_down(tmp_path, make(), 9, **options)
    history = resumed.fit(make(), **options)
    assert resumed.task.step == 9 + 2 * STEPS
    assert history.epoch_steps == [6, 15, 21]
    # The means are those of whole epochs: nothing of the three steps before is in them.
    assert history.history["number"] == pytest.approx([5.5, 5.5, 5.5])
    assert resumed.task.seen.numpy().sum() == EXAMPLES * 3 + 3 * BATCH
    assert resumed.task.seen.numpy().min() == 3.0
    assert "restarting epoch 2: the data source cannot be saved" in notes_of(tmp_path)


def test_an_epoch_may_be_started_again_more_than_once(tmp_path: Path):
    options: Any = {"epochs": 2, "verbose": 0}
    broken_down(tmp_path, Reshuffles(), 8, **options)
    resumed = broken_down(tmp_path, Reshuffles(), 12, **options)
    history = resumed.fit(Reshuffles(), **options)
    assert history.epoch_steps == [6, 18]
    assert resumed.task.seen.numpy().min() == 2.0
    again = trainer_in(tmp_path, exact="best_effort")
    assert again.fit(Reshuffles(), **options).epoch_steps == [6, 18]  # finished, so skipped
    further = again.fit(Reshuffles(), **options)
    assert further.epoch_steps == [24, 30]


def test_a_stream_without_end_is_read_from_its_beginning_and_says_so(tmp_path: Path):
    options: Any = {"epochs": 2, "steps_per_epoch": 3, "verbose": 0}
    trainer_in(tmp_path, exact="best_effort").fit(yielded(), **{**options, "epochs": 1})
    resumed = trainer_in(tmp_path, exact="best_effort")
    resumed.fit(yielded(), **options)
    assert resumed.task.seen.numpy().tolist() == [2.0] * 6 + [0.0] * 6
    assert (
        "epoch 2 reads the data source from its beginning: its position cannot be saved"
        in notes_of(tmp_path)
    )


def test_a_pydataset_that_augments_goes_on_with_the_next_index(tmp_path: Path):
    class ByIndex(Augments):
        read: list[int] = []  # noqa: RUF012

        def __getitem__(self, index: int) -> Any:
            self.read.append(index)
            return super().__getitem__(index)

    options: Any = {"epochs": 1, "shuffle": False, "verbose": 0}
    resumed = broken_down(tmp_path, ByIndex(), 4, **options)
    ByIndex.read.clear()
    assert resumed.fit(ByIndex(), **options).epoch_steps == [6]
    assert ByIndex.read[-2:] == [4, 5]


def test_a_run_that_was_mended_is_exact_from_then_on_and_its_report_remembers(tmp_path: Path):
    class Mended(Rows):
        """The same class after an edit."""

    Mended.__name__ = "Reshuffles"
    broken_down(tmp_path, Reshuffles(), 9, epochs=2, verbose=0)
    history = trainer_in(tmp_path).fit(Mended(), epochs=2, verbose=0)
    assert history.epoch_steps == [6, 15]
    assert WHY in (tmp_path / "report.html").read_text()


def test_the_report_and_the_checkpoints_say_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    trainer_in(tmp_path, exact="best_effort").fit(unseeded(), verbose=2)
    assert f"note: {WHY}shuffle() has no seed" in capsys.readouterr().out
    assert f"{WHY}shuffle() has no seed" in (tmp_path / "report.html").read_text()
    status = json.loads((tmp_path / "status.json").read_text())
    assert status["not_exactly_resumable"] == ["shuffle() has no seed: pass seed=1"]


def test_training_that_can_be_resumed_exactly_stays_so_with_best_effort(tmp_path: Path):
    resumed = broken_down(tmp_path, Rows(), 4, epochs=2, verbose=0)
    assert resumed.fit(Rows(), epochs=2, verbose=0).epoch_steps == [6, 12]
    assert resumed.task.seen.numpy().tolist() == [2.0] * EXAMPLES
    assert not notes_of(tmp_path)
    assert "exactly resumable" not in (tmp_path / "report.html").read_text()
    assert "not_exactly_resumable" not in json.loads((tmp_path / "status.json").read_text())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"exact": "best_effort", "on_nan": "rollback"}, r'(?s)rollback.*on_nan="skip"'),
        ({"exact": "sometimes"}, "best_effort"),  # which is known
    ],
)
def test_what_exact_resume_rules_out_is_refused(tmp_path: Path, options: Any, words: str):
    with pytest.raises(lw.ConfigurationError, match=words):
        trainer_in(tmp_path, **options).fit(unseeded(), verbose=0)


def test_assert_resumes_exactly_says_why_it_cannot():
    with pytest.raises(AssertionError, match=r"^not exactly resumable: shuffle\(\) has no seed"):
        lw.testing.assert_resumes_exactly(
            lambda run_dir: trainer_in(run_dir, exact="best_effort"), unseeded(), epochs=1
        )
