"""What sinks cannot see for themselves is in the events they receive."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests.tasks import ByHand

import loopwright as lw
from loopwright.fit import observer

X = np.random.default_rng(0).normal(size=(24, 3)).astype("float32")
Y = X[:, :1]
IMAGE = np.zeros((1, 2, 2, 1))


class Painting(ByHand):
    """Shows an image of zeros."""

    def __init__(self, optimizer: Any = None):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        super().__init__(model, optimizer or keras.optimizers.SGD(0.1))

    def images(self) -> dict[str, Any]:
        return {"zeros": IMAGE}


def of(kind: type, events: list[lw.Event]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def test_a_sink_without_a_run_directory_gets_facts_rates_gradients_images_and_history():
    received, halved = list[lw.Event](), keras.callbacks.LearningRateScheduler(lambda e, lr: lr / 2)
    trainer = lw.Trainer(
        Painting(), plan="graph", watch="gradients", sinks=[received.append], seed=7
    )
    seen = list(trainer.events(X, Y, batch_size=8, epochs=2, callbacks=[halved]))
    assert seen == received
    (started,) = of(lw.Started, received)
    facts = started.facts
    expected = {"optimizer": "SGD", "seed": 7, "until": "2 epochs", "batch_size": 8}
    assert facts.hyperparameters.items() >= expected.items()
    assert "Total params" in facts.models
    assert "keras" in facts.environment
    assert any("MatMul" in node.op for node in facts.graph.node)
    rates = [event.learning_rates["learning_rate"] for event in of(lw.EpochEnded, received)]
    assert rates == pytest.approx([0.05, 0.025])
    assert list(of(lw.GradientsWatched, received)[0].gradients) == [
        "model.layers[0].kernel",
        "model.layers[0].bias",
    ]
    assert [event.step for event in of(lw.ImagesDrawn, received)] == [3, 6]
    assert received[-1].history == trainer.history.history  # pyright: ignore


def test_a_rate_is_that_of_the_epoch_and_not_of_the_next_one():
    received = list[lw.Event]()

    class Divides(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.optimizer.learning_rate = 0.1 / 10 ** (epoch + 1)  # pyright: ignore

    trainer = lw.Trainer(Painting(), plan="graph", sinks=[received.append])
    trainer.fit(X, Y, batch_size=8, epochs=2, callbacks=[Divides()], verbose=0)
    rates = [event.learning_rates["learning_rate"] for event in of(lw.EpochEnded, received)]
    assert rates == pytest.approx([0.1, 0.01])


def test_nothing_is_collected_for_nobody(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Painting, "images", lambda self: pytest.fail("nobody receives it"))
    events = list(lw.Trainer(Painting(), plan="graph").events(X, Y, batch_size=8))
    assert of(lw.Started, events)[0].facts is None
    assert of(lw.EpochEnded, events)[0].learning_rates == {}


def test_an_eager_step_is_not_traced_for_its_graph():
    received = list[lw.Event]()
    trainer = lw.Trainer(Painting(), plan="eager", sinks=[received.append])
    trainer.fit(X, Y, batch_size=8, verbose=0)
    assert of(lw.Started, received)[0].facts.graph is None


def test_what_cannot_be_collected_warns_once_and_training_continues(
    monkeypatch: pytest.MonkeyPatch,
):
    class Nameless(keras.optimizers.SGD):
        def get_config(self) -> Any:
            raise ValueError("no config")

    def unreadable(optimizers: Any) -> Any:
        raise ValueError("no rate")

    monkeypatch.setattr(observer, "learning_rates", unreadable)
    received = list[lw.Event]()
    trainer = lw.Trainer(Painting(Nameless(0.1)), plan="graph", sinks=[received.append])
    with pytest.warns(lw.LoopwrightWarning) as warned:
        trainer.fit(X, Y, batch_size=8, epochs=3, verbose=0)
    assert [str(warning.message) for warning in warned] == [
        "The facts of the run could not be collected: ValueError: no config",
        "The learning rates of the run could not be collected: ValueError: no rate",
    ]
    assert of(lw.Started, received)[0].facts is None
    assert received[-1].reason == "complete"  # pyright: ignore


def test_a_rollback_to_the_first_step_keeps_the_hyperparameters_and_the_graph(tmp_path: Path):
    x = X.copy()
    x[:8] = np.nan
    trainer = lw.Trainer(Painting(), run_dir=tmp_path, plan="graph", on_nan="rollback")
    trainer.fit(x, Y, batch_size=8, shuffle=False, verbose=0)
    board = EventAccumulator(str(tmp_path / "tensorboard" / "train")).Reload()
    assert any("MatMul" in node.op for node in board.Graph().node)
    above = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert len(above.PluginTagToContent("hparams")) == 1
    resumed = lw.Trainer(Painting(), run_dir=tmp_path, plan="graph", on_nan="rollback")
    resumed.fit(x, Y, batch_size=8, shuffle=False, epochs=2, verbose=0)
    above = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert len(above.PluginTagToContent("hparams")) == 1
