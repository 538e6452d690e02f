"""Choices remembered between processes."""

from pathlib import Path

import pytest

from loopwright.plans import plan_history
from loopwright.plans.plan import Plan
from loopwright.plans.plan_history import Choice

FUSED = Choice(Plan("xla", "fused", "resident"), "900 steps/s")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOOPWRIGHT_CACHE_DIR", str(tmp_path))
    return tmp_path / "plans"


def test_a_choice_is_found_again_under_its_own_name_only(cache: Path):
    plan_history.remember("abc", FUSED)
    assert plan_history.remembered("abc") == FUSED
    assert plan_history.remembered("abd") is None
    assert [path.name for path in cache.iterdir()] == ["abc.json"]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"plan": {"step": "warp"}, "why": ""}', '{"plan": {"speed": 1}}']
)
def test_what_cannot_be_read_is_as_if_it_were_not_there(cache: Path, content: str):
    cache.mkdir()
    (cache / "abc.json").write_text(content)
    assert plan_history.remembered("abc") is None


def test_where_nothing_can_be_written_nothing_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LOOPWRIGHT_CACHE_DIR", str(tmp_path / "file"))
    plan_history.remember("abc", FUSED)
    assert plan_history.remembered("abc") is None


def test_an_empty_directory_name_switches_it_off(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LOOPWRIGHT_CACHE_DIR", "")
    assert plan_history.directory() is None
    plan_history.remember("abc", FUSED)
    assert plan_history.remembered("abc") is None


def test_it_lies_where_the_system_keeps_its_caches(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("LOOPWRIGHT_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert plan_history.directory() == Path("/somewhere/loopwright/plans")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/ada")
    assert plan_history.directory() == Path("/home/ada/.cache/loopwright/plans")
