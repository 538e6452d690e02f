"""A pruner's answer survives a process that is killed between two writes to the storage."""

from pathlib import Path
from typing import Any

import pytest

from loopwright.config import file
from loopwright.search import optuna_study
from loopwright.search import study as asking

optuna = pytest.importorskip("optuna")
WRITES = ("set_trial_user_attr", "set_trial_system_attr")


class KilledError(Exception):
    """The process ends here."""


def asked_with(pruner: str) -> asking.Asked:
    return asking.Asked(file.load("digits"), {}, "val_loss", "min", "best", "random", pruner, 0)


def studied(path: Path, asked: asking.Asked) -> tuple[Any, Any]:
    """Four trials that improved, and one that has reported a worse score."""
    study, storage = optuna_study.opened(path, asked)
    for first in (0.5, 0.4, 0.3, 0.2):
        trial = study.ask()
        for at, score in enumerate((first, first / 2, first / 4, first / 8), start=1):
            trial.report(score, at)
            optuna_study.is_pruned(study, storage, asked, trial.number)
        study.tell(trial, first / 8)
    study.ask().report(0.9, 1)
    return study, storage


def notes_of(study: Any) -> dict[str, Any]:
    return dict(study.get_trials()[4].system_attrs)


@pytest.mark.parametrize("pruner", ["successive-halving", "hyperband", "median"])
def test_the_answer_is_that_of_the_pruner(pruner: str, tmp_path: Path):
    asked = asked_with(pruner)
    study, storage = studied(tmp_path / "storage.db", asked)
    answer = optuna_study.is_pruned(study, storage, asked, 4)
    own, _ = studied(tmp_path / "own.db", asked)
    assert answer == own.pruner.prune(own, own.get_trials()[4])
    assert notes_of(study) == notes_of(own)


@pytest.mark.parametrize("write", [1, 2])
@pytest.mark.parametrize("comes", ["before", "after"])
def test_a_question_that_was_interrupted_has_the_same_answer(
    write: int, comes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked = asked_with("successive-halving")
    study, storage = studied(tmp_path / "storage.db", asked)
    writes = 0

    def dying(original: Any) -> Any:
        def call(*args: Any) -> None:
            nonlocal writes
            writes += 1
            if comes == "after":
                original(*args)
            if writes == write:
                raise KilledError
            original(*args)

        return call

    with monkeypatch.context() as patched:
        for name in WRITES:
            patched.setattr(storage, name, dying(getattr(storage, name)))
        with pytest.raises(KilledError):
            optuna_study.is_pruned(study, storage, asked, 4)
    again, storage = optuna_study.opened(tmp_path / "storage.db", asked)
    assert optuna_study.is_pruned(again, storage, asked, 4)
    assert notes_of(again) == {"completed_rung_0": 0.9}
