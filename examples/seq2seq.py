"""Sequence to sequence: "March 3rd, 1997" becomes "1997-03-03", character by character.

    loopwright train examples/seq2seq.py

The decoder receives the true previous character (teacher forcing) or its own prediction. Which one
is drawn at random for each character, and the rate of teacher forcing falls from 1 to 0 during the
training. The learning rate is cyclic.

What to look at: the share of dates with all ten characters correct, on days that are in no training
example. The forcing rate and the learning rate are functions of the step, inside the compiled loop:
a resumed run continues them exactly.
"""

from datetime import date, timedelta
from typing import Any, final

import keras
import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure

import figures
import loopwright as lw
from loopwright.components import Cyclic

INPUT = " ,0123456789ADFJMNOSabcdefghilmnoprstuvy"
OUTPUT = "0123456789-"
MOST_CHARACTERS = len("30th of September 1997")


def written(day: date, form: int) -> str:
    """Return a date in one of four common forms.

    >>> [written(date(1997, 3, 3), form) for form in range(4)]
    ['March 3rd, 1997', '3 March 1997', 'Mar 3, 1997', '3rd of March 1997']
    """
    ending = (
        "th" if day.day in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(day.day % 10, "th")
    )
    month = day.strftime("%B")
    return [
        f"{month} {day.day}{ending}, {day.year}",
        f"{day.day} {month} {day.year}",
        f"{month[:3]} {day.day}, {day.year}",
        f"{day.day}{ending} of {month} {day.year}",
    ][form]


def encoded(texts: list[str]) -> Any:
    """Return texts as character numbers, padded with 0."""
    rows = [[INPUT.index(character) + 1 for character in text] for text in texts]
    return np.array([row + [0] * (MOST_CHARACTERS - len(row)) for row in rows], "int32")


def answers(days: list[date]) -> Any:
    """Return the ten characters of each ISO date as numbers."""
    return np.array([[OUTPUT.index(c) for c in day.isoformat()] for day in days], "int32")


BEGIN = len(OUTPUT)
LENGTH = len("1997-03-03")
BATCH_SIZE = 64


def load() -> dict[str, Any]:
    """Return 8,000 days of 1900 to 2099 to train on, 1,000 to validate, 2,000 to test."""
    random = np.random.default_rng(0)
    first = date(1900, 1, 1)
    days = [first + timedelta(int(n)) for n in random.permutation(73_049)[:11_000]]
    texts = [written(day, int(random.integers(4))) for day in days]
    x, y = encoded(texts), answers(days)
    parts = {"train": slice(8000), "validation": slice(8000, 9000), "test": slice(9000, None)}
    return {"texts": texts[9000:], **{name: (x[part], y[part]) for name, part in parts.items()}}


@final
class Writer(keras.Model):
    """An encoder-decoder with attention that writes ten characters."""

    def __init__(self) -> None:
        super().__init__()
        layers = keras.layers
        self.embed_input = layers.Embedding(len(INPUT) + 1, 32)
        self.read = layers.Bidirectional(layers.GRU(64, return_sequences=True))
        self.embed_output = layers.Embedding(len(OUTPUT) + 1, 32)
        self.cell = layers.GRUCell(128)
        self.look = layers.Dense(128)
        self.score = layers.Dense(len(OUTPUT))

    def call(self, texts: Any, answers: Any = None, is_told: Any = None) -> Any:
        """Return the logits of ten characters; `is_told` marks where teacher forcing is used."""
        memory = self.read(self.embed_input(texts))
        state = tf.zeros((tf.shape(texts)[0], 128))
        previous = tf.fill((tf.shape(texts)[0],), BEGIN)
        logits = []
        for place in range(LENGTH):
            attention = tf.nn.softmax(tf.einsum("nd,ntd->nt", self.look(state), memory))
            seen = tf.einsum("nt,ntd->nd", attention, memory)
            state, _ = self.cell(tf.concat([self.embed_output(previous), seen], -1), [state])
            logits.append(self.score(tf.concat([state, seen], -1)))
            previous = tf.argmax(logits[-1], -1, tf.int32)
            if answers is not None:
                previous = tf.where(is_told[:, place], answers[:, place], previous)
        return tf.stack(logits, 1)


@final
class Dates(lw.Task):
    """Training with teacher forcing at a rate that falls to 0 over `forced_steps`."""

    def __init__(self, model: Writer, *, forced_steps: int, cycle_steps: int) -> None:
        super().__init__()
        self.model = model
        falls = keras.optimizers.schedules.PolynomialDecay(1.0, forced_steps, end_learning_rate=0.0)
        self.told = lw.Scheduled(falls)
        self.learning_rate = Cyclic(5e-4, 4e-3, half_cycle_steps=cycle_steps // 2)
        self.optimizer = keras.optimizers.Adam(self.learning_rate, clipnorm=1.0)
        self.seed = keras.random.SeedGenerator(0)

    def train_step(self, batch: Any) -> dict[str, Any]:
        """Draw where to use teacher forcing, predict, update."""
        texts, answers = batch
        is_told = keras.random.uniform(tf.shape(answers), seed=self.seed) < self.told
        with tf.GradientTape() as tape:
            loss = _cross_entropy(answers, self.model(texts, answers, is_told, training=True))
        self.minimize(loss, self.model, self.optimizer, tape)
        return {"loss": loss}

    def test_step(self, batch: Any) -> dict[str, Any]:
        """Return the share of dates with all characters correct, without teacher forcing."""
        texts, answers = batch
        logits = self.model(texts)
        is_right = tf.reduce_all(tf.argmax(logits, -1, tf.int32) == answers, -1)
        exact = tf.reduce_mean(tf.cast(is_right, tf.float32))
        return {"loss": _cross_entropy(answers, logits), "exact": exact}

    def predict_step(self, batch: Any) -> Any:
        """Return the numbers of ten characters."""
        return tf.argmax(self.model(batch), -1, tf.int32)


def _cross_entropy(answers: Any, logits: Any) -> Any:
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(answers, logits))


def make_task(*, seed: int = 0, forced_steps: int = 750, cycle_steps: int = 250) -> Dates:
    """Return the task."""
    keras.utils.set_random_seed(seed)
    return Dates(Writer(), forced_steps=forced_steps, cycle_steps=cycle_steps)


def draw(history: dict[str, list[float]], task: Dates, steps: int) -> Figure:
    """Draw the accuracy and forcing rate above, the learning rate below."""
    figure = Figure(figsize=(6.4, 6), layout="constrained")
    above, below = figure.subplots(2, 1)
    figures.plot_epochs(above, {"dates exactly right, on validation days": history["val_exact"]})
    figures.plot_epochs(above, {"rate of characters told": history["told"]}, linestyle="--")
    above.set(title='"March 3rd, 1997" to "1997-03-03"', ylabel="share", ylim=(-0.03, 1.03))
    above.legend(loc="center right")
    below.plot(np.arange(steps), task.learning_rate(np.arange(steps)), color="tab:green")
    below.set(title="The learning rate goes in cycles", xlabel="step", ylabel="learning rate")
    return figure


def experiment(*, quick: bool = False) -> lw.Experiment:
    """Return the experiment: 8 epochs, quick 1; the score is the share of correct test dates."""
    data = load()
    scored = slice(300 if quick else None)
    validation, test = (tuple(p[scored] for p in data[name]) for name in ("validation", "test"))

    def conclude(trainer: lw.Trainer, run_dir: str | None) -> dict[str, float]:
        scores, task = trainer.evaluate(*test), trainer.task
        steps = int(task.step_counter.numpy())
        figures.save(draw(trainer.history.history, task, steps), run_dir, "learning")
        print(f"test: {scores['exact']:.2%} of {len(test[0])} dates are exactly right")
        for text, row in zip(data["texts"][:5], trainer.predict(test[0][:5]), strict=True):
            print(f"  {text:22} {''.join(OUTPUT[number] for number in row)}")
        return scores

    x, y = data["train"]
    fit = {"x": x, "y": y, "validation_data": validation, "batch_size": BATCH_SIZE}
    return lw.Experiment(
        make_task,
        fit={**fit, "epochs": 1 if quick else 8, "save_every": "1 epoch"},
        test=test,
        conclude=conclude,
    )
