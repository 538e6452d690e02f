"""The comparison with the peers: who takes part, how turns are taken, what is counted."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks import entrants
from benchmarks.contender import MODULES, entered, serve
from benchmarks.data import DATA
from benchmarks.entrants import Entrant
from benchmarks.measuring import Contender, Ready, a_round
from benchmarks.outcomes import (
    COLUMNS,
    HAND,
    JAX_SCAN,
    KERAS,
    KERAS_BEST,
    KERAS_JAX,
    LOOPWRIGHT,
    LOOPWRIGHT_BEST,
    MATMUL,
    PYTORCH,
    Measured,
)
from benchmarks.turns import Process, Start, is_in, take_turns

PEER = """
import json, os, sys
name, rates = sys.argv[1], json.loads(sys.argv[2])
print("not an answer", flush=True)
if not rates:
    sys.exit("no such framework")
prepared = [{"column": "c", "setting": f"{name}{i}", "failure": None} for i in range(len(rates))]
print(json.dumps({"prepared": prepared, "versions": {name: "1.0"}}), flush=True)
for line in sys.stdin:
    order = json.loads(line)
    with open(os.environ["ORDERS"], "a") as orders:
        orders.write(f"{name}{order['place']} ")
    rate = rates[order["place"]]
    if rate is None:
        print(json.dumps({"failure": "ValueError: no"}), flush=True)
    elif rate < 0:
        os._exit(3)
    else:
        print(json.dumps({"steps": rate, "seconds": 1.0, "found": {}}), flush=True)
"""
"""A process that answers as a contender does, with the rates that it was given."""


def started(directory: Path, name: str, rates: list[float | None]) -> Start:
    command = [sys.executable, "-c", PEER, name, json.dumps(rates)]
    environment = {"ORDERS": str(directory / "orders")}
    log = directory / f"{name}.log"
    return Start(name, lambda: Process(command, environment, log), lambda *shown: shown)


# --- turns ---


def test_processes_take_turns_and_another_one_begins_each_round(tmp_path: Path):
    starts = [started(tmp_path, "a", [9, 8]), started(tmp_path, "b", [7])]
    turns = take_turns(starts, rounds=3, round_seconds=1.0, cores=2)
    assert (tmp_path / "orders").read_text() == "a0 a1 b0 a1 b0 a0 b0 a0 a1 "
    assert [one.rates for one in turns.measured] == [(9, 9, 9), (8, 8, 8), (7, 7, 7)]
    assert turns.versions == {"a": "1.0", "b": "1.0"}


def test_who_is_far_behind_its_column_has_one_round(tmp_path: Path):
    turns = take_turns([started(tmp_path, "a", [9, 1])], rounds=3, round_seconds=1.0, cores=1)
    assert [len(one.rates) for one in turns.measured] == [3, 1]


def test_who_fails_or_dies_is_out_and_the_others_go_on(tmp_path: Path):
    rates: dict[str, list[float | None]] = {"a": [None, 5], "b": [5], "c": [-1, 5]}
    starts = [started(tmp_path, name, each) for name, each in rates.items()]
    failed, *others, died, with_it = take_turns(
        starts, rounds=2, round_seconds=1.0, cores=2
    ).measured
    assert failed.failure == "ValueError: no"
    assert [one.rates for one in others] == [(5, 5), (5, 5)]
    for one in (died, with_it):  # a process takes only its own contenders with it
        assert "ended with exit code 3" in (one.failure or "")


def test_a_process_that_cannot_start_is_left_out(tmp_path: Path):
    starts = [started(tmp_path, "a", []), started(tmp_path, "b", [5])]
    turns = take_turns(starts, rounds=1, round_seconds=1.0, cores=2)
    assert [one.setting for one in turns.measured] == ["b0"]


def test_a_process_that_does_not_answer_is_ended(tmp_path: Path):
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    process = Process(command, {}, tmp_path / "log")
    assert process.answer(seconds=0.0) == {"failure": "no answer within 0 s"}
    assert process.processor_seconds() == 0.0


def test_a_share_of_its_column_keeps_a_contender_in():
    best, near, far = (Measured(HAND, rates=(rate,)) for rate in (10.0, 6.0, 3.0))
    other = Measured(KERAS, rates=(1.0,))
    everyone = [best, near, far, other]
    assert [is_in(one, everyone, number=1) for one in everyone] == [True, True, False, True]
    assert [is_in(one, everyone, number=3) for one in everyone] == [True, False, False, True]
    assert all(is_in(one, everyone, number=0) for one in everyone)
    assert not is_in(Measured(HAND, failure="no"), everyone, number=0)


# --- the child ---


def test_a_child_answers_with_steps_and_seconds_and_trains_longer_once_it_knows_its_rate():
    trained: list[int] = []
    told: list[dict[str, Any]] = []

    def unprepared() -> Ready:
        raise TypeError("no such thing\nat length")

    chosen = [
        Contender("a", lambda: Ready(trained.append, lambda: {"setting": "chosen"})),
        Contender("b", unprepared, "own"),
    ]
    orders = [json.dumps({"place": 0, "seconds": 1e-9})]
    serve(chosen, 5, {"x": "1"}, orders, told.append)
    assert told[0]["prepared"] == [
        {"column": "a", "setting": "", "failure": None},
        {"column": "b", "setting": "own", "failure": "TypeError: no such thing"},
    ]
    assert told[1]["found"] == {"setting": "chosen"}
    assert told[1]["steps"] == 5
    assert trained == [1, 1]


def test_a_process_serves_the_columns_it_was_given_without_the_settings_left_out():
    settings = (("a", "32 xla"), ("a", "32 graph"), ("b", "fused"), ("c", ""))
    everyone = [
        Contender(column, lambda: Ready(lambda epochs: None), setting)
        for column, setting in settings
    ]
    chosen = entered(everyone, columns=["a", "b"], left_out=["xla", "fused"])
    assert [one.setting for one in chosen] == ["32 graph"]


def test_the_first_call_that_takes_half_of_a_round_counts():
    now, asked = 0.0, []

    def train(epochs: int) -> None:
        nonlocal now
        asked.append(epochs)
        now += 0.01 * epochs

    assert a_round(train, 1, 1.0, clock=lambda: now) == (100, pytest.approx(1.0))
    assert asked == [1, 16, 100]


# --- who takes part ---


def test_every_framework_has_a_module_and_peers_have_an_environment_and_pinned_versions():
    frameworks = {one.framework for key in DATA for one in entrants.entrants(key, cores=2)}
    assert frameworks == set(MODULES)
    assert frameworks - set(entrants.PEERS) == {"TensorFlow"}
    for place in entrants.PEERS.values():
        pins = entrants.ROOT / "benchmarks" / "peers" / f"{place.name.removeprefix('.venv-')}.txt"
        assert all("==" in line for line in pins.read_text().splitlines())


def test_every_column_has_someone_who_fills_it():
    columns = {c for one in entrants.entrants("mlp", cores=2) for c in one.columns}
    assert columns == {*COLUMNS, MATMUL}


def test_without_their_environments_peers_are_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(entrants, "PEERS", {"PyTorch": tmp_path, "JAX": tmp_path})
    missing = entrants.missing_peers()
    assert missing == ["PyTorch", "JAX"]
    chosen = entrants.entrants("mlp", 2, missing)
    assert {one.framework for one in chosen} == {"TensorFlow"}
    (tmp_path / ".installed").touch()
    assert entrants.missing_peers() == []


@pytest.mark.parametrize(
    ("key", "cores", "of_pytorch", "with_one_thread"),
    [
        ("mlp", 4, ["1 thread", "4 threads"], ["TensorFlow", "JAX", "PyTorch"]),
        ("mlp", 1, ["1 thread"], ["PyTorch"]),
        ("resnet", 4, ["4 threads"], []),
    ],
)
def test_short_steps_are_also_tried_with_one_thread(
    key: str, cores: int, of_pytorch: list[str], with_one_thread: list[str]
):
    chosen = entrants.entrants(key, cores)
    assert [one.label for one in chosen if one.framework == "PyTorch"] == of_pytorch
    assert [one.framework for one in chosen if one.label == "1 thread"] == with_one_thread


def test_a_peer_runs_in_its_own_environment_with_its_own_variables(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    torch = Entrant("PyTorch", (PYTORCH,), {"OMP_NUM_THREADS": "2"}, "2 threads")
    assert entrants.command(torch, "mlp", 1.0)[0] == str(entrants.PEERS["PyTorch"] / "bin/python")
    given = entrants.environment(torch, tmp_path)
    assert given["OMP_NUM_THREADS"] == "2"
    assert "TF_ENABLE_ONEDNN_OPTS" not in given
    plain = Entrant("TensorFlow", (KERAS,))
    assert entrants.command(plain, "mlp", 1.0)[0] == sys.executable
    assert "OMP_NUM_THREADS" not in entrants.environment(plain, tmp_path)


def test_keras_fit_is_as_it_comes_only_without_a_variable():
    plain = Entrant("TensorFlow", (KERAS,))
    onednn = Entrant("TensorFlow", (KERAS,), {"TF_ENABLE_ONEDNN_OPTS": "1"}, "oneDNN")
    assert plain.shown(KERAS, "") == (KERAS, "")
    assert onednn.shown(KERAS, "") == (KERAS_BEST, "1 graph, oneDNN")
    assert onednn.shown(LOOPWRIGHT_BEST, "graph") == (LOOPWRIGHT_BEST, "graph, oneDNN")
    assert {LOOPWRIGHT, JAX_SCAN, KERAS_JAX} < set(COLUMNS)
