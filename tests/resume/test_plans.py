"""A resumed run goes by the plans it has recorded, whatever the cache has learned since."""

import time
from pathlib import Path
from typing import Any

import pytest
from tests.resume.program import AtStep, Noisy, arrays, fail

import loopwright as lw
from loopwright.plans import cache
from loopwright.plans.evidence import CacheRow
from loopwright.plans.plan import Terms, settled
from loopwright.plans.record import PlanChoice
from loopwright.rewrites import scope

pytestmark = pytest.mark.kernels

GRAPH = lw.Plan("graph", "graph", "resident")
XLA = settled(lw.Plan("xla", "graph"), Terms("memory", rewrites=scope.available()))
"""Stands for what somebody measured: training would try it, if it were long enough."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOOPWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "plans"


def learn(place: Path, identity: str, plan: lw.Plan) -> None:
    cache.write("plans", identity, CacheRow(PlanChoice(plan, "fast"), (), date=time.time()))
    assert (place / f"{identity}.json").exists()


def forget(place: Path) -> None:
    for path in place.iterdir():
        path.unlink()


def fit(trainer: lw.Trainer, fails_at: int = -1, **options: Any) -> None:
    given: Any = {"batch_size": 8, "epochs": 2, "save_every": "5 steps", "verbose": 0} | options
    trainer.fit(*arrays(), callbacks=[AtStep(fails_at, fail)], **given)


def failed(run_dir: Path, fails_at: int = 8, **options: Any) -> lw.Trainer:
    trainer = lw.Trainer(Noisy(), run_dir=run_dir, **options)
    with pytest.raises(RuntimeError, match="the machine failed"):
        fit(trainer, fails_at)
    return trainer


def resumed(run_dir: Path) -> list[lw.Plan]:
    trainer = lw.Trainer(Noisy(), run_dir=run_dir)
    fit(trainer)
    return remembered(trainer)


def remembered(trainer: lw.Trainer) -> list[lw.Plan]:
    """Which plans the run has taken from the cache, by its own record."""
    return [choice.plan for choice in trainer.plan_history.choices.values()]


def identity_of(batch_size: int = 8) -> str:
    trainer = lw.Trainer(Noisy())
    fit(trainer, epochs=1, batch_size=batch_size)
    return identity(trainer)


def identity(trainer: lw.Trainer) -> str:
    """What the cache calls the only kind of step of a trainer."""
    return [*trainer.plan_history.measured, *trainer.plan_history.choices][0]


def test_what_the_cache_learns_after_a_run_began_does_not_change_it(place: Path, tmp_path: Path):
    learn(place, identity(failed(tmp_path / "run")), XLA)
    assert resumed(tmp_path / "run") == []
    assert resumed(tmp_path / "new") == [XLA], "a new run asks the cache"


@pytest.mark.parametrize("fails_at", [8, 3])
def test_what_the_cache_forgets_after_a_run_began_does_not_change_it(
    fails_at: int, place: Path, tmp_path: Path
):
    """Saved at step 5, it is resumed from there, or begins again where it failed before."""
    learn(place, identity_of(), XLA)
    failed(tmp_path / "run", fails_at)
    forget(place)
    assert resumed(tmp_path / "run") == [XLA]


def test_the_record_of_an_earlier_version_is_followed_too(place: Path, tmp_path: Path):
    """It names a remembered plan only as the plan of every step."""
    recorded = lw.Plan("graph", "python", "stream")
    failing = failed(tmp_path / "run", plan=recorded)
    assert not failing.plan_history.choices
    assert not failing.plan_history.measured
    learn(place, identity_of(), XLA)
    trainer = lw.Trainer(Noisy(), run_dir=tmp_path / "run")
    fit(trainer)
    assert [(change.step, change.plan) for change in trainer.plan_history.changes] == [
        (0, recorded)
    ]


def test_a_second_leg_that_failed_before_its_first_checkpoint_follows_its_record(
    place: Path, tmp_path: Path
):
    def legs(trainer: lw.Trainer, fails_at: int = -1) -> list[lw.Plan]:
        fit(trainer, epochs=1)
        fit(trainer, fails_at, epochs=1, batch_size=26)
        return remembered(trainer)

    learn(place, identity_of(batch_size=26), XLA)
    failing = lw.Trainer(Noisy(), run_dir=tmp_path / "run")
    with pytest.raises(RuntimeError, match="the machine failed"):
        legs(failing, fails_at=3)
    forget(place)
    assert legs(lw.Trainer(Noisy(), run_dir=tmp_path / "run")) == [XLA]


def test_assert_resumes_exactly_holds_while_the_cache_learns(place: Path):
    identity = identity_of()
    plans = iter([None, XLA, GRAPH])

    def make_trainer(run_dir: Path) -> lw.Trainer:
        plan = next(plans)
        if plan is not None:
            learn(place, identity, plan)
        made.append(lw.Trainer(Noisy(), run_dir=run_dir))
        return made[-1]

    made: list[lw.Trainer] = []
    lw.testing.assert_resumes_exactly(make_trainer, *arrays(), epochs=1, batch_size=8, break_at=[7])
    whole, _, again = (trainer.plan_history.changes for trainer in made)
    assert whole == again
