"""Gaps in time series, filled by reconstruction loss, adversarial loss, or both.

    loopwright train examples/imputation.py

The data are windows of 48 hours of real weather with random gaps. A convolutional-recurrent network
receives the window with linear interpolation in the gaps and predicts a correction. One network is
trained on its error, one only by a discriminator that separates measured from imputed values, and
one on the sum of both.

What to look at: the table of errors on unseen dates, compared with linear interpolation. The three
are trained in the same step, on the same windows with the same gaps. A discriminator rewards values
that look measured, which need not be close to the truth: alone, its error varies from epoch to
epoch and is no better than linear interpolation. Mixed in, it does no harm.
"""

from typing import Any, final

import keras
import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure

import figures
import loopwright as lw


def draw_gaps(windows: Any, seed: Any) -> Any:
    """Draw a mask of hidden values: in half of the columns, 6 to 24 hours long."""
    hours, columns = windows.shape[1:]
    shape = (tf.shape(windows)[0], 1, columns)
    begin = keras.random.randint(shape, 1, hours - 12, seed=seed)
    length = keras.random.randint(shape, 6, 25, seed=seed)
    is_cut = keras.random.uniform(shape, seed=seed) < 0.5
    hour = tf.range(hours)[None, :, None]
    return is_cut & (hour >= begin) & (hour < begin + length)


def interpolate(values: Any, is_seen: Any) -> Any:
    """Return the windows with linear interpolation between seen values, constant at both ends."""
    values, is_seen = (tf.transpose(part, (0, 2, 1)) for part in (values, is_seen))
    hours = values.shape[-1]
    hour = tf.range(hours)
    seen = is_seen[:, :, None]
    before = tf.reduce_max(tf.where(seen & (hour <= hour[:, None]), hour, -1), -1)
    after = tf.reduce_min(tf.where(seen & (hour >= hour[:, None]), hour, hours), -1)
    left = tf.where(before < 0, after % hours, before)
    right = tf.where(after == hours, left, after)
    at_left, at_right = (tf.gather(values, i, axis=2, batch_dims=2) for i in (left, right))
    way, whole = (tf.cast(part, tf.float32) for part in (hour - left, right - left))
    lines = at_left + (at_right - at_left) * tf.math.divide_no_nan(way, whole)
    return tf.transpose(lines, (0, 2, 1))


HOURS = 48
COLUMNS = figures.COLUMNS[:5]
TITLES = {"temp": "temperature", "humid": "humidity", "pressure": "pressure"}
WEIGHTS = {"reconstruction": (1.0, 0.0), "adversarial": (0.0, 1.0), "mixed": (1.0, 0.02)}
"""Weights of the error and of the adversarial loss in each variant."""


def load() -> dict[str, Any]:
    """Return standardized windows and masks of known values; test days are after the 23rd."""
    hours, values = figures.read_weather()
    values = values[..., :5]
    day = (hours.astype("datetime64[D]") - hours.astype("datetime64[M]")).astype(int) + 1
    is_test = day >= 24
    mean = np.nanmean(values[:, ~is_test], (0, 1))
    deviation = np.nanstd(values[:, ~is_test], (0, 1))
    standard = (values - mean) / deviation

    def windows(mask: Any, stride: int) -> dict[str, Any]:
        begins = [b for b in range(0, len(hours) - HOURS, stride) if mask[b : b + HOURS].all()]
        found = np.concatenate([standard[:, b : b + HOURS] for b in begins])
        return {"values": np.nan_to_num(found), "is_known": ~np.isnan(found)}

    test = windows(is_test, 24)
    test["gaps"] = draw_gaps(test["values"], keras.random.SeedGenerator(1)).numpy()
    return {
        "train": windows(~is_test, 5),
        "test": test,
        "mean": mean,
        "deviation": deviation,
    }


def make_imputer() -> keras.Model:
    """Return convolutions for short range, a GRU for long range; initially no correction."""
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Conv1D(48, 5, padding="same", activation="leaky_relu"),
            layers.Conv1D(48, 5, padding="same", activation="leaky_relu"),
            layers.Bidirectional(layers.GRU(32, return_sequences=True)),
            layers.Dense(len(COLUMNS), kernel_initializer="zeros"),
        ]
    )


def make_discriminator() -> keras.Model:
    """Return the discriminator: for each value of a window the logit of "measured"."""
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Conv1D(48, 5, padding="same", activation="leaky_relu"),
            layers.Conv1D(48, 5, padding="same", activation="leaky_relu"),
            layers.Conv1D(len(COLUMNS), 5, padding="same"),
        ]
    )


@final
class Imputation(lw.Task):
    """Three imputers, and a discriminator for each with an adversarial loss."""

    def __init__(self) -> None:
        super().__init__()
        adversarial = [name for name, (_, adversary) in WEIGHTS.items() if adversary]
        self.imputers = {name: make_imputer() for name in WEIGHTS}
        self.discriminators = {name: make_discriminator() for name in adversarial}
        # Unlike the gradient of an error, an adversarial one does not shrink near the truth.
        self.optimizers = {
            name: keras.optimizers.Adam(2e-3 if error else 2e-4, beta_1=0.9 if error else 0.5)
            for name, (error, _) in WEIGHTS.items()
        }
        self.discriminator_optimizers = {n: keras.optimizers.Adam(5e-4) for n in adversarial}
        self.seed = keras.random.SeedGenerator(0)

    def filled(self, name: str, lines: Any, is_seen: Any) -> Any:
        """Return the interpolation, corrected where values are hidden."""
        seen = tf.cast(is_seen, tf.float32)
        return lines + (1 - seen) * self.imputers[name](tf.concat([lines, seen], -1))

    def train_step(self, batch: Any) -> dict[str, Any]:
        """Update each network once, with the same gaps for all three variants."""
        values, is_known = batch["values"], batch["is_known"]
        is_hidden = is_known & draw_gaps(values, self.seed)
        is_seen = is_known & ~is_hidden
        lines = interpolate(values, is_seen)
        errors = {}
        for name, (error_weight, adversary_weight) in WEIGHTS.items():
            with tf.GradientTape() as tape:
                filled = self.filled(name, lines, is_seen)
                errors[name] = _mean(tf.abs(filled - values), is_hidden)
                loss = error_weight * errors[name]
                if adversary_weight:
                    judged = self.discriminators[name](filled)
                    loss += adversary_weight * _mean(tf.nn.softplus(-judged), is_hidden)
            self.minimize(loss, self.imputers[name], self.optimizers[name], tape)
            if adversary_weight:
                self._train_discriminator(name, filled, is_seen, is_hidden)
        return errors

    def _train_discriminator(self, name: str, filled: Any, is_seen: Any, is_hidden: Any) -> None:
        discriminator = self.discriminators[name]
        with tf.GradientTape() as tape:
            judged = discriminator(tf.stop_gradient(filled), training=True)
            loss = _mean(tf.nn.softplus(-judged), is_seen) + _mean(
                tf.nn.softplus(judged), is_hidden
            )
        self.minimize(loss, discriminator, self.discriminator_optimizers[name], tape)

    def test_step(self, batch: Any) -> dict[str, Any]:
        """Return the mean absolute error over hidden hours, in standard deviations."""
        values, is_hidden = batch["values"], batch["is_known"] & batch["gaps"]
        found = self.predict_step(batch)
        hidden = tf.reduce_sum(tf.cast(is_hidden, tf.float32))
        return {
            name: lw.Mean(_mean(tf.abs(filled - values), is_hidden), hidden)
            for name, filled in found.items()
        }

    def predict_step(self, batch: Any) -> Any:
        """Return the windows filled by each variant and by linear interpolation."""
        is_seen = batch["is_known"] & ~batch["gaps"]
        lines = interpolate(batch["values"], is_seen)
        return {name: self.filled(name, lines, is_seen) for name in WEIGHTS} | {"lines": lines}

    def exports(self) -> dict[str, keras.Model]:
        """Return the imputers by name: from interpolation and mask to the correction."""
        return dict(self.imputers)


def _mean(values: Any, mask: Any) -> Any:
    mask = tf.cast(mask, values.dtype)
    return tf.math.divide_no_nan(tf.reduce_sum(values * mask), tf.reduce_sum(mask))


def make_task(*, seed: int = 0) -> Imputation:
    """Return the task with the three variants."""
    keras.utils.set_random_seed(seed)
    return Imputation()


def draw(data: dict[str, Any], found: dict[str, Any]) -> Figure:
    """Draw three test windows with a long gap, measured and filled."""
    is_known, gaps = data["test"]["is_known"], data["test"]["gaps"]
    # Back from standard deviations to units.
    values = data["test"]["values"] * data["deviation"] + data["mean"]
    values = np.where(is_known, values, np.nan)
    found = {name: part * data["deviation"] + data["mean"] for name, part in found.items()}
    figure = Figure(figsize=(7.5, 8), layout="constrained")
    figure.suptitle("Gaps in real weather, filled")
    for axes, column in zip(figure.subplots(3, 1), (0, 2, 4), strict=True):
        inside = (gaps & is_known)[..., column] & ~gaps[:, :1, column] & ~gaps[:, -1:, column]
        window = int(np.argmax(inside.sum(1)))
        hidden = np.flatnonzero(inside[window])
        axes.axvspan(hidden[0] - 0.5, hidden[-1] + 0.5, color="0.93", label="hidden")
        axes.plot(values[window, :, column], color="black", label="measured")
        near = slice(hidden[0] - 1, hidden[-1] + 2)
        for name, series in found.items():
            style = {"linestyle": ":", "color": "0.4"} if name == "lines" else {}
            title = "straight line" if name == "lines" else name
            hours = np.arange(HOURS)[near]
            axes.plot(hours, series[window, near, column], label=title, **style)
        name = COLUMNS[column]
        axes.set(ylabel=f"{TITLES[name]} ({figures.UNITS[name]})", xlabel="hour of the window")
    figure.axes[0].legend(ncols=2, fontsize=8)
    return figure


def experiment(*, quick: bool = False) -> lw.Experiment:
    """Return the experiment: 15 epochs; quick: 3, with every eighth window."""
    data = load()
    train = {name: part[:: 8 if quick else 1] for name, part in data["train"].items()}

    def conclude(trainer: lw.Trainer, run_dir: str | None) -> dict[str, float]:
        errors = trainer.evaluate(data["test"])
        figures.save(draw(data, trainer.predict(data["test"])), run_dir, "gaps")
        print("mean absolute error in hidden hours, in standard deviations:")
        for name, error in sorted(errors.items(), key=lambda item: item[1]):
            share = error / errors["lines"]
            print(f"  {name:15} {error:.3f}  {share:.0%} of that of straight lines")
        return errors

    fit = {"x": train, "validation_data": lw.Arrays(data["test"]), "batch_size": 64}
    return lw.Experiment(
        make_task,
        fit={**fit, "epochs": 3 if quick else 15, "save_every": "1 epoch"},
        test=(data["test"],),
        conclude=conclude,
    )
