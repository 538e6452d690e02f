"""Choices remembered between processes."""

from pathlib import Path

import pytest

from loopwright.plans import plan_history
from loopwright.plans.plan import Plan
from loopwright.plans.plan_history import Choice, PlanHistory

FUSED = Choice(Plan("xla", "fused", "resident"), "900 steps/s")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOOPWRIGHT_CACHE_DIR", str(tmp_path))
    return tmp_path / "plans"


def test_a_choice_is_found_again_under_its_own_name_only(cache: Path):
    plan_history.cache("abc", FUSED)
    assert plan_history.cached("abc") == FUSED
    assert plan_history.cached("abd") is None
    assert [path.name for path in cache.iterdir()] == ["abc.json"]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"plan": {"step": "warp"}, "why": ""}', '{"plan": {"speed": 1}}']
)
def test_what_cannot_be_read_is_as_if_it_were_not_there(cache: Path, content: str):
    cache.mkdir()
    (cache / "abc.json").write_text(content)
    assert plan_history.cached("abc") is None


def test_where_nothing_can_be_written_nothing_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LOOPWRIGHT_CACHE_DIR", str(tmp_path / "file"))
    plan_history.cache("abc", FUSED)
    assert plan_history.cached("abc") is None


def test_an_empty_directory_name_switches_it_off(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LOOPWRIGHT_CACHE_DIR", "")
    assert plan_history.cache_directory() is None
    plan_history.cache("abc", FUSED)
    assert plan_history.cached("abc") is None


def test_it_lies_where_the_system_keeps_its_caches(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("LOOPWRIGHT_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert plan_history.cache_directory() == Path("/somewhere/loopwright/plans")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/ada")
    assert plan_history.cache_directory() == Path("/home/ada/.cache/loopwright/plans")


# --- one memory: the history of the run, then the cache ---

GRAPH = Plan()


def test_a_run_asks_the_cache_once_and_records_the_answer(cache: Path):
    plan_history.cache("abc", FUSED)
    choice, history = plan_history.recall(PlanHistory(), "abc", GRAPH, is_continued=False)
    assert (choice, dict(history.choices)) == (FUSED, {"abc": FUSED})
    (cache / "abc.json").unlink()
    assert plan_history.recall(history, "abc", GRAPH, is_continued=False) == (FUSED, history)


def test_that_the_cache_had_no_answer_is_recorded_too(cache: Path):
    choice, history = plan_history.recall(PlanHistory(), "abc", GRAPH, is_continued=False)
    assert (choice, history.measured) == (None, ("abc",))
    plan_history.cache("abc", FUSED)  # by another run
    assert plan_history.recall(history, "abc", GRAPH, is_continued=True) == (None, history)


def test_a_resumed_run_never_asks_the_cache(cache: Path):
    plan_history.cache("abc", FUSED)
    for plan, expected in ((GRAPH, None), (FUSED.plan, Choice(FUSED.plan, "as recorded"))):
        history = PlanHistory().changed(0, plan)  # of a version that did not record answers
        assert plan_history.recall(history, "abc", GRAPH, is_continued=True) == (expected, history)


def test_a_decision_is_in_the_history_and_in_the_cache(cache: Path):
    history = plan_history.decide(PlanHistory().measuring("abc"), "abc", FUSED)
    assert history.choices["abc"] == plan_history.cached("abc") == FUSED
    assert plan_history.parsed(history.content()) == history
