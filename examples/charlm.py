"""Character language model: an LSTM reads Moby-Dick and predicts the next character.

    loopwright train examples/charlm.py

What to look at: the perplexity on unseen chapters, the number of characters that the model is
undecided between on average. It needs its own metric, because the exponential of a mean is not the
mean of exponentials. For comparison: the perplexity of letter and letter-pair frequencies.
"""

import functools
import gzip
from typing import Any

import keras
import numpy as np
from matplotlib.figure import Figure

import figures
import loopwright as lw
from loopwright.components import Perplexity

LENGTH = 64
UNKNOWN = "\0"


def load() -> dict[str, Any]:
    """Return chapters 1 to 54 to train on, with their alphabet, and 55 to 60 to test."""
    text = gzip.decompress((figures.DATA / "moby_dick.txt.gz").read_bytes()).decode()
    at = text.index("CHAPTER 55.")
    alphabet = UNKNOWN + "".join(sorted(set(text[:at])))
    number = {character: index for index, character in enumerate(alphabet)}
    train, test = (
        np.array([number.get(character, 0) for character in part], "int32")
        for part in (text[:at], text[at:])
    )
    return {
        "alphabet": alphabet,
        "train": _windows(train),
        "test": _windows(test),
        "counted": _counted(train, test, len(alphabet)),
    }


def _windows(numbers: Any) -> tuple[Any, Any]:
    whole = (len(numbers) - 1) // LENGTH * LENGTH
    return numbers[:whole].reshape(-1, LENGTH), numbers[1 : whole + 1].reshape(-1, LENGTH)


def _counted(train: Any, test: Any, size: int) -> dict[str, float]:
    """Return the perplexity of letter frequencies and of letter-pair frequencies."""
    pairs = np.ones((size, size))
    np.add.at(pairs, (train[:-1], train[1:]), 1)
    letters, after = pairs.sum(0) / pairs.sum(), pairs / pairs.sum(1, keepdims=True)
    found = {"letters": letters[test[1:]], "pairs of letters": after[test[:-1], test[1:]]}
    return {name: float(np.exp(-np.log(chance).mean())) for name, chance in found.items()}


def make_model(characters: int) -> keras.Model:
    """Return an embedding, an LSTM and the logits of the next character."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            layers.Embedding(characters, 32),
            layers.LSTM(192, return_sequences=True),
            layers.Dense(characters),
        ]
    )


def make_task(
    *,
    characters: int = 80,
    seed: int = 0,
    optimizer: Any = None,
    loss: Any = None,
    metrics: Any = (),
) -> lw.Task:
    """Return the task: cross-entropy on logits, Adam with clipping, perplexity and `metrics`."""
    keras.utils.set_random_seed(seed)
    return lw.Supervised(
        make_model(characters),
        loss=loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=optimizer or keras.optimizers.Adam(4e-3, clipnorm=1.0),
        metrics=[Perplexity(from_logits=True), *metrics],
    )


def write(model: keras.Model, alphabet: str, begin: str, *, length: int) -> str:
    """Continue the text `begin` by characters sampled from the model."""
    random = np.random.default_rng(0)
    text = begin.rjust(LENGTH)
    for _ in range(length):
        window = np.array([[alphabet.index(character) for character in text[-LENGTH:]]], "int32")
        # A temperature below 1: fewer invented words.
        chances = np.exp(model.predict_on_batch(window)[0, -1].astype("float64") / 0.7)
        text += alphabet[random.choice(len(alphabet), p=chances / chances.sum())]
    return text.lstrip()


def draw(history: dict[str, list[float]], counted: dict[str, float]) -> Figure:
    """Draw the perplexity of each epoch."""
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.subplots()
    curves = {
        "chapters 1 to 54, while training": history["perplexity"],
        "chapters 55 to 60, never seen": history["val_perplexity"],
    }
    figures.plot_epochs(axes, curves)
    for (name, value), style in zip(counted.items(), ("--", ":"), strict=True):
        axes.axhline(value, color="grey", linestyle=style, label=f"counting {name}: {value:.1f}")
    axes.set(title="The next character of Moby-Dick", ylabel="perplexity", ylim=(1, None))
    axes.legend()
    return figure


def experiment(*, quick: bool = False) -> lw.Experiment:
    """Return the experiment: 8 epochs; quick: 2, with every eighth window."""
    data = load()
    x, y = (part[:: 8 if quick else 1] for part in data["train"])
    test = tuple(part[:: 4 if quick else 1] for part in data["test"])

    def conclude(trainer: lw.Trainer, run_dir: str | None) -> dict[str, float]:
        scores = trainer.evaluate(*test)
        figures.save(draw(trainer.history.history, data["counted"]), run_dir, "perplexity")
        print(
            f"test: perplexity {scores['perplexity']:.2f}; "
            + ", ".join(f"counting {name} {value:.1f}" for name, value in data["counted"].items())
        )
        print(write(trainer.task.model, data["alphabet"], "Call me ", length=20 if quick else 200))
        return scores

    fit = {"x": x, "y": y, "validation_data": test, "batch_size": 32}
    return lw.Experiment(
        functools.partial(make_task, characters=len(data["alphabet"])),
        fit={**fit, "epochs": 2 if quick else 8, "save_every": "1 epoch"},
        test=test,
        conclude=conclude,
    )
