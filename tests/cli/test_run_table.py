"""What the files of a run tell: its row in the table, and what lies in it."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from loopwright.checkpoints import lock
from loopwright.checkpoints.store import Store
from loopwright.cli import run_overview
from loopwright.cli.main import app
from loopwright.runs import inspected


def write_files(into: Path) -> None:
    (into / "state.index").write_bytes(b"abc")


def make_run(path: Path, *, losses: list[float], status: str = "completed") -> Path:
    store = Store(path / "checkpoints")
    for number, loss in enumerate(losses):
        place = {"epoch": number + 1, "is_over": number == len(losses) - 1, "seconds": 2.0 * number}
        variables = [{"name": "w", "dtype": "float32", "shape": [2, 3]}]
        content: dict[str, Any] = {"leg": 0, "place": place, "scores": {"loss": loss}}
        store.write(
            10 * (number + 1),
            {**content, "variables": variables, "environment": {"cores": 2}},
            write_files,
        )
    (path / "metrics.jsonl").write_text('{"event": "started"}\n')
    (path / "status.json").write_text(json.dumps({"status": status}))
    return path


def test_a_row_tells_status_step_best_score_and_duration(tmp_path: Path):
    make_run(tmp_path / "runs" / "one", losses=[0.5, 0.2, 0.3])
    (row,) = run_overview.rows(tmp_path / "runs")
    assert (row.status, row.step, row.best, row.metric, row.seconds) == (
        "complete",
        30,
        0.2,
        "val_loss",
        4.0,
    )


@pytest.mark.parametrize(
    ("word", "status"),
    [
        ("completed", "complete"),
        ("interrupted", "interrupted"),
        ("failed", "failed"),
        ("running", "crashed"),
    ],
)
def test_the_status_is_how_the_last_leg_ended(tmp_path: Path, word: str, status: str):
    make_run(tmp_path, losses=[0.5], status=word)
    assert run_overview.rows(tmp_path)[0].status == status


def test_a_run_that_a_process_holds_is_running_and_looking_takes_nothing_from_it(tmp_path: Path):
    make_run(tmp_path, losses=[0.5])
    assert not lock.is_held(tmp_path / "lock")
    assert not (tmp_path / "lock").exists()
    with lock.held(tmp_path / "lock"):
        assert run_overview.rows(tmp_path)[0].status == "running"
        assert lock.is_held(tmp_path / "lock")
    assert run_overview.rows(tmp_path)[0].status == "complete"


def test_runs_are_sorted_and_what_is_unknown_comes_last(tmp_path: Path):
    for name, losses in {"a": [0.5], "b": [0.1, 0.2], "deeper/c": [0.3]}.items():
        make_run(tmp_path / name, losses=losses)
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "config.yaml").write_text("task: digits\n")
    (tmp_path / "no_run").mkdir()

    def order(sort: str) -> list[str]:
        return [row.path.name for row in run_overview.rows(tmp_path, sort=sort)]

    assert order("name") == ["a", "b", "d", "c"]
    assert order("best") == ["b", "c", "a", "d"]
    assert order("step")[-2:] == ["b", "d"]


def test_the_best_is_by_what_the_run_says_itself(tmp_path: Path):
    make_run(tmp_path, losses=[0.5, 0.2])
    (tmp_path / "config.yaml").write_text("task: digits\nkeep: [{best: val_mae}]\n")
    assert run_overview.rows(tmp_path)[0].metric == "val_mae"
    assert run_overview.rows(tmp_path)[0].best is None
    assert run_overview.rows(tmp_path, "val_loss")[0].best == 0.2
    (tmp_path / "config.yaml").write_text("nonsense: [")
    assert run_overview.rows(tmp_path)[0].metric == "val_loss"


def test_damage_is_a_status_and_is_named(tmp_path: Path):
    make_run(tmp_path, losses=[0.5])
    path = tmp_path / "checkpoints" / "step-00000010" / "state.index"
    os.chmod(path, 0o600)
    path.write_bytes(b"abd")
    found = inspected(tmp_path)
    assert "checksum" in found["checkpoints"][0]["damage"]
    path.write_bytes(b"longer")
    assert run_overview.rows(tmp_path)[0].status == "damaged"


def test_an_inspection_tells_files_checksums_and_variables(tmp_path: Path):
    make_run(tmp_path, losses=[0.5, 0.2])
    found = inspected(tmp_path)
    json.dumps(found)
    assert [one["step"] for one in found["checkpoints"]] == [10, 20]
    file = found["checkpoints"][0]["files"]["state.index"]
    assert file["bytes"] == 3
    assert file["sha256"].startswith("ba7816bf")  # of "abc", as everybody knows
    assert found["variables"] == [{"name": "w", "dtype": "float32", "shape": [2, 3], "bytes": 24}]
    assert found["environment"] == {"cores": 2}


GARBAGE = ("a word", 10**400, None, [[]], {"a": {}})


def right_content() -> dict[str, Any]:
    place = {"step": 10, "epoch": 1, "is_over": True, "seconds": 2.0, "validated_step": 10}
    return {
        "leg": 0,
        "until": "1 epoch",
        "place": place,
        "scores": {"loss": 0.5},
        "measured": {"loss": 0.5},
        "keep": [{"metric": "val_loss", "count": 1, "mode": "min"}],
        "variables": [{"name": "w", "dtype": "float32", "shape": [2, 3]}],
        "environment": {"cores": 2},
    }


def places(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = enumerate(content) if isinstance(content, list) else content.items()
    for key, value in list(inner):
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


@pytest.mark.parametrize("value", GARBAGE, ids=lambda value: str(value)[:9])
def test_values_of_the_wrong_kind_in_a_manifest_never_end_in_a_traceback(
    tmp_path: Path, value: Any
):
    for number, path in enumerate(places(right_content())):
        content: Any = right_content()
        holder = content
        for key in path[:-1]:
            holder = holder[key]
        holder[path[-1]] = value
        run = tmp_path / f"run{number}"
        Store(run / "checkpoints").write(10, content, write_files)
        (run / "metrics.jsonl").write_text('{"event": "started"}\n')
        (run / "status.json").write_text(json.dumps({"status": value, "step": value}))
    runner = CliRunner()
    for command in (["runs", str(tmp_path)], ["runs", str(tmp_path), "--json", "--sort", "best"]):
        done = runner.invoke(app, command)
        assert done.exit_code == 0, done.exception
    for run in tmp_path.iterdir():
        for command in ("runs", "report"):
            done = runner.invoke(app, [command, str(run)])
            assert done.exit_code == 0, (command, run, done.exception)


def test_fields_of_the_wrong_kind_are_named(tmp_path: Path):
    content = right_content() | {"place": {"seconds": "two"}, "leg": "first"}
    Store(tmp_path / "checkpoints").write(10, content, write_files)
    assert run_overview.rows(tmp_path)[0].status == "damaged"
    (found,) = inspected(tmp_path)["checkpoints"]
    assert "manifest.json: leg: expected a valid integer, received 'first'" in found["damage"]
