"""Each part of the promise is needed: without it, these tests would be red.

Without fsync and without checksums: `test_store_kills.py` and `test_checkpoint.py`.
"""

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.resume.program import digest, train
from tests.resume.test_resume import failing

from loopwright.checkpoints import tensors
from loopwright.data.arrays import Arrays
from loopwright.data.readers import NOTHING_READ, IteratorReader
from loopwright.engine.metrics import EpochMetrics
from loopwright.fit import moment


@functools.cache
def undisturbed_run(kind: str) -> tuple[str, Any]:
    trainer, history = train(None, kind, "graph", epochs=2)
    return digest(trainer.task), history


def ends_otherwise(tmp_path: Path, kind: str = "arrays") -> bool:
    whole, undisturbed = undisturbed_run(kind)
    resumed, history = failing(tmp_path / "run", kind, "graph", 18, epochs=2)
    same_bits = digest(resumed.task) == whole
    names = undisturbed.history.keys()
    pairs = [(history.history[name], undisturbed.history[name]) for name in names]
    return not same_bits or not all(np.allclose(*pair, rtol=1e-6) for pair in pairs)


def test_as_it_is_a_run_ends_the_same(tmp_path: Path):
    assert not ends_otherwise(tmp_path)


@pytest.mark.parametrize("left_out", ["seed", "moving_mean", "error"])
def test_without_some_of_the_variables_a_run_ends_otherwise(
    left_out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assign, seen = tensors.assign, list[str]()

    def assign_less(named: Any, read: Any) -> None:
        seen.extend(name for name in named if left_out in name)
        assign({name: v for name, v in named.items() if left_out not in name}, read)

    monkeypatch.setattr(moment.tensors, "assign", assign_less)
    assert ends_otherwise(tmp_path)
    assert seen


def test_without_the_place_in_arrays_a_run_ends_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    training: Any = Arrays.training
    monkeypatch.setattr(
        Arrays,
        "training",
        lambda self, epochs: training(self, replace(epochs, after=NOTHING_READ)),
    )
    assert ends_otherwise(tmp_path)


def test_without_the_state_of_an_iterator_a_run_ends_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(IteratorReader, "restore", lambda self, read, state: None)
    assert ends_otherwise(tmp_path, "stream")


def test_without_the_totals_of_the_epoch_its_means_are_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(EpochMetrics, "restore", lambda self, state: None)
    assert ends_otherwise(tmp_path)
