"""A job that notes what its process does: starts, looks, checkpoints, records, replaces itself.

The notes come from audit events of the interpreter, so that nothing of Loopwright is changed. Its
images have no fixed size: no other plan is tried, and settings are decided after the first step.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from loopwright.checkpoints import tensors
from loopwright.checkpoints.store import Store
from loopwright.plans import settings_memory
from loopwright.plans.settings import ONEDNN, Settings
from loopwright.plans.settings_memory import SettingsChoice

ON, OFF = Settings(onednn=True), Settings(onednn=False)
STEPS = 24
JOB = f"""
import os, re, resource, signal, sys
import keras, numpy as np, tensorflow as tf
import loopwright as lw
from keras import layers
from loopwright.compat import process

TRIAL = "LOOPWRIGHT_TRIAL" in os.environ
AT, NUMBER = os.environ.get("DISTURBED", " ").split(" ")

def note(*words):
    descriptor = os.open("notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, " ".join(map(str, [os.getpid(), *words])).encode() + b"\\n")
    os.close(descriptor)

def happens(what, *words):
    note(what, *words)
    if what == AT and not TRIAL:
        os.kill(os.getpid(), int(NUMBER))

def watch(event, arguments):
    if event == "os.exec":
        happens("exec")
    elif event == "open" and re.fullmatch("[0-9a-f]{{64}}.json", str(arguments[0])):
        note("look", arguments[0])
    elif event == "os.rename":
        source, target, handle = arguments[:3]
        if target == "plan.json":
            with open(f"/proc/self/fd/{{handle}}/{{source}}") as file:
                if '"onednn": true' in file.read():
                    happens("record")
        elif re.fullmatch("step-[0-9]{{8}}", target):
            note("checkpoint", target)

if TRIAL and "SPARE_BYTES" in os.environ:
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    most = pages * resource.getpagesize() + int(os.environ["SPARE_BYTES"])
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
note("trial" if TRIAL else "start", "on" if process.onednn_is_on() else "off")
sys.addaudithook(watch)
if process.onednn_is_on():
    happens("import")

class Stop(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == {STEPS // 8 - 1}:
            self.model.stop_training = True

def experiment(stops: bool = True):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(256, 12, 12, 3)).astype("float32"), rng.integers(0, 4, size=256)

    def resized(x, y):
        return tf.raw_ops.PlaceholderWithDefault(input=x, shape=[None, None, 3]), y

    def task():
        inner = [layers.Conv2D(8, 3, activation="relu"), layers.Dropout(0.1)]
        end = [layers.GlobalAveragePooling2D(), layers.Dense(4, "softmax")]
        model = keras.Sequential([keras.Input((None, None, 3)), *inner, *end])
        return lw.Supervised(model, "sparse_categorical_crossentropy", "adam")

    data = tf.data.Dataset.from_tensor_slices((x, y)).map(resized).batch(32, drop_remainder=True)
    fit = {{"x": data, "epochs": 100_000, "callbacks": [Stop()] if stops else []}}
    return lw.Experiment(task, fit=fit)
"""
LOOPWRIGHT = [sys.executable, "-m", "loopwright"]


def make_project(directory: Path) -> Path:
    """Write the job into a directory of its own."""
    # A file is looked for only in a directory that exists.
    (directory / "cache" / "settings" / "steps").mkdir(parents=True)
    (directory / "job.py").write_text(JOB)
    return directory


def start(
    project: Path, run: str, *words: str, before: Sequence[str] = (), **variables: str
) -> "subprocess.Popen[str]":
    """Start a training; `before` is what comes before `train`, as of `loopwright launch`."""
    own = {name: value for name, value in os.environ.items() if name != ONEDNN}
    environment = {**own, "LOOPWRIGHT_CACHE_DIR": str(project / "cache"), **variables}
    command = [*LOOPWRIGHT, *before, "train", "job:experiment", "--run-dir", run, "fit.verbose=2"]
    with (project / f"{run}.log").open("a") as log:
        return subprocess.Popen(
            [*command, *words], cwd=project, env=environment, stdout=log, stderr=log, text=True
        )


def text_of(project: Path, run: str) -> str:
    return (project / f"{run}.log").read_text()


def ended(project: Path, run: str, *words: str, code: int = 0, **options: Any) -> str:
    """Train until the process ends with `code`; return what it said."""
    child = start(project, run, *words, **options)
    found = child.wait(timeout=300)
    assert found == code, text_of(project, run)[-3000:]
    return text_of(project, run)


def notes(project: Path) -> list[list[str]]:
    """Return the notes since the last call: a PID, what happened, more words."""
    path = project / "notes"
    found = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    path.unlink(missing_ok=True)
    return found


def what(found: list[list[str]], *wanted: str) -> list[str]:
    """Return what happened, of these things, in order."""
    return [" ".join(words[1:]) for words in found if words[1] in wanted]


def remember_as_faster(project: Path, found: list[list[str]]) -> None:
    """Remember oneDNN as faster for each step that a process has looked for."""
    identities = {words[2].removesuffix(".json") for words in found if words[1] == "look"}
    assert identities
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOPWRIGHT_CACHE_DIR", str(project / "cache"))
        for identity in identities:
            rates = (48.0, 49.0), (70.0, 72.0)
            choice = SettingsChoice(identity, OFF, ON, *rates, True, "2999-01-01T00:00:00+00:00")
            settings_memory.remember(choice, "-")


def bits(project: Path, run: str) -> dict[str, Any]:
    """Return the state at the end of a run; not how far its data was read ahead."""
    found = Store(project / run / "checkpoints").newest()
    assert found is not None
    held = tensors.read(found.path / "state")
    return {name: held[name].numpy().tobytes() for name in held if name != "data.iterator"} | {
        "saved step": found.step
    }
