"""What is remembered of plans between processes, with its evidence."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loopwright.plans import memory
from loopwright.plans.memory import Entry, Tried
from loopwright.plans.plan import Plan
from loopwright.plans.plan_history import Choice, PlanHistory, parsed

GRAPH = Plan()
FUSED = Choice(Plan("xla", "fused", "resident"), "900 steps/s")
TRIED = (
    Tried(GRAPH, "measured", rates=(400.0, 410.0), steps=90, compile_seconds=1.5),
    Tried(FUSED.plan, "measured", rates=(880.0, 900.0, 910.0), steps=300, compile_seconds=5.5),
    Tried(Plan("xla", "graph"), "failed", "could not be compiled (no kernel)"),
)
ENTRY = Entry(FUSED, TRIED, date=1e9, load=0.4, version="0.1.0", title="Supervised, batch 32x20")
PART = replace(ENTRY, tried=(*TRIED[:2], Tried(Plan("xla", "graph"), "not tried", "too short")))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOOPWRIGHT_CACHE_DIR", str(tmp_path))
    return tmp_path / "plans"


def test_a_choice_is_found_again_with_its_evidence_and_under_its_own_name_only(cache: Path):
    memory.write("abc", ENTRY)
    assert memory.read("abc") == ENTRY
    assert memory.read("abd") is None
    assert [path.name for path in cache.iterdir()] == ["abc.json"]
    memory.write("abc", PART)
    assert memory.read("abc") == PART


def test_a_choice_is_complete_if_each_plan_was_tried_to_its_end_or_failed():
    assert ENTRY.is_complete
    assert not PART.is_complete


def changed(**changes: Any) -> str:
    return json.dumps(ENTRY.content() | changes)


def tried(**changes: Any) -> str:
    return changed(tried=[ENTRY.content()["tried"][1] | changes])


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", "null", "7", "[" * 100_000, "\0", "\ud800"),
        json.dumps({"plan": {"step": "xla", "loop": "fused"}, "why": "of an earlier version"}),
        *(changed(format=1), changed(format=3), changed(format="2")),
        *(changed(plan={"step": "warp"}), changed(plan={"speed": 1}), changed(plan=7)),
        *(changed(date="soon"), changed(date=7), changed(load="much"), changed(tried=7)),
        *(tried(rates=[]), tried(rates=[-1.0]), tried(rates=[0.0]), tried(rates=[float("nan")])),
        *(tried(rates=[float("inf")]), tried(rates="fast"), tried(rates=[10**400])),
        *(tried(state="perhaps"), tried(steps="many"), tried(compile_seconds=-1)),
    ],
)
def test_what_cannot_be_read_is_as_if_it_were_not_there(cache: Path, content: str):
    cache.mkdir()
    (cache / "abc.json").write_text(content, errors="surrogatepass")
    assert memory.read("abc") is None
    assert memory.identities() == ["abc"]
    found = memory.recall(PlanHistory(), "abc", GRAPH, [FUSED.plan], is_continued=False)
    assert found.choice is None
    assert found.note.startswith("ignoring the remembered plan, which cannot be read: ")
    assert "\n" not in found.note
    memory.write("abc", ENTRY)
    assert memory.read("abc") == ENTRY


def test_a_directory_a_pipe_and_a_symlink_in_place_of_an_entry_are_not_read(cache: Path):
    cache.mkdir()
    (cache / "a.json").mkdir()
    os.mkfifo(cache / "b.json")
    (cache / "c.json").symlink_to(cache / "d.json")
    memory.write("d", ENTRY)
    assert [memory.read(name) for name in "abcd"] == [None, None, None, ENTRY]


def test_where_nothing_can_be_written_nothing_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LOOPWRIGHT_CACHE_DIR", str(tmp_path / "file"))
    memory.write("abc", ENTRY)
    assert memory.read("abc") is None


def test_an_empty_directory_name_switches_it_off(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LOOPWRIGHT_CACHE_DIR", "")
    assert memory.cache_directory() is None
    memory.write("abc", ENTRY)
    assert memory.read("abc") is None
    assert memory.identities() == []


def test_it_lies_where_the_system_keeps_its_caches(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("LOOPWRIGHT_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert memory.cache_directory() == Path("/somewhere/loopwright/plans")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/ada")
    assert memory.cache_directory() == Path("/home/ada/.cache/loopwright/plans")


def test_everything_is_forgotten_with_the_process_settings(cache: Path):
    assert memory.forget_all() == 0
    memory.write("one", ENTRY)
    memory.write("other", ENTRY)
    (cache.parent / "settings" / "commands").mkdir(parents=True)
    (cache.parent / "other").write_text("not ours")
    assert sorted(memory.identities()) == ["one", "other"]
    assert memory.forget_all() == 2
    assert [path.name for path in cache.parent.iterdir()] == ["other"]


def test_a_choice_has_to_be_checked_after_some_days():
    days = [0, 2.9, 3, 13.9, 14, -0.5, -2]
    assert [ENTRY.check(ENTRY.date + day * 86_400) for day in days] == [
        *("not due", "not due", "if the run is long", "if the run is long", "due"),
        *("not due", "due"),
    ]


# --- the record of the run first, then the memory ---


def test_a_run_asks_the_memory_once_and_records_the_answer(cache: Path):
    memory.write("abc", ENTRY)
    found = memory.recall(PlanHistory(), "abc", GRAPH, [FUSED.plan], is_continued=False)
    assert (found.choice, found.entry) == (FUSED, ENTRY)
    assert dict(found.history.choices) == {"abc": FUSED}
    (cache / "abc.json").unlink()
    again = memory.recall(found.history, "abc", GRAPH, [FUSED.plan], is_continued=False)
    assert (again.choice, again.history, again.entry) == (FUSED, found.history, None)


def test_that_the_memory_had_no_answer_is_recorded_too(cache: Path):
    found = memory.recall(PlanHistory(), "abc", GRAPH, [FUSED.plan], is_continued=False)
    assert (found.choice, found.history.measured) == (None, ("abc",))
    memory.write("abc", ENTRY)  # by another run
    again = memory.recall(found.history, "abc", GRAPH, [FUSED.plan], is_continued=True)
    assert again == memory.Recalled(None, found.history)


def test_the_best_of_a_part_is_a_choice_unless_it_is_the_plan_that_training_starts_with(
    cache: Path,
):
    memory.write("abc", PART)
    found = memory.recall(PlanHistory(), "abc", GRAPH, [FUSED.plan], is_continued=False)
    assert (found.choice, found.entry) == (FUSED, PART)
    slow = replace(PART, choice=Choice(GRAPH, "nothing faster was found so far"))
    memory.write("abc", slow)
    found = memory.recall(PlanHistory(), "abc", GRAPH, [FUSED.plan], is_continued=False)
    assert (found.choice, found.entry, found.history.measured) == (None, slow, ("abc",))


def test_a_plan_that_training_would_not_try_is_not_taken_from_the_memory(cache: Path):
    edited = json.loads(json.dumps(ENTRY.content()))
    edited["plan"] = {"step": "eager", "loop": "python", "feed": None, "rewrites": []}
    cache.mkdir(parents=True)
    (cache / "abc.json").write_text(json.dumps(edited))
    found = memory.recall(PlanHistory(), "abc", GRAPH, [FUSED.plan], is_continued=False)
    assert (found.choice, found.entry, found.history.measured) == (None, None, ("abc",))
    assert found.note == "ignoring the remembered plan 'eager', which training would not try"


def test_a_resumed_run_never_asks_the_memory(cache: Path):
    memory.write("abc", ENTRY)
    for plan, expected in ((GRAPH, None), (FUSED.plan, Choice(FUSED.plan, "as recorded"))):
        history = PlanHistory().changed(0, plan)  # of a version that did not record answers
        found = memory.recall(history, "abc", GRAPH, [FUSED.plan], is_continued=True)
        assert found == memory.Recalled(expected, history)


def test_a_choice_is_in_the_file_of_the_history():
    history = PlanHistory().measuring("abc").chosen("abc", FUSED)
    assert parsed(history.content()) == history
