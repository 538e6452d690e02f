"""A resumed run goes by the plans it has recorded, whatever the cache has learned since."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.resume.program import Noisy, arrays
from tests.resume.test_same_trainer import AtStep, fail

import loopwright as lw
from loopwright.plans import memory
from loopwright.plans.plan_history import Choice

pytestmark = pytest.mark.kernels

GRAPH = lw.Plan("graph", "graph", "resident")
PYTHON = lw.Plan("graph", "python", "stream")
"""Stands for what somebody measured: unlike XLA it takes no time to compile."""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOOPWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "plans"


def learn(cache: Path, identity: str, plan: lw.Plan) -> None:
    memory.write(identity, memory.Entry(Choice(plan, "fast"), (), date=time.time()))
    assert (cache / f"{identity}.json").exists()


def forget(cache: Path) -> None:
    for path in cache.iterdir():
        path.unlink()


def fit(trainer: lw.Trainer, fails_at: int = -1, **options: Any) -> None:
    given: Any = {"batch_size": 8, "epochs": 2, "save_every": "5 steps", "verbose": 0} | options
    trainer.fit(*arrays(), callbacks=[AtStep(fails_at, fail)], **given)


def failed(run_dir: Path, fails_at: int = 8, **options: Any) -> lw.Trainer:
    trainer = lw.Trainer(Noisy(), run_dir=run_dir)
    with pytest.raises(RuntimeError, match="the callback failed"):
        fit(trainer, fails_at, **options)
    return trainer


def resumed(run_dir: Path, **options: Any) -> list[tuple[int, lw.Plan]]:
    """Which plans ran the whole, from which step on."""
    trainer = lw.Trainer(Noisy(), run_dir=run_dir)
    fit(trainer, **options)
    return [(change.step, change.plan) for change in trainer.plan_history.changes]


def identity_of(batch_size: int = 8) -> str:
    trainer = lw.Trainer(Noisy())
    fit(trainer, epochs=1, batch_size=batch_size)
    return trainer._parts.selector._identity


def test_what_the_cache_learns_after_a_run_began_does_not_change_it(cache: Path, tmp_path: Path):
    identity = failed(tmp_path / "run")._parts.selector._identity
    learn(cache, identity, PYTHON)
    assert resumed(tmp_path / "run") == [(0, GRAPH)]
    assert resumed(tmp_path / "new") == [(0, PYTHON)], "a new run asks the cache"


@pytest.mark.parametrize("fails_at", [8, 3])
def test_what_the_cache_forgets_after_a_run_began_does_not_change_it(
    fails_at: int, cache: Path, tmp_path: Path
):
    """Saved at step 5, it is resumed from there, or begins again where it failed before."""
    learn(cache, identity_of(), PYTHON)
    failed(tmp_path / "run", fails_at)
    forget(cache)
    assert resumed(tmp_path / "run") == [(0, PYTHON)]


def test_the_record_of_an_earlier_version_is_followed_too(cache: Path, tmp_path: Path):
    learn(cache, identity_of(), PYTHON)
    failed(tmp_path / "run")
    plans = tmp_path / "run" / "plan.json"
    content = json.loads(plans.read_text())
    content.pop("measured", None)
    plans.write_text(json.dumps(content | {"choices": {}}))
    learn(cache, identity_of(), GRAPH)
    assert resumed(tmp_path / "run") == [(0, PYTHON)]


def test_a_second_leg_that_failed_before_its_first_checkpoint_follows_its_record(
    cache: Path, tmp_path: Path
):
    def legs(trainer: lw.Trainer, fails_at: int = -1) -> list[tuple[int, lw.Plan]]:
        fit(trainer, epochs=1)
        fit(trainer, fails_at, epochs=1, batch_size=26)
        return [(change.step, change.plan) for change in trainer.plan_history.changes]

    learn(cache, identity_of(batch_size=26), PYTHON)
    failing = lw.Trainer(Noisy(), run_dir=tmp_path / "run")
    with pytest.raises(RuntimeError, match="the callback failed"):
        legs(failing, fails_at=3)
    forget(cache)
    expected = [(0, GRAPH), (13, PYTHON)]
    assert legs(lw.Trainer(Noisy(), run_dir=tmp_path / "run")) == expected


def test_assert_resumes_exactly_holds_while_the_cache_learns(cache: Path):
    identity = identity_of()
    plans = iter([None, PYTHON, GRAPH])

    def make_trainer(run_dir: Path) -> lw.Trainer:
        plan = next(plans)
        if plan is not None:
            learn(cache, identity, plan)
        made.append(lw.Trainer(Noisy(), run_dir=run_dir))
        return made[-1]

    made: list[lw.Trainer] = []
    lw.testing.assert_resumes_exactly(make_trainer, *arrays(), epochs=1, batch_size=8, break_at=[7])
    whole, _, again = (trainer.plan_history.changes for trainer in made)
    assert whole == again
