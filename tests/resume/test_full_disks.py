"""Disks that are full, read-only or broken while a run begins: an error that names them."""

import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import keras
import numpy as np
import pytest
from tests.resume.test_store_kills import needs_strace, strace

import loopwright as lw
from loopwright.config import file
from loopwright.config.schema import Config
from loopwright.search.study import StudyDirectory

Mount = Callable[[str], Path]


def train(run_dir: Path) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    task = lw.Supervised(model, "mse", "sgd")
    x = np.zeros((8, 2), "float32")
    lw.Trainer(task, plan="graph", run_dir=run_dir).fit(x, x[:, :1], verbose=0)


def refusal(run_dir: Path) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lw.LoopwrightWarning)  # of files that a run can do without
        with pytest.raises(lw.LoopwrightError) as refused:
            train(run_dir)
    said = str(refused.value)
    assert all(part in said for part in ("\n  expected: ", "\n  received: ", "\n  do: ")), said
    assert str(run_dir) in said
    return said


@pytest.mark.parametrize("files", [4, *range(1, 4), *range(5, 19)])
def test_a_disk_that_takes_no_further_file_is_named(files: int, mount: Mount):
    said = refusal(mount(f"nr_inodes={files}") / "runs" / "a")
    assert "No space left on device" in said
    if files == 4:
        assert "(metrics.jsonl)" in said


@pytest.mark.parametrize("size", [16, 4, 32])
def test_a_disk_without_space_is_named_also_if_the_log_cannot_be_closed(size: int, mount: Mount):
    assert "No space left on device" in refusal(mount(f"size={size}k") / "runs" / "a")


@pytest.mark.parametrize("begun", [False, True])
def test_a_read_only_disk_is_named(begun: bool, mount: Mount):
    place = mount("size=1m")
    if begun:
        (place / "run").mkdir()
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
    assert "Read-only file system" in refusal(place / "run")


def test_a_config_and_a_study_that_cannot_be_written_are_named(mount: Mount):
    place = mount("nr_inodes=2")
    (place / "run").mkdir()
    with pytest.raises(lw.ConfigurationError, match=r"No space left on device \(config.yaml.tmp\)"):
        file.save(Config(task="digits"), place / "run")
    with pytest.raises(lw.ConfigurationError, match="The study cannot be written"):
        StudyDirectory(place / "study", cast(Any, None)).create()


BEGINNING = f"""
import sys
sys.path.insert(0, {os.getcwd()!r})
from pathlib import Path
import loopwright as lw
from tests.resume.test_full_disks import train
try:
    train(Path(sys.argv[1]))
except lw.LoopwrightError as error:
    print(error)
    sys.exit(3)
"""


@needs_strace
@pytest.mark.parametrize("point", range(1, 5))
def test_a_disk_that_cannot_flush_what_a_run_begins_with_is_named(point: int, tmp_path: Path):
    under = strace(os.devnull, "trace=fsync", f"inject=fsync:error=EIO:when={point}")
    command = [*under, sys.executable, "-B", "-c", BEGINNING, str(tmp_path / "runs" / "a")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert re.search(r"received: .*Input/output error", done.stdout), done.stdout
