"""Compiled XLA programs from one process to the next: the same bits, and no harm from damage."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.engine import cached_training
from tests.resume.children import Child

from loopwright.engine import xla_cache
from loopwright.engine.xla_store import files

DO = """
from pathlib import Path
from tests.engine import cached_training
cached_training.train(Path({cache!r}), Path({answer!r}), {settings!r})
"""


def trained(cache: Path, **settings: str) -> tuple[dict[str, Any], str]:
    """What the training of a new process found, and what it printed."""
    answer = cache.parent / "answer.json"
    child = Child(
        cache.parent / "log" / "child.txt", cached_training.train, cache, answer, settings
    )
    code, printed = child.ended()
    assert code == 0, printed
    return json.loads(answer.read_text()), printed


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A cache with the program of one training, and the bits that it ended with."""
    cache = tmp_path_factory.mktemp("a cache") / "with a space"
    found, _ = trained(cache)
    assert found["given"] == 0
    assert len(files(cache / "xla")) == 1
    return cache, found["bits"]


def test_another_process_loads_the_program_and_ends_with_the_same_bits(filled: tuple[Path, str]):
    cache, bits = filled
    # Another process has made other functions before: they do not change the program's name.
    found, printed = trained(cache, before="3")
    assert found == {"bits": bits, "given": 1, "is_environment_kept": True}
    assert len(files(cache / "xla")) == 1, "it was compiled again"
    assert "Error parsing text-format" not in printed


def test_other_flags_of_xla_do_not_find_the_program(filled: tuple[Path, str]):
    cache, _ = filled
    found, _ = trained(cache, XLA_FLAGS="--xla_cpu_enable_fast_math=true")
    assert found["given"] == 0
    kinds = {name.partition("/")[0] for name in files(cache / "xla")}
    assert len(kinds) == 2
    found, _ = trained(cache, XLA_FLAGS="--xla_dump_hlo_as_text=false")
    assert found["given"] == 1, "where XLA writes its dumps is not part of the program"


@pytest.mark.parametrize("damage", cached_training.DAMAGES)
def test_a_file_damaged_after_it_was_checked_is_compiled_again(
    filled: tuple[Path, str], damage: str
):
    cache, bits = filled
    found, printed = trained(cache, damage=damage)
    assert found.get("bits") == bits, (found, printed)
    assert found["given"]
    found, _ = trained(cache)
    assert found["bits"] == bits


def test_damage_found_inside_a_loop_over_a_stream_is_no_end_of_data(tmp_path: Path):
    bits = trained(tmp_path / "cache", plan="xla")[0]["bits"]
    found, _ = trained(tmp_path / "cache", plan="xla", damage="truncated")
    assert found["error"].startswith("ProgramCacheError: A compiled XLA program could not be read")
    assert "Read less bytes than requested" in found["error"]
    found, _ = trained(tmp_path / "cache", plan="xla")
    assert (found["bits"], found["given"]) == (bits, 0)


def test_a_kill_while_a_program_is_written_leaves_nothing_that_is_loaded(tmp_path: Path):
    cache = tmp_path / "cache"
    arguments = (cache, tmp_path / "none.json", {"kill": "yes"})
    child = Child(tmp_path / "log.txt", cached_training.train, *arguments)
    assert child.ended()[0] == -signal.SIGKILL
    assert list((cache / "xla").glob("process-*"))
    assert trained(cache)[0]["given"] == 0
    found, _ = trained(cache)
    assert found["given"] == 1
    assert len(list((cache / "xla").glob("process-*"))) == 1, "those of killed processes stay"


def test_two_processes_at_once_fill_one_cache(tmp_path: Path):
    cache = tmp_path / "cache"
    children = [
        Child(tmp_path / f"{n}.txt", cached_training.train, cache, tmp_path / f"{n}.json", {})
        for n in range(2)
    ]
    assert [child.ended()[0] for child in children] == [0, 0]
    one, other = (json.loads((tmp_path / f"{n}.json").read_text()) for n in range(2))
    assert one["bits"] == other["bits"] == trained(cache)[0]["bits"]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"LOOPWRIGHT_CACHE_DIR": ""}, "LOOPWRIGHT_CACHE_DIR is empty"),
        ({"TF_XLA_FLAGS": "--tf_xla_persistent_cache_directory=/x"}, "TF_XLA_FLAGS names"),
        ({"LOOPWRIGHT_CACHE_DIR": "{tmp}/file"}, "file cannot be written"),
        ({"LOOPWRIGHT_CACHE_DIR": "{tmp}/shared"}, "can be written by every user"),
    ],
)
def test_what_someone_else_set_or_can_change_is_left_alone(
    settings: dict[str, str], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").touch()
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    monkeypatch.setenv("LOOPWRIGHT_CACHE_DIR", str(tmp_path / "own"))
    assert xla_cache.described().startswith("on, 0 programs, 0.0 MB in ")
    for name, value in settings.items():
        monkeypatch.setenv(name, value.format(tmp=tmp_path))
    assert reason in xla_cache.described()
    assert not (tmp_path / "own").exists(), "looking at it makes nothing"


def test_a_process_that_ends_leaves_only_programs(tmp_path: Path):
    cache, answer = tmp_path / "cache", tmp_path / "answer.json"
    code = DO.format(cache=str(cache), answer=str(answer), settings={})
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "2"}
    subprocess.run([sys.executable, "-P", "-c", code], env=environment, check=True)
    assert "bits" in json.loads(answer.read_text())
    (kind,) = (cache / "xla").iterdir()
    assert len(list(kind.iterdir())) == 1
