"""Hand-written step on random batches: regression with mean absolute error and L2.

    loopwright train examples/regression.py

What to look at: the step draws its own batches, with replacement, from a seed that the task owns,
so `fit` gets no data and the run still resumes bit by bit. The error on held-out data falls below
5 % of its initial value. It would stay flat if the labels had the shape (32,) instead of (32, 1):
their difference to the predictions would be a (32, 32) matrix. Loopwright refuses that if labels
come with the batch; here the step reads them itself, and `load` adds the second axis.
"""

from typing import Any, final

import keras
import tensorflow as tf
from matplotlib.figure import Figure
from sklearn.datasets import make_regression
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

import figures
import loopwright as lw

BATCH_SIZE = 32


def load() -> dict[str, Any]:
    """Return 1,500 examples to train on and 500 to test; the scaler is fit on the former only."""
    x, y = make_regression(
        n_samples=2000, n_features=5, n_informative=5, n_targets=1, noise=0, random_state=0
    )
    y = y.astype("float32")[:, None]
    x_train, x_test, y_train, y_test = train_test_split(x, y, random_state=0)
    scaler = StandardScaler().fit(x_train)
    return {
        "train": (scaler.transform(x_train).astype("float32"), y_train),
        "test": (scaler.transform(x_test).astype("float32"), y_test),
    }


def make_model() -> keras.Model:
    """Return a model with one hidden layer and L2 on both layers."""
    l2 = keras.regularizers.L2(0.05)
    hidden = keras.layers.Dense(
        30, activation="elu", kernel_initializer="he_normal", kernel_regularizer=l2
    )
    return keras.Sequential(
        [keras.Input((5,)), hidden, keras.layers.Dense(1, kernel_regularizer=l2)]
    )


@final
class Regression(lw.Task):
    """A task whose step takes no batch, but draws one."""

    def __init__(self, model: keras.Model, x: Any, y: Any, optimizer: Any = None) -> None:
        super().__init__()
        self.model, self.optimizer = model, optimizer or keras.optimizers.Nadam(0.01)
        self.mae = keras.metrics.MeanAbsoluteError(name="mae")
        self.seed = keras.random.SeedGenerator(0)
        self._x, self._y = tf.constant(x), tf.constant(y)

    def train_step(self) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Draw a batch, predict, add the layers' losses, update."""
        rows = keras.random.randint((BATCH_SIZE,), 0, len(self._x), seed=self.seed)
        x, y = tf.gather(self._x, rows), tf.gather(self._y, rows)
        with tf.GradientTape() as tape:
            predictions = self.model(x, training=True)
            error = tf.reduce_mean(tf.abs(y - predictions))
            l2 = tf.add_n(self.model.losses)
            loss = error + l2
        self.minimize(loss, self.model, self.optimizer, tape)
        self.mae.update_state(y, predictions)
        return {"loss": loss, "l2": l2}

    def test_step(self, batch: Any) -> dict[str, Any]:
        """Score the error only: L2 is part of the training loss, not of the result."""
        x, y = batch
        self.mae.update_state(y, self.model(x, training=False))
        return {}


def make_task(*, seed: int = 0, optimizer: Any = None) -> Regression:
    """Return the task with its training data."""
    keras.utils.set_random_seed(seed)
    x, y = load()["train"]
    return Regression(make_model(), x, y, optimizer)


def draw_data(x: Any, y: Any) -> Figure:
    """Draw the five columns in a plane, by PCA and t-SNE, coloured by the label."""
    reduced = PCA(n_components=0.95, random_state=0).fit_transform(x)
    # For few points, the exact method is faster than the approximation with its threads.
    method = "exact" if len(x) < 500 else "barnes_hut"
    plane = TSNE(n_components=2, random_state=0, method=method).fit_transform(reduced)
    figure = Figure(figsize=(6.4, 5), layout="constrained")
    axes = figure.subplots()
    points = axes.scatter(*plane.T, c=y[:, 0], s=14)
    axes.set(title="The training data: PCA, then t-SNE", xlabel="$z_1$", ylabel="$z_2$")
    figure.colorbar(points, label="label y")
    return figure


def draw_errors(history: dict[str, list[float]], at_start: float) -> Figure:
    """Draw the error of each epoch, on training and on held-out data."""
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.subplots()
    curves = {"training batches": history["mae"], "held-out data": history["val_mae"]}
    figures.plot_epochs(axes, curves)
    axes.axhline(0.05 * at_start, color="grey", linestyle=":", label="5 % of the start")
    axes.set(title="The error falls", ylabel="mean absolute error", yscale="log")
    axes.legend()
    return figure


def experiment(*, quick: bool = False) -> lw.Experiment:
    """Return the experiment: 60 epochs, quick 10; the score is the error on held-out data."""
    data = load()
    x, y = data["train"]

    def conclude(trainer: lw.Trainer, run_dir: str | None) -> dict[str, float]:
        mae = trainer.evaluate(*data["test"])["mae"]
        at_start = lw.Trainer(make_task()).evaluate(*data["test"])["mae"]
        figures.save(draw_errors(trainer.history.history, at_start), run_dir, "errors")
        if run_dir is not None:
            figures.save(draw_data(*((x[:150], y[:150]) if quick else (x, y))), run_dir, "data")
        print(f"test: mae {mae:.3f}, {mae / at_start:.1%} of the {at_start:.1f} at the start")
        return {"mae": mae, "mae_at_start": at_start}

    fit = {"validation_data": data["test"], "steps_per_epoch": len(x) // BATCH_SIZE}
    return lw.Experiment(
        make_task,
        fit={**fit, "epochs": 10 if quick else 60, "save_every": "1 epoch"},
        test=data["test"],
        conclude=conclude,
    )
