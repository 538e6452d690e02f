"""Swiss roll, with and without a reconstruction loss: a model that adds its own loss.

    loopwright train examples/swissroll.py

A deep, narrow regressor learns from 3,000 points in space where they lie along the roll. The second
model has an additional layer that reconstructs the point from the last hidden layer; the model adds
the reconstruction error to its loss and reports it as a metric.

What to look at: the four panels. Both models are trained in the same step on the same batches, so
the curves differ only because of the added loss.
"""

from typing import Any, final

import keras
import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure
from sklearn.datasets import make_swiss_roll

import figures
import loopwright as lw
from loopwright.components.models import ReconstructionRegressor

TITLES = {"plain": "without reconstruction loss", "rebuilding": "with reconstruction loss"}


def load() -> tuple[Any, Any]:
    """Return 3,000 points and their positions along the roll."""
    points, along = make_swiss_roll(3000, noise=0.3, random_state=0)
    return points.astype("float32"), along.astype("float32")[:, None]


@final
class Comparison(lw.Task):
    """Both regressors, trained on the same batches."""

    def __init__(self) -> None:
        super().__init__()
        self.models = {
            "plain": ReconstructionRegressor(reconstruction_weight=0.0),
            "rebuilding": ReconstructionRegressor(reconstruction_weight=0.05),
        }
        self.optimizers = {name: keras.optimizers.Nadam() for name in self.models}
        # Metrics that are attributes of the task are reset each epoch and reported.
        self.rebuilding_error = self.models["rebuilding"].reconstruction_loss

    def train_step(self, batch: Any) -> dict[str, Any]:
        """Compute a loss and an update for each model."""
        x, y = batch
        losses = {}
        for name, model in self.models.items():
            with tf.GradientTape() as tape:
                losses[name] = tf.reduce_mean(tf.square(y - model(x, training=True)))
                losses[name] += sum(model.losses)
            self.minimize(losses[name], model, self.optimizers[name], tape)
        return losses

    def test_step(self, batch: Any) -> dict[str, Any]:
        """Return the same losses, and the squared errors alone, which are comparable."""
        x, y = batch
        errors = {name: tf.reduce_mean(tf.square(y - m(x))) for name, m in self.models.items()}
        losses = {name: errors[name] + sum(m.losses) for name, m in self.models.items()}
        return losses | {f"{name}_mse": error for name, error in errors.items()}

    def predict_step(self, batch: Any) -> Any:
        """Return the predictions of both models."""
        return {name: model(batch) for name, model in self.models.items()}

    def exports(self) -> dict[str, keras.Model]:
        """Return both models by name."""
        return dict(self.models)


def make_task(*, seed: int = 0) -> Comparison:
    """Return the task."""
    keras.utils.set_random_seed(seed)
    return Comparison()


def draw_data(points: Any, along: Any) -> Figure:
    """Draw the roll, coloured by the label."""
    figure = Figure(figsize=(6, 5.2), layout="constrained")
    _roll(figure.add_subplot(projection="3d"), points, along, "The swiss roll")
    return figure


def draw_panels(history: dict[str, list[float]], points: Any, predicted: Any) -> Figure:
    """Draw learning curves above and predictions below, without and with reconstruction."""
    figure = Figure(figsize=(9, 8), layout="constrained")
    for number, (name, title) in enumerate(TITLES.items(), 1):
        axes = figure.add_subplot(2, 2, number)
        figures.plot_epochs(axes, {"training": history[name]}, color="b")
        figures.plot_epochs(axes, {"validation": history[f"val_{name}"]}, color="r")
        axes.set(title=title.capitalize(), ylabel="loss", yscale="log", ylim=(0.1, 120))
        axes.legend()
        below = figure.add_subplot(2, 2, number + 2, projection="3d")
        _roll(below, points, predicted[name], f"Prediction {title}")
    return figure


def _roll(axes: Any, points: Any, colours: Any, title: str) -> None:
    axes.view_init(7, -80)
    axes.set_box_aspect(None, zoom=1.0)
    axes.set_yticks([0, 20])
    axes.scatter(*points.T, c=colours[:, 0], s=5, vmin=4.7, vmax=14.2)
    axes.set(title=title, xlabel="$x_1$", ylabel="$x_2$", zlabel="$x_3$")


def experiment(*, quick: bool = False) -> lw.Experiment:
    """Return the experiment: 20 epochs, quick 6; the last fifth of the points is held out."""
    points, along = load()
    test = points[len(points) * 4 // 5 :], along[len(points) * 4 // 5 :]

    def conclude(trainer: lw.Trainer, run_dir: str | None) -> dict[str, float]:
        scores, predicted = trainer.evaluate(*test), trainer.predict(points)
        figures.save(draw_data(points, along), run_dir, "data")
        figures.save(draw_panels(trainer.history.history, points, predicted), run_dir, "panels")
        for name, title in TITLES.items():
            print(f"held-out points, {title}: mean squared error {scores[f'{name}_mse']:.3f}")
        print(f"all labels have a variance of {np.var(along):.3f}")
        return scores

    fit = {"x": points, "y": along, "validation_split": 0.2, "batch_size": 32}
    return lw.Experiment(
        make_task,
        fit={**fit, "epochs": 6 if quick else 20, "save_every": "1 epoch"},
        test=test,
        conclude=conclude,
    )
