"""Names of Keras and Lightning are answered with what Loopwright has instead."""

import inspect
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import loopwright as lw

X, Y = np.ones((8, 2), "float32"), np.ones((8, 1), "float32")


def supervised() -> lw.Supervised:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    return lw.Supervised(model, "mse", "sgd")


@pytest.mark.parametrize(
    ("method", "name", "value", "instead"),
    [
        ("fit", "max_epochs", 10, "fit(epochs=10)"),
        ("fit", "seed", 3, "Trainer(seed=3)"),
        ("fit", "initial_epoch", 2, "Trainer(run_dir=...) resumes by itself"),
        ("fit", "validation_freq", 2, 'fit(validate_every="2 epochs")'),
        ("fit", "validation_batch_size", 64, "fit(validation_data=dataset.batch(64))"),
        ("fit", "workers", 4, "keras.utils.PyDataset"),
        ("fit", "use_multiprocessing", True, "keras.utils.PyDataset"),
        ("fit", "ckpt_path", "last", "Trainer(run_dir=...)"),
        ("fit", "val_dataloaders", [X], "fit(data, validation_data=...)"),
        ("fit", "epoch", 3, "epochs"),
        ("fit", "batchsize", 3, "batch_size"),
        ("__init__", "max_epochs", 10, "fit(epochs=10)"),
        ("__init__", "gradient_clip_val", 0.5, "global_clipnorm=0.5"),
        ("__init__", "accumulate_grad_batches", 4, "gradient_accumulation_steps=4"),
        ("__init__", "accelerator", "gpu", 'strategy="auto"'),
        ("__init__", "devices", 2, 'strategy="auto"'),
        ("__init__", "precision", "16-mixed", "keras.config.set_dtype_policy"),
        ("__init__", "logger", object(), "sinks=["),
        ("__init__", "val_check_interval", 100, 'validate_every="100 steps"'),
        ("__init__", "limit_train_batches", 7, "steps_per_epoch=7"),
        ("__init__", "rundir", "runs/a", "run_dir"),
        ("replay", "bundle", True, 'batch.save("batch.npz")'),
        ("rehearse", "export", True, 'checkpoint="current"'),
        ("export", "validation_data", True, "export(data=...)"),
    ],
)
def test_an_argument_that_is_not_taken_names_what_to_use(method, name, value, instead):
    is_made = method != "__init__"
    call: Any = getattr(lw.Trainer(supervised()), method) if is_made else lw.Trainer
    with pytest.raises(TypeError) as refused:
        call(**{name: value})
    first, expected, received, do = str(refused.value).splitlines()
    assert first.startswith(f"Trainer.{method}() got an unexpected keyword argument ")
    assert first.endswith(repr(name))
    assert instead in expected
    assert received.startswith(f"  received: {name}=")
    assert do == "  do: replace it"


def test_an_unknown_argument_that_is_like_no_other_lists_those_that_there_are():
    trainer: Any = lw.Trainer(supervised())
    with pytest.raises(TypeError, match=r"expected: self, x, batch_size, steps[^?]*do: leave it"):
        trainer.predict(X, zebra=1)
    with pytest.raises(TypeError, match="evaluate always returns a dict"):
        trainer.evaluate(X, Y, return_dict=True)


def test_the_signatures_are_shown_as_they_are_written():
    assert "run_dir" in inspect.signature(lw.Trainer).parameters
    assert "checkpoint" in inspect.signature(lw.Trainer.evaluate).parameters


def test_no_epochs_are_answered_with_what_does_not_train():
    with pytest.raises(lw.ConfigurationError, match=r"(?s)epochs=0.*trainer\.evaluate"):
        lw.Trainer(supervised()).fit(X, Y, epochs=0)


class FromLightning(lw.Task):
    def __init__(self) -> None:
        super().__init__()
        self.model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        self.optimizer = keras.optimizers.SGD(0.1)

    def forward(self, x: Any) -> Any:
        return self.model(x)

    def training_step(self, batch: Any, index: int) -> Any:
        return tf.reduce_mean(self.model(batch[0]))

    def configure_optimizers(self) -> Any:
        return keras.optimizers.SGD()


def test_hooks_of_lightning_are_named_when_the_trainer_is_made():
    with pytest.warns(lw.LoopwrightWarning) as given:
        trainer = lw.Trainer(FromLightning())
    texts = [str(one.message) for one in given]
    hooks = ("training_step", "configure_optimizers", "forward")
    assert [text.split()[0] for text in texts] == [f"FromLightning.{hook}" for hook in hooks]
    assert "train_step(self, batch), which calls self.minimize(...)" in texts[0]
    with pytest.raises(lw.MissingStepError, match="has no train_step"):
        trainer.fit(X, Y)


class CallsItsOwn(FromLightning):
    """Its own methods call those hooks, so nothing is forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.optimizer = self.configure_optimizers()

    def train_step(self, batch: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = self.training_step(batch, 0) + tf.reduce_mean(self.forward(batch[0]))
        self.minimize(loss, self.model, self.optimizer, tape)
        self.log("loss", loss)  # pyright: ignore[reportAttributeAccessIssue]
        return {"loss": loss}


def test_self_log_in_a_step_says_to_return_the_numbers():
    trainer = lw.Trainer(CallsItsOwn(), plan="graph")  # without a warning: those are errors
    with pytest.raises(AttributeError, match=r"numbers that the step returns: return \{"):
        trainer.fit(X, Y, verbose=0)


def test_an_attribute_error_inside_a_property_of_a_task_is_not_hidden():
    class Task(lw.Task):
        @property
        def width(self) -> int:
            return self.model.units  # pyright: ignore[reportAttributeAccessIssue]

    task: Any = Task()
    with pytest.raises(AttributeError, match="has no attribute 'model'"):
        _ = task.width
    with pytest.raises(AttributeError, match="'Task' object has no attribute 'depth'"):
        _ = task.depth
