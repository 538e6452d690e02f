"""A manifest with values of the wrong kind is refused in words when a run resumes."""

import json
import shutil
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import loopwright as lw
from loopwright.manifest import signed

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


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("declared",), []),
        (("declared", "learning_rate"), "fast"),
        (("declared", "versions"), 3),
        (("place",), "here"),
        (("place", "step"), "three"),
        (("plans", "changes"), 3),
        (("callbacks",), {"class": "x"}),
        (("tally", "totals"), None),
        (("read",), None),
    ],
    ids=lambda given: ".".join(given) if isinstance(given, tuple) else repr(given),
)
def test_a_field_of_the_wrong_kind_is_named_when_a_run_resumes(
    saved: Path, tmp_path: Path, path: tuple[str, ...], value: Any
):
    run_dir = changed(saved, tmp_path / "run", path, value)
    with pytest.raises(lw.CheckpointError, match=path[0]):
        trainer(run_dir).fit(X, Y, batch_size=4, epochs=2, verbose=0)


def test_an_older_checkpoint_is_used_instead_of_one_with_wrong_fields(saved: Path, tmp_path: Path):
    run_dir = tmp_path / "older"
    shutil.copytree(saved, run_dir)
    trainer(run_dir).fit(X, Y, batch_size=4, epochs=2, verbose=0)
    newest = max(run_dir.glob("checkpoints/step-*"))
    manifest = newest / "manifest.json"
    content = json.loads(manifest.read_text())
    content["content"]["leg"] = "first"
    del content["sha256"]
    manifest.chmod(0o600)
    manifest.write_bytes(signed(content))
    with pytest.warns(lw.LoopwrightWarning, match="values of the wrong kind: leg"):
        assert trainer(run_dir).restore("last") == 2
