"""`loopwright plans`: what is remembered, why, and how to forget it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from loopwright.cli import main
from loopwright.errors import LoopwrightError
from loopwright.plans import memory
from loopwright.plans.memory import Entry, Tried
from loopwright.plans.plan import Plan
from loopwright.plans.plan_history import Choice

GRAPH, FUSED, XLA = (
    Plan("graph", "graph", "resident"),
    Plan("xla", "fused", "resident"),
    Plan("xla", "graph", "resident"),
)
PART = Entry(
    Choice(FUSED, "36.8 (35-37) steps/s, 2.3x the speed of the first plan"),
    (
        Tried(GRAPH, "measured", rates=(15.0, 15.8, 16.0), steps=9, compile_seconds=1.5),
        Tried(FUSED, "measured", rates=(35.0, 36.8, 37.0), steps=22, compile_seconds=5.5),
        Tried(XLA, "not tried", "not worth it in a run this short"),
    ),
    date=1e9,
    load=1.3,
    version="0.1.0",
    title="Supervised, functional_\x1b[2J, batch 32x64x64 32x1",
)
COMPLETE = replace(
    PART, tried=(*PART.tried[:2], Tried(XLA, "failed", "could not be compiled (no kernel)"))
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOOPWRIGHT_CACHE_DIR", str(tmp_path))
    memory.write("ab" * 32, PART)
    memory.write("ac" * 32, replace(COMPLETE, date=1.1e9))
    (tmp_path / "plans" / "garbage.json").write_text("{")
    return tmp_path / "plans"


def plans(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(main.app, ["plans", *arguments])
    if isinstance(done.exception, LoopwrightError):
        return main.exit_code(done.exception), str(done.exception)
    return done.exit_code, done.output


def test_it_lists_what_is_remembered_and_why_newest_first(cache: Path):
    code, output = plans()
    assert code == 0
    assert output.index("acacacacacac") < output.index("abababababab") < output.index("garbage")
    for words in (
        "abababababab  Supervised, functional_\\x1b[2J, batch 32x64x64 32x1",
        "plan loop inside XLA, arrays on the device",
        "why 36.8 (35-37) steps/s, 2.3x the speed of the first plan",
        "36.8 (35-37) steps/s, 22 steps, compiled in",
        "not tried, not worth it in a run this short",
        "failed, could not be compiled (no kernel)",
        "when 2001-09-09",
        "1.3 processes ready per core, Loopwright 0.1.0",
        "state partial, the next run continues",
        "state complete",
        f"file {'ab' * 32}.json",
        "garbage  damaged or of another version, will be measured again",
        f"3 in {cache}",
    ):
        assert " ".join(words.split()) in " ".join(output.split()), words
    assert max(map(len, output.splitlines()[:-1])) <= 80
    assert "\x1b" not in output
    content = json.loads(plans("--json")[1])
    assert memory.parsed(content["ab" * 32]) == PART
    assert content["garbage"] is None


def test_one_is_forgotten_by_the_start_of_its_id_and_others_stay(cache: Path):
    code, output = plans("--forget", "ab")
    assert (code, output.splitlines()[0][:24]) == (0, "forgotten  abababababab ")
    assert sorted(path.stem for path in cache.iterdir()) == ["ac" * 32, "garbage"]
    assert plans("--forget", "all")[0] == 0
    assert list(cache.iterdir()) == []
    assert plans() == (0, f"nothing is remembered in {cache}\n")


@pytest.mark.parametrize("wanted", ["zz", "a", "", "../plans/garbage", "*"])
def test_an_id_that_names_none_or_several_is_refused_and_nothing_is_forgotten(
    cache: Path, wanted: str
):
    code, output = plans("--forget", wanted)
    assert code == 2
    for part in ("names ", "Expected: the first characters of one ID", "Received: ", "Do: copy"):
        assert part.lower() in output.lower(), output
    assert len(list(cache.iterdir())) == 3


def test_it_says_that_the_memory_is_switched_off(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LOOPWRIGHT_CACHE_DIR", "")
    off = 'nothing is remembered: LOOPWRIGHT_CACHE_DIR="" switches the memory off\n'
    assert plans() == plans("--forget", "all") == (0, off)
    assert plans("--json") == (0, "{}\n")
    assert plans("--forget", "ab")[0] == 2
