"""A run with recurrent layers under XLA ends with the same bits, resumed in another process too."""

import json
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from tests.processes import run_command
from tests.resume.program import AtStep, digest, fail

import loopwright as lw

pytestmark = pytest.mark.kernels

AT_ONCE = lw.Plan("xla", "fused", "resident", rewrites=("threefry", "recurrent"))
AS_KERAS = lw.Plan("xla", "fused", "resident", rewrites=("threefry",))


def task() -> lw.Task:
    keras.utils.set_random_seed(3)
    layers = [keras.Input((6,), dtype="int32"), keras.layers.Embedding(9, 4, mask_zero=True)]
    layers += [keras.layers.LSTM(4, dropout=0.2, return_sequences=True), keras.layers.GRU(4)]
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    return lw.Supervised(model, "mse", keras.optimizers.Adam(0.01))


def arrays() -> tuple[Any, Any]:
    x = np.random.default_rng(0).integers(0, 9, size=(43, 6)).astype("int32")
    return x, x[:, :1].astype("float32")


def ended(plan: Any, run_dir: Path | None = None, fails_at: int = -1) -> str:
    """The digest of all variables after two epochs, whose last batches are smaller."""
    trainer = lw.Trainer(task(), plan=plan, run_dir=run_dir)
    given: Any = {"batch_size": 8, "epochs": 2, "verbose": 0}
    if run_dir is not None:
        given["save_every"] = "3 steps"
    trainer.fit(*arrays(), callbacks=[AtStep(fails_at, fail)], **given)
    return digest(trainer.task)


def failed(plan: Any, run_dir: Path) -> None:
    with pytest.raises(RuntimeError, match="the machine failed"):
        ended(plan, run_dir, fails_at=8)


def recorded(run_dir: Path) -> list[Any]:
    changes = json.loads((run_dir / "plan.json").read_text())["changes"]
    return [change["plan"]["rewrites"] for change in changes]


def test_a_resumed_run_ends_with_the_bits_of_another_process(tmp_path: Path):
    failed("fused", tmp_path / "run")
    resumed = ended("fused", tmp_path / "run")
    assert recorded(tmp_path / "run") == [["threefry", "recurrent"]]
    code = f"from tests.resume.{Path(__file__).stem} import AT_ONCE, ended; print(ended(AT_ONCE))"
    root = Path(__file__).parents[2]
    child = run_command([sys.executable, "-c", code], cwd=root)
    assert child.stdout.split()[-1] == resumed


def test_a_run_that_began_with_the_loops_of_keras_goes_on_with_them(tmp_path: Path):
    failed(AS_KERAS, tmp_path / "run")
    assert ended("fused", tmp_path / "run") == ended(AS_KERAS) != ended(AT_ONCE)
    assert recorded(tmp_path / "run") == [["threefry"]]
