"""What is remembered of plans between processes, with its evidence."""

import json
import os
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from loopwright.plans import cache
from loopwright.plans.evidence import CacheRow, Evidence
from loopwright.plans.plan import Plan
from loopwright.plans.record import PlanChoice, PlanHistory, parsed
from loopwright.plans.selector import recall

GRAPH = Plan()
FUSED = PlanChoice(Plan("xla", "fused", "resident", ("threefry",)), "900 steps/s")
EVIDENCE = (
    Evidence(GRAPH, "measured", rates=(400.0, 410.0), compile_seconds=1.5),
    Evidence(FUSED.plan, "measured", rates=(880.0, 900.0, 910.0), compile_seconds=5.5),
    Evidence(Plan("xla", "graph"), "failed", "could not be compiled (no kernel)"),
)
ROW = CacheRow(FUSED, EVIDENCE, date=time.time())
NOT_TRIED = Evidence(Plan("xla", "graph"), "not tried", "too short")
PART = replace(ROW, evidence=(*EVIDENCE[:2], NOT_TRIED))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOOPWRIGHT_CACHE_DIR", str(tmp_path))
    return tmp_path / "plans"


def read(name: str) -> CacheRow | None:
    return cache.read("plans", name, CacheRow)


def recalled(
    history: PlanHistory | None = None, *, is_continued: bool = False
) -> tuple[PlanChoice | None, PlanHistory, CacheRow | None]:
    return recall(history or PlanHistory(), "abc", GRAPH, [FUSED.plan], is_continued=is_continued)


def test_a_choice_is_found_again_with_its_evidence_and_under_its_own_name_only(place: Path):
    for row in (ROW, PART):
        cache.write("plans", "abc", row)
        assert read("abc") == row
    assert read("abd") is None
    assert [path.name for path in place.iterdir()] == ["abc.json"]
    assert (ROW.is_complete, PART.is_complete) == (True, False)


def changed(**changes: Any) -> str:
    return json.dumps(asdict(ROW) | changes)


def tried(**changes: Any) -> str:
    return changed(evidence=[asdict(ROW)["evidence"][1] | changes])


def chosen(plan: Any) -> str:
    return changed(choice={"plan": plan, "why": "fast"})


OF_AN_EARLIER_VERSION = {
    "format": 2,
    **asdict(FUSED),
    "tried": [asdict(EVIDENCE[0]) | {"steps": 3}],
    "date": "2026-11-01T10:00:00+00:00",
    "load": 0.4,
    "version": "0.1.0",
    "title": "Supervised",
}


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", "null", "7", "[" * 100_000, "\0", "\ud800"),
        *(json.dumps(OF_AN_EARLIER_VERSION), changed(format=2)),
        *(chosen({"step": "warp"}), chosen({"speed": 1}), chosen(7)),
        *(chosen({"step": "graph", "loop": "fused"}), chosen({"feed": 7})),
        *(changed(date="soon"), changed(date=float("inf")), changed(evidence=7)),
        *(tried(rates=[]), tried(rates=[-1.0]), tried(rates=[0.0]), tried(rates=[float("nan")])),
        *(tried(rates=[float("inf")]), tried(rates="fast"), tried(rates=[10**400])),
        *(tried(state="perhaps"), tried(compile_seconds="long"), tried(compile_seconds=-1)),
    ],
)
def test_what_cannot_be_read_is_as_if_it_were_not_there(place: Path, content: str):
    place.mkdir()
    (place / "abc.json").write_text(content, errors="surrogatepass")
    assert read("abc") is None
    assert recalled() == (None, PlanHistory().measuring("abc"), None)
    cache.write("plans", "abc", ROW)
    assert read("abc") == ROW


def test_a_directory_a_pipe_and_a_symlink_in_place_of_a_row_are_not_read(place: Path):
    place.mkdir()
    (place / "a.json").mkdir()
    os.mkfifo(place / "b.json")
    (place / "c.json").symlink_to(place / "d.json")
    cache.write("plans", "d", ROW)
    assert [read(name) for name in "abcd"] == [None, None, None, ROW]


def test_where_nothing_can_be_written_nothing_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").write_text("")
    for directory in ("", str(tmp_path / "file")):  # an empty name switches it off
        monkeypatch.setenv("LOOPWRIGHT_CACHE_DIR", directory)
        cache.write("plans", "abc", ROW)
        assert read("abc") is None
    monkeypatch.setenv("LOOPWRIGHT_CACHE_DIR", "")
    assert (cache.directory(), cache.plan_count()) == (None, 0)


def test_it_lies_where_the_system_keeps_its_caches(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("LOOPWRIGHT_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache.directory() == Path("/somewhere/loopwright/plans")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/ada")
    assert cache.directory() == Path("/home/ada/.cache/loopwright/plans")


def test_everything_is_forgotten_with_the_process_settings(place: Path):
    assert cache.forget_all() == 0
    cache.write("plans", "one", ROW)
    cache.write("plans", "other", ROW)
    (place.parent / "settings" / "commands").mkdir(parents=True)
    (place.parent / "other").write_text("not ours")
    assert cache.forget_all() == 2
    assert [path.name for path in place.parent.iterdir()] == ["other"]


# --- the record of the run first, then the cache ---


def test_a_run_asks_the_cache_once_and_records_the_answer(place: Path):
    cache.write("plans", "abc", ROW)
    choice, history, row = recalled()
    assert (choice, row) == (FUSED, ROW)
    assert dict(history.choices) == {"abc": FUSED}
    (place / "abc.json").unlink()
    assert recalled(history) == (FUSED, history, None)


def test_that_the_cache_had_no_answer_is_recorded_too(place: Path):
    choice, history, _ = recalled()
    assert (choice, history.measured) == (None, ("abc",))
    cache.write("plans", "abc", ROW)  # by another run
    assert recalled(history, is_continued=True) == (None, history, None)


def test_the_best_of_a_part_is_a_choice_unless_it_is_the_plan_that_training_starts_with(
    place: Path,
):
    cache.write("plans", "abc", PART)
    assert recalled() == (FUSED, PlanHistory().chosen("abc", FUSED), PART)
    slow = replace(PART, choice=PlanChoice(GRAPH, "nothing faster was found so far"))
    cache.write("plans", "abc", slow)
    assert recalled() == (None, PlanHistory().measuring("abc"), slow)


@pytest.mark.parametrize(
    "row",
    [
        replace(ROW, choice=PlanChoice(Plan("eager", "python"), "edited")),
        replace(ROW, date=ROW.date - 15 * 86_400),
        replace(ROW, date=ROW.date + 2 * 86_400),
    ],
    ids=["which training would not try", "14 days old", "in the future"],
)
def test_a_row_that_proves_nothing_is_not_used(place: Path, row: CacheRow):
    cache.write("plans", "abc", row)
    assert recalled() == (None, PlanHistory().measuring("abc"), None)


def test_a_resumed_run_never_asks_the_cache(place: Path):
    cache.write("plans", "abc", ROW)
    for plan, expected in ((GRAPH, None), (FUSED.plan, PlanChoice(FUSED.plan, "as recorded"))):
        history = PlanHistory().changed(0, plan)  # a plan that was asked for
        assert recalled(history, is_continued=True) == (expected, history, None)


def test_a_choice_is_in_the_file_of_the_history():
    history = PlanHistory().measuring("abc").chosen("abc", FUSED)
    assert parsed(history.content()) == history
