"""Wide and deep: one model with two paths and two optimizers, on real weather.

    loopwright train examples/wide_and_deep.py

It predicts the temperature in twelve hours at three New York airports. The wide path has one weight
per combination of airport, month and hour: it learns the usual temperature. The deep path is a
small network on the current weather: it learns the deviation. The prediction is their sum.

What to look at: FTRL trains the wide path and Adam the deep one, on one loss. For comparison, each
path alone is trained in the same step and on the same batches, and has a larger error.
"""

from typing import Any, final

import keras
import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure

import figures
import loopwright as lw

AHEAD_HOURS = 12
MONTHS, HOURS = 12, 24
NAMES = {"both": "wide and deep", "wide": "wide alone", "deep": "deep alone"}


def load() -> dict[str, Any]:
    """Return inputs and labels, split by date: test days are from the 24th of each month."""
    hours, values = figures.read_weather()
    now, later = values[:, :-AHEAD_HOURS, :4], values[:, AHEAD_HOURS:, :1]
    times = hours[:-AHEAD_HOURS]
    month = times.astype("datetime64[M]").astype(int) % MONTHS
    hour = times.astype(int) % HOURS
    airport = np.arange(len(figures.AIRPORTS))[:, None]
    combination = ((airport * MONTHS + month) * HOURS + hour).astype("int32")
    day = (times.astype("datetime64[D]") - times.astype("datetime64[M]")).astype(int) + 1
    is_whole = ~np.isnan(now).any(-1) & ~np.isnan(later).any(-1)
    # No training example overlaps a test day in time, and vice versa.
    train, test = is_whole & (day >= 2) & (day < 23), is_whole & (day >= 24)
    mean, deviation = now[train].mean(0), now[train].std(0)
    standard = (now - mean) / deviation

    def part(mask: Any) -> tuple[dict[str, Any], Any]:
        return {"wide": combination[mask], "deep": standard[mask]}, later[mask]

    return {"train": part(train), "test": part(test), "now": now[test][:, :1]}


@final
class WideAndDeep(keras.Model):
    """The sum of two paths; either can be disabled."""

    def __init__(self, *, wide: bool = True, deep: bool = True) -> None:
        super().__init__()
        combinations = len(figures.AIRPORTS) * MONTHS * HOURS
        self.wide = keras.layers.Embedding(combinations, 1, "zeros") if wide else None
        hidden = [keras.layers.Dense(64, "relu"), keras.layers.Dense(64, "relu")]
        self.deep = keras.Sequential([*hidden, keras.layers.Dense(1)]) if deep else None

    def call(self, x: Any) -> Any:
        """Return the temperature in °C."""
        paths = [path(x[name]) for name in ("wide", "deep") if (path := getattr(self, name))]
        return tf.add_n(paths)


@final
class Comparison(lw.Task):
    """The whole model and each path alone, trained on the same batches."""

    def __init__(self) -> None:
        super().__init__()
        self.models = {
            "both": WideAndDeep(),
            "wide": WideAndDeep(deep=False),
            "deep": WideAndDeep(wide=False),
        }
        self.wide_optimizers = {name: keras.optimizers.Ftrl(3.0) for name in ("both", "wide")}
        self.deep_optimizers = {name: keras.optimizers.Adam(1e-3) for name in ("both", "deep")}

    def train_step(self, batch: Any) -> dict[str, Any]:
        """Compute one loss per model and one update per path."""
        x, y = batch
        losses = {}
        for name, model in self.models.items():
            with tf.GradientTape(persistent=True) as tape:
                losses[name] = tf.reduce_mean(tf.square(y - model(x, training=True)))
            if model.wide:
                self.minimize(losses[name], model.wide, self.wide_optimizers[name], tape)
            if model.deep:
                self.minimize(losses[name], model.deep, self.deep_optimizers[name], tape)
        return losses

    def test_step(self, batch: Any) -> dict[str, Any]:
        """Return the mean absolute error of each model in °C."""
        x, y = batch
        return {name: tf.reduce_mean(tf.abs(y - m(x))) for name, m in self.models.items()}

    def exports(self) -> dict[str, keras.Model]:
        """Return all three models by name."""
        return dict(self.models)


def make_task(*, seed: int = 0) -> Comparison:
    """Return the task."""
    keras.utils.set_random_seed(seed)
    return Comparison()


def draw(history: dict[str, list[float]], persistence: float) -> Figure:
    """Draw the error of the three models on the test days, by epoch."""
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.subplots()
    figures.plot_epochs(axes, {title: history[f"val_{name}"] for name, title in NAMES.items()})
    axes.axhline(persistence, color="grey", linestyle=":", label="as warm as now")
    axes.set(title=f"The temperature in {AHEAD_HOURS} hours, on test days")
    axes.set(ylabel="mean absolute error (°C)", ylim=(0, None))
    axes.legend()
    return figure


def experiment(*, quick: bool = False) -> lw.Experiment:
    """Return the experiment: 20 epochs, quick 3; the scores are errors on the test days."""
    data = load()
    x, y = data["train"]

    def conclude(trainer: lw.Trainer, run_dir: str | None) -> dict[str, float]:
        errors = trainer.evaluate(*data["test"])
        persistence = float(np.mean(np.abs(data["test"][1] - data["now"])))
        figures.save(draw(trainer.history.history, persistence), run_dir, "errors")
        for name, error in {**errors, "as warm as now": persistence}.items():
            print(f"test: {NAMES.get(name, name):14} {error:.2f} °C")
        return errors

    fit = {"x": x, "y": y, "validation_data": data["test"], "batch_size": 64}
    return lw.Experiment(
        make_task,
        fit={**fit, "epochs": 3 if quick else 20, "save_every": "1 epoch"},
        test=data["test"],
        conclude=conclude,
    )
