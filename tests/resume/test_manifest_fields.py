"""A manifest with values of the wrong type is refused in words when a run resumes."""

import json
import shutil
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import loopwright as lw
from loopwright.checkpoints.manifest import signed

X, Y = np.ones((8, 2), "float32"), np.ones((8, 1), "float32")


def trainer(run_dir: Path) -> lw.Trainer:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    return lw.Trainer(lw.Supervised(model, "mse", "sgd"), run_dir=run_dir, plan="eager")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("saved") / "run"
    trainer(run_dir).fit(X, Y, batch_size=4, verbose=0)
    return run_dir


def changed(saved: Path, run_dir: Path, path: tuple[str, ...], value: Any) -> Path:
    shutil.copytree(saved, run_dir)
    (manifest,) = run_dir.glob("checkpoints/step-*/manifest.json")
    content = json.loads(manifest.read_text())
    holder = content["content"]
    for key in path[:-1]:
        holder = holder[key]
    if value is None:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    del content["sha256"]
    manifest.chmod(0o600)
    manifest.write_bytes(signed(content))
    return run_dir


@pytest.mark.parametrize(("path", "value"), [(("plans", "changes"), 3), (("read",), None)])
def test_a_field_of_the_wrong_kind_is_named_when_a_run_resumes(
    saved: Path, tmp_path: Path, path: tuple[str, ...], value: Any
):
    run_dir = changed(saved, tmp_path / "run", path, value)
    with pytest.raises(lw.CheckpointError, match=path[0]):
        trainer(run_dir).fit(X, Y, batch_size=4, epochs=2, verbose=0)


def test_a_checkpoint_without_the_field_inexact_is_read(saved: Path, tmp_path: Path):
    run_dir = changed(saved, tmp_path / "run", ("inexact",), None)
    assert trainer(run_dir).fit(X, Y, batch_size=4, epochs=2, verbose=0).epoch_steps == [2, 4]


class Stateful(keras.callbacks.Callback):
    """A callback of one's own."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state, self.restored = state, []

    def get_state(self) -> Any:
        if isinstance(self.state, Exception):
            raise self.state
        return self.state

    def set_state(self, state: Any) -> None:
        self.restored = [state]


def test_the_state_of_a_callback_may_be_anything_that_json_knows(tmp_path: Path):
    given = {"best": np.float32(0.5), "steps": [1, 2]}
    trainer(tmp_path).fit(X, Y, batch_size=4, callbacks=[Stateful(given)], verbose=0)
    again = Stateful(given)
    trainer(tmp_path).fit(X, Y, batch_size=4, epochs=2, callbacks=[again], verbose=0)
    assert again.restored == [{"best": 0.5, "steps": [1, 2]}]


@pytest.mark.parametrize(
    ("state", "what", "received"),
    [
        ({"best": np.ones(3)}, r"Stateful\.get_state", "a value of type ndarray"),
        ({"seen": {1: "one"}}, r"Stateful\.get_state", "the key 1 of type int"),
        ({"task": object()}, r"Stateful\.get_state", "a value of type object"),
        (MemoryError("no room"), r"cannot be saved: out of memory\.", "no room"),
    ],
)
def test_a_state_that_cannot_be_saved_is_named(
    tmp_path: Path, state: Any, what: str, received: str
):
    errors = lw.CheckpointError if isinstance(state, Exception) else lw.ConfigurationError
    with pytest.raises(errors, match=what) as caught:
        trainer(tmp_path).fit(X, Y, batch_size=4, callbacks=[Stateful(state)], verbose=0)
    assert f"received: {received}" in str(caught.value)


def test_a_state_of_another_kind_is_refused_for_a_callback_of_keras(saved: Path, tmp_path: Path):
    states = [{"class": "ReduceLROnPlateau", "state": [0.5]}]
    run_dir = changed(saved, tmp_path / "run", ("callbacks",), states)
    reduce = keras.callbacks.ReduceLROnPlateau()
    with pytest.raises(lw.ConfigurationError, match="state of ReduceLROnPlateau") as caught:
        trainer(run_dir).fit(X, Y, batch_size=4, epochs=2, callbacks=[reduce], verbose=0)
    assert "received: list" in str(caught.value)
