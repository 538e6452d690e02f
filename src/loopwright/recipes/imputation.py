"""Gaps in time series, filled three ways: by reconstruction, by an adversary, by both mixed.

    python -m loopwright.recipes.imputation

Windows of 48 hours of real weather, with gaps cut into them at random. A convolutional-recurrent
network gets the window with straight lines over the gaps and says by how much to bend them. One is
trained on the error of what it fills in, one only by a discriminator that has to tell what was
measured from what was filled in, and one by the sum of both.

What to look at: the table of errors on dates that were never seen, beside that of the straight
lines. The three are trained in the same step, on the same windows with the same gaps. An adversary
asks for what looks measured, which is not the same as what is near the truth: alone, it swings from
epoch to epoch around the straight lines or worse. Mixed in, it does no harm.
"""

from typing import Any, final

import keras
import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure

import loopwright as lw
from loopwright.recipes import _figures, run
from loopwright.recipes import _figures as _weather


def draw_gaps(windows: Any, seed: Any) -> Any:
    """Where values of windows are hidden: in half of the columns, 6 to 24 hours long."""
    hours, columns = windows.shape[1:]
    shape = (tf.shape(windows)[0], 1, columns)
    begin = keras.random.randint(shape, 1, hours - 12, seed=seed)
    length = keras.random.randint(shape, 6, 25, seed=seed)
    is_cut = keras.random.uniform(shape, seed=seed) < 0.5
    hour = tf.range(hours)[None, :, None]
    return is_cut & (hour >= begin) & (hour < begin + length)


def straight_lines(values: Any, is_seen: Any) -> Any:
    """The windows with straight lines from one seen value to the next, level at both ends."""
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
COLUMNS = _weather.COLUMNS[:5]
TITLES = {"temp": "temperature", "humid": "humidity", "pressure": "pressure"}
WEIGHTS = {"reconstruction": (1.0, 0.0), "adversarial": (0.0, 1.0), "mixed": (1.0, 0.02)}
"""Of the error and of the adversary, in the loss of each variant."""


def load() -> dict[str, Any]:
    """Standardised windows, and where they are known; the test is after the 23rd of each month."""
    hours, values = _weather.read()
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
    """Convolutions see what is near, a recurrent layer what is far; it begins with no bend."""
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
    """For every value of a window the logit of "this was measured"."""
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
    """Three imputers, and a discriminator for each that has an adversary."""

    def __init__(self) -> None:
        super().__init__()
        adversarial = [name for name, (_, adversary) in WEIGHTS.items() if adversary]
        self.imputers = {name: make_imputer() for name in WEIGHTS}
        self.discriminators = {name: make_discriminator() for name in adversarial}
        # An adversary's gradient does not get smaller near the truth, as that of an error does.
        self.optimizers = {
            name: keras.optimizers.Adam(2e-3 if error else 2e-4, beta_1=0.9 if error else 0.5)
            for name, (error, _) in WEIGHTS.items()
        }
        self.discriminator_optimizers = {n: keras.optimizers.Adam(5e-4) for n in adversarial}
        self.seed = keras.random.SeedGenerator(0)

    def filled(self, name: str, lines: Any, is_seen: Any) -> Any:
        """Lines, bent where nothing was seen."""
        seen = tf.cast(is_seen, tf.float32)
        return lines + (1 - seen) * self.imputers[name](tf.concat([lines, seen], -1))

    def train_step(self, batch: Any) -> dict[str, Any]:
        """The same gaps for all three; one update of each network."""
        values, is_known = batch["values"], batch["is_known"]
        is_hidden = is_known & draw_gaps(values, self.seed)
        is_seen = is_known & ~is_hidden
        lines = straight_lines(values, is_seen)
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
        """The mean absolute error over hidden hours, in standard deviations."""
        values, is_hidden = batch["values"], batch["is_known"] & batch["gaps"]
        found = self.predict_step(batch)
        hidden = tf.reduce_sum(tf.cast(is_hidden, tf.float32))
        return {
            name: lw.Mean(_mean(tf.abs(filled - values), is_hidden), hidden)
            for name, filled in found.items()
        }

    def predict_step(self, batch: Any) -> Any:
        """The windows as each variant fills them, and with straight lines."""
        is_seen = batch["is_known"] & ~batch["gaps"]
        lines = straight_lines(batch["values"], is_seen)
        return {name: self.filled(name, lines, is_seen) for name in WEIGHTS} | {"lines": lines}

    def exports(self) -> dict[str, keras.Model]:
        """The imputers, by their names: from lines and what was seen to how far to bend."""
        return dict(self.imputers)


def _mean(values: Any, mask: Any) -> Any:
    mask = tf.cast(mask, values.dtype)
    return tf.math.divide_no_nan(tf.reduce_sum(values * mask), tf.reduce_sum(mask))


def make_task(*, seed: int = 0) -> Imputation:
    """The three variants, from a seed."""
    keras.utils.set_random_seed(seed)
    return Imputation()


def draw(data: dict[str, Any], found: dict[str, Any]) -> Figure:
    """Three test windows with a long gap, as they were and as they were filled."""
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
        axes.set(ylabel=f"{TITLES[name]} ({_weather.UNITS[name]})", xlabel="hour of the window")
    figure.axes[0].legend(ncols=2, fontsize=8)
    return figure


def experiment(*, quick: bool = False) -> lw.Experiment:
    """Fifteen epochs; or three, of every eighth window."""
    data = load()
    train = {name: part[:: 8 if quick else 1] for name, part in data["train"].items()}

    def conclude(trainer: lw.Trainer, run_dir: str | None) -> dict[str, float]:
        errors = trainer.evaluate(data["test"])
        _figures.save(draw(data, trainer.predict(data["test"])), run_dir, "gaps")
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


if __name__ == "__main__":
    run("imputation")
