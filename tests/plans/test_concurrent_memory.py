"""Several processes write the memories of plans and of settings at the same time."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from loopwright import settings
from loopwright.plans import cache
from loopwright.plans.evidence import CacheRow

WRITERS, TIMES = 4, 60
WRITES = f"""
import sys
from loopwright import settings
from loopwright.plans import cache
from loopwright.plans.evidence import Evidence, CacheRow
from loopwright.plans.plan import Plan
from loopwright.plans.record import PlanChoice
from loopwright.launch import Settings
from loopwright.settings import SettingsChoice

me = int(sys.argv[1])
evidence = (Evidence(Plan(), "measured", rates=(1.0 + me,) * 200),)
row = CacheRow(PlanChoice(Plan(), f"{{1.0 + me}}"), evidence, date=1e9)

def choice(identity):
    on, off = Settings(onednn=True), Settings()
    return SettingsChoice(identity, off, on, 1.0 + me, f"of {{me}}")

print("ready", flush=True)
sys.stdin.readline()
for number in range({TIMES}):
    cache.write("plans", "shared", row)
    cache.write("plans", f"own-{{me}}-{{number}}", row)
    settings.remember("run-shared", choice("shared"))
    settings.remember(f"run-{{me}}-{{number}}", choice(f"own-{{me}}-{{number}}"))
    for found in (cache.read("plans", "shared", CacheRow), settings.remembered("run-shared")):
        assert found is not None
        if isinstance(found, CacheRow):
            assert found.evidence[0].rates == (float(found.choice.why),) * 200
        else:
            assert found.run_dir == f"of {{found.gain - 1:.0f}}"
"""


@pytest.fixture(autouse=True)
def cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOPWRIGHT_CACHE_DIR", str(tmp_path))


def started(code: str, count: int) -> "list[subprocess.Popen[str]]":
    """Processes that begin to write when all of them are ready."""
    pipe = subprocess.PIPE
    commands = [[sys.executable, "-c", code, str(number)] for number in range(count)]
    writers = [subprocess.Popen(each, stdin=pipe, stdout=pipe, text=True) for each in commands]
    for each in writers:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    for each in writers:
        assert each.stdin is not None
        each.stdin.write("\n")
        each.stdin.flush()
    return writers


def test_processes_that_write_at_the_same_time_lose_nothing_and_leave_no_garbage(tmp_path: Path):
    writers = started(WRITES, WRITERS)
    for each in writers:
        each.communicate(timeout=60)
    assert [each.returncode for each in writers] == [0] * WRITERS

    names = [f"{me}-{number}" for me in range(WRITERS) for number in range(TIMES)]
    for name in ("shared", *(f"own-{name}" for name in names)):
        assert cache.read("plans", name, CacheRow) is not None
    for name in names:
        choice = settings.remembered(f"run-{name}")
        assert choice is not None
        assert choice.run_dir == f"of {name.partition('-')[0]}"
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 2 * (1 + len(names)), "temporary files are left"
    for path in files:
        json.loads(path.read_text())


def test_one_process_may_forget_what_another_writes():
    (writer,) = started(WRITES.replace("assert", "None and"), 1)
    while writer.poll() is None:
        cache.delete("settings", "run-shared")
        cache.plan_count()
    assert writer.wait() == 0
    writer.communicate()
    cache.delete("settings", "run-shared")
    assert settings.remembered("run-shared") is None
    assert settings.remembered("run-0-0") is not None
