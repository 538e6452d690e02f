"""Runs are compared: what differs between their files, and since which step their states do."""

import json
import re
import sys
from pathlib import Path

import pytest
from tests.cli.small_project import MINE, content_of, enter, invoke
from tests.processes import run_command

FLIPS = """
import keras, numpy as np, tensorflow as tf
import loopwright as lw


class Flipped(lw.Task):
    def __init__(self, flip_at):
        super().__init__()
        self.model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        self.optimizer, self.flip_at = keras.optimizers.Adam(0.01), flip_at

    def train_step(self, batch):
        x, y = batch
        y = tf.where(self.step_counter == self.flip_at - 1, y + 1.0, y)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.model(x) - y))
        self.minimize(loss, self.model, self.optimizer, tape)
        return {"loss": loss}


def make_task(*, seed=0, flip_at=0):
    keras.utils.set_random_seed(seed)
    return Flipped(flip_at)


def experiment():
    x = np.random.default_rng(0).normal(size=(60, 3)).astype("float32")
    fit = {"x": x, "y": x.sum(axis=1, keepdims=True), "epochs": 10, "batch_size": 10}
    return lw.Experiment(make_task, fit=fit)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return enter(tmp_path, monkeypatch, mine=MINE, flips=FLIPS)


def train(name: str, *words: str, source: str = "mine:experiment") -> None:
    code, output = invoke(
        "train", source, "plan=graph", "fit.verbose=0", *words, "--run-dir", f"runs/{name}"
    )
    assert code == 0, output


def charts(page: Path) -> dict[str, list[str]]:
    text = page.read_text()
    (found,) = re.findall(r'<script type="application/json" id="curves">(.*?)</script>', text)
    drawn = json.loads(found)["charts"]
    return {chart["title"]: [line["name"] for line in chart["lines"]] for chart in drawn}


def test_what_differs_is_listed_and_drawn(project):
    for name, words in {"one": [], "two": ["seed=1"], "three": ["model.rate=0.1"]}.items():
        train(name, *words)
    before = content_of(Path("runs"))
    code, output = invoke("compare", "runs/one", "runs/two", "runs/three")
    assert code == 0, output
    assert "config      seed: 0 (a, c), 1 (b)" in output
    assert "model.rate: default (a, b), 0.1 (c)" in output
    assert "program     learning_rate: 0.01 (a, b), 0.1 (c)" in output
    assert "the same    data, plan, environment" in output
    assert max(map(len, output.splitlines())) <= 80
    drawn = charts(Path("compare.html"))
    assert drawn["loss"] == [
        *("a one", "a one validation", "b two", "b two validation"),
        *("c three", "c three validation"),
    ]
    assert content_of(Path("runs")) == before


STOPS = """
import keras, mine


class Stops(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        raise RuntimeError("stopped")


def experiment():
    made = mine.experiment()
    made.fit["callbacks"] = [Stops()]
    return made
"""


def test_a_run_that_was_stopped_before_it_trained_does_not_differ_in_what_it_never_recorded(
    project,
):
    train("one")
    (project / "stops.py").write_text(STOPS)
    for name in ("two", "three"):
        with pytest.raises(RuntimeError, match="stopped"):
            train(name, source="stops:experiment")
    code, output = invoke("compare", "runs/one", "runs/two")
    assert code == 0, output
    assert "none" not in output
    assert "program" not in output
    assert "states not compared: runs/two has not trained" in output
    code, output = invoke("compare", "runs/one", "runs/two", "runs/three")
    assert "runs/two has not trained\nruns/three has not trained" in output


def test_runs_of_custom_code_are_compared_without_calling_it(project):
    for name, words in {"one": [], "two": ["seed=1"]}.items():
        train(name, *words)
    code, output = invoke("compare", "runs/one", "runs/two")
    assert code == 1
    assert re.search(r"checkpoints differ at step \d+\n", output)
    assert re.search(r"variables that differ after step \d+: model.layers\[0\].kernel", output)
    assert "pass --task mine:experiment" in " ".join(output.split())


def test_the_first_step_that_differs_is_found_and_explained(project):
    train("one", source="flips:experiment")
    train("two", "model.flip_at=37", "fit.save_every=20 steps", source="flips:experiment")
    before = content_of(Path("runs"))
    code, output = invoke("compare", "runs/one", "runs/two", "--task", "flips:experiment")
    words = " ".join(output.split())
    assert code == 1, output
    assert "first difference: step 37 (batch 1 of epoch 7: examples" in words
    assert "first variable: model.layers[0].kernel, by at most" in words
    assert "likely cause: The config: model.flip_at: default (a), 37 (b)." in words
    assert "The same in both: the batch, the learning rate, the plan." in words
    assert max(map(len, output.splitlines())) <= 80
    assert content_of(Path("runs")) == before


def test_equal_runs_are_equal_bit_for_bit_and_comparing_files_imports_no_tensorflow(project):
    for name in ("one", "two"):
        train(name)
    program = (
        "import sys; sys.argv[1:] = ['compare', 'runs/one', 'runs/two']\n"
        "from loopwright.cli import main\n"
        "try: main.main()\n"
        "except SystemExit as ended: assert not ended.code\n"
        "assert 'tensorflow' not in sys.modules"
    )
    done = run_command([sys.executable, "-c", program])
    assert "no recorded difference" in done.stdout
    assert "equal: the states after step 24 are the same, bit for bit" in done.stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["runs/one"], "at least two different runs"),
        (["runs/one", "runs/one"], "at least two different runs"),
        (["runs/one", "runs/none"], "No run found"),
    ],
)
def test_what_cannot_be_compared_is_refused(words, told, project):
    train("one")
    code, output = invoke("compare", *words)
    assert code == 2
    assert told in output
    assert not Path("compare.html").exists()
