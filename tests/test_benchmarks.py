"""The benchmarks: what they reckon and write, and one tiny real run."""

import json
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from benchmarks import (
    chart,
    examples,
    flops,
    growth,
    memory,
    processes,
    refits,
    reports,
    speed,
    speed_report,
    startup,
    tuning,
)
from benchmarks.__main__ import BY_DEFAULT, SECTIONS, parser
from benchmarks.contenders import contenders, short_word
from benchmarks.hand_loops import STEPS
from benchmarks.measuring import Contender, Ready, calibrated_epochs, fitting_count, take_turns
from benchmarks.outcomes import (
    HAND,
    JAX_SCAN,
    KERAS,
    KERAS_BEST,
    LOOPWRIGHT,
    LOOPWRIGHT_BEST,
    MATMUL,
    PYTORCH,
    Measured,
    Outcome,
    best_of,
    outcome_from,
    ratio,
)
from benchmarks.workloads import WORKLOADS, by_hand

import gan
import loopwright as lw
from loopwright import Plan

SMALL = Outcome(
    "mlp",
    "mlp, batch 32",
    (
        Measured(KERAS, rates=(480.0, 500.0)),
        Measured(KERAS_BEST, "32 xla", rates=(510.0,)),
        Measured(KERAS_BEST, "32 graph, oneDNN", rates=(1500.0, 1400.0)),
        Measured(HAND, "graph", rates=(750.0,)),
        Measured(HAND, "xla", failure="ValueError: no"),
        Measured(PYTORCH, "eager, 1 thread", rates=(2000.0,)),
        Measured(JAX_SCAN, rates=(16000.0,)),
        Measured(LOOPWRIGHT, "fused", rates=(19000.0, 20000.0)),
        Measured(LOOPWRIGHT_BEST, "fused", rates=(25000.0,)),
    ),
    progress_share=0.017,
    step_flops=1e6,
)
MACHINE = Outcome("matmul", "matmul 2048x2048", (Measured(MATMUL, "JAX", (5.0,)),), step_flops=2e10)
FAILED = Outcome("cnn", "cnn", failure="exit code 1")


# --- what is reckoned ---


def test_the_best_round_and_setting_count_and_who_failed_has_no_rate():
    three = Measured(KERAS, rates=(1.0, 3.0, 2.0))
    assert (three.best, three.spread) == (3.0, (1.0, 3.0))
    assert Measured(KERAS).spread is None
    failed = Measured(KERAS, rates=(1.0,), failure="ValueError: no")
    assert failed.best is None
    assert best_of([failed]) is None
    best = SMALL.best(KERAS_BEST)
    assert best is not None
    assert (best.setting, best.best) == ("32 graph, oneDNN", 1500.0)
    assert SMALL.rate(HAND, KERAS) == 750.0
    assert FAILED.rate(HAND) is None
    assert [ratio(3.0, 2.0), ratio(None, 2.0), ratio(3.0, None)] == [1.5, None, None]


def test_an_outcome_survives_its_way_through_json():
    assert outcome_from(json.loads(json.dumps(asdict(SMALL)))) == SMALL


def test_a_round_is_at_least_as_long_as_wanted():
    given = [(1, 0.1, 1.0), (1, 3.0, 1.0), (4, 1.0, 1.1), (1, 0.0, 1e-9)]
    assert [fitting_count(*each) for each in given] == [10, 1, 5, 1]


@pytest.mark.parametrize(
    ("call_seconds", "epoch_seconds", "tried", "epochs"),
    [
        (0.0, 2.0, [1], 1),
        (0.0, 0.25, [1, 4], 4),
        # One epoch takes 0.11 s, of which 0.01 s are the epoch's.
        (0.1, 0.01, [1, 10, 50], 84),
        # A thousand short epochs are not reached in one leap.
        (0.0, 0.001, [1, 16, 256, 1000], 1000),
    ],
)
def test_calibration_sees_through_the_fixed_cost_of_a_call(
    call_seconds: float, epoch_seconds: float, tried: list[int], epochs: int
):
    now, asked = 0.0, []

    def train(count: int) -> None:
        nonlocal now
        asked.append(count)
        now += call_seconds + count * epoch_seconds

    assert calibrated_epochs(train, 1.0, clock=lambda: now) == epochs
    assert asked == tried


def test_contenders_take_turns_and_who_fails_is_out_with_a_reason():
    told: list[str] = []

    def prepared(name: str, failing_at: int | None = None) -> Ready:
        def train(epochs: int) -> None:
            told.append(name)
            if told.count(name) == failing_at:
                raise ValueError(f"{name} broke\nat length")

        return Ready(train, lambda: {"setting": f"{name} chose"})

    def unprepared() -> Ready:
        raise TypeError("no such thing")

    chosen = [
        Contender("a", lambda: prepared("a")),
        Contender("b", lambda: prepared("b", failing_at=4)),
        Contender("c", unprepared, "c's own"),
    ]
    a, b, c = take_turns(chosen, steps_per_epoch=5, rounds=3, round_seconds=1e-9)
    assert told == ["a", "a", "b", "b", *"ab", *"ab", "a"]
    assert (len(a.rates), a.steps_per_round, a.setting, a.failure) == (3, 5, "a chose", None)
    assert b.failure == "ValueError: b broke"
    assert (c.setting, c.failure) == ("c's own", "TypeError: no such thing")


def test_full_speed_is_reached_where_the_last_rate_is_and_only_by_the_plan_of_the_first_start():
    slow_then_fast = [(9.0, 1), (10.0, 11), (11.0, 21), (12.0, 51), (13.0, 81), (14.0, 111)]
    at_once = [(9.5, 1), (10.5, 31), (11.5, 61), (12.5, 91)]
    starts = {
        "first start": {"stops": slow_then_fast, "plan": "fused"},
        "second start": {"stops": at_once, "plan": "fused"},
        "resumed after SIGKILL": {"stops": at_once, "plan": "graph"},
    }
    report = startup.render_starts({"mlp": starts})
    assert "| mlp | first start | 9.00 | 2.00 | 30 fused |" in report
    assert "| mlp | second start | 9.50 | 0.00 | 30 fused |" in report
    assert "| mlp | resumed after SIGKILL | 9.50 | - | 30 graph |" in report


# --- what is written ---


def test_the_speed_report_shows_rates_ratios_and_the_best_settings():
    versions = {"TensorFlow": "2", "PyTorch": "3"}
    report = speed_report.render([SMALL, FAILED], MACHINE, rounds=2, versions=versions)
    assert report.startswith("Steps per second, best of 2 interleaved rounds. ")
    assert "TensorFlow 2, PyTorch 3." in report.splitlines()[0]
    assert "| mlp, batch 32 | 500 (1 graph) | 1,500 (32 graph, oneDNN) | 750 (graph) | " in report
    assert "| 2,000 (eager, 1 thread) | - | 16,000 | 20,000 (fused) | 25,000 (fused) | " in report
    assert "| 25,000 (fused) | 10.00x |" in report
    assert "| mlp, batch 32 | 40.00x | 10.00x | 1.25x | 0.80x |" in report
    assert "| cnn | - | - | - | - | - | - | - | - | - |" in report
    assert "| mlp, batch 32 | 0.001 | 20 (20%) | 25 (25%) | 2 (2%) |" in report
    assert "matmul 2048x2048 reached in the same run, 100 GFLOP/s (JAX)" in report
    assert report.endswith("The progress bar takes 1.7% (mlp) of a run's time.\n")
    assert "make bench-peers" not in report


def test_missing_peers_are_dashes_and_one_line_says_how_to_get_them():
    report = speed_report.render([SMALL], MACHINE, 2, {"TensorFlow": "2"}, ["PyTorch", "JAX"])
    assert "Not measured: PyTorch and JAX. `make bench-peers` installs them." in report


def test_where_keras_as_it_comes_is_its_best_setting_it_is_shown_as_such():
    one = Outcome("a", "a", (Measured(KERAS, rates=(9.0,)), Measured(KERAS_BEST, "32 xla", (5.0,))))
    assert "| a | 9 (1 graph) | 9 (1 graph) |" in speed_report.rates([one])


def test_rates_lists_and_plans_are_short_words():
    rates = {None: "-", 12345.6: "12,346", 101.4: "101", 49.94: "49.9"}
    assert {number: reports.count(number) for number in rates} == rates
    lists = ["", "a", "a and b", "a, b and c"]
    assert [reports.listed([*"abc"[:count]]) for count in range(4)] == lists
    assert short_word(Plan("xla", "fused", "resident")) == "fused"
    assert short_word(Plan("xla", "graph", "stream")) == "xla stream"
    assert short_word(Plan("graph", "graph")) == "graph"


def test_the_chart_is_a_png_of_a_readable_width(tmp_path: Path):
    chart.draw([SMALL, FAILED], tmp_path / "speed.png")
    content = (tmp_path / "speed.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert int.from_bytes(content[16:20]) == 1200


def test_growth_shows_rates_and_of_longer_runs_the_time_of_a_step():
    point = {"size": 1000, KERAS: 500.0, LOOPWRIGHT: 20000.0, "plan": "fused"}
    unknown = point | {"size": 100000, KERAS: None}
    data = {"rows": [point], "width": [point], "steps per fit": [point, unknown]}
    report = growth.render(data, most_seconds=60)
    assert report.count("| 1,000 | 500 | 20,000 fused | 40.00x |") == 2
    assert "| 1,000 | 2,000 | 50 fused | 40.00x |" in report
    assert "| 100,000 | - | 50 fused | - |" in report


def test_refits_compares_the_first_fits_with_the_last():
    found = {"seconds": [2.0] * 20 + [1.0] * 20, "megabytes": [500.0] * 20 + [540.0] * 20}
    report = refits.render({"Loopwright": found})
    assert "| Loopwright | 40 | 500 | 540 | +2.00 | 2.000 | 1.000 | 0.50x |" in report


def test_memory_shows_what_was_added_after_a_tenth_and_after_half():
    samples = [[1000.0, 700.0], [5000.0, 703.0], [10000.0, 704.0]]
    report = memory.render({"default": samples})
    assert "| default | 10,000 | 700 MB | 703 MB | 704 MB | +4.0 MB | +1.0 MB |" in report


def test_tuning_shows_the_default_against_the_best_plan():
    found: dict[str, Any] = {
        "workload": "mlp",
        "best_plan": "fused",
        "long": {
            "steps": 100,
            "fixed": [{"seconds": 60}, {"seconds": 55}],
            "first": {"seconds": 66},
            "second": [{"seconds": 60.6}, {"seconds": 55.5}],
        },
        "short": {
            "steps": 10,
            "graph": [{"seconds": 3}],
            "first": [{"seconds": 4}, {"seconds": 3.3}],
        },
    }
    report = tuning.render([found, {"workload": "cnn", "failure": "no"}], seconds=60, runs=2)
    assert "| mlp | 100 | 60.0 fused | 66.0 (1.10x) | 55.0 | 55.5 (1.01x) |" in report
    assert "| mlp | 10 | 3.0 | 3.3 (1.10x) |" in report
    assert "| cnn | - | - | - | - | - |" in report
    found["short"] = {"steps": 10, "graph": [], "first": []}
    assert "The same for the steps" not in tuning.render([found], seconds=60, runs=0)


def test_examples_are_shown_beside_the_loop_by_hand():
    measured = (Measured(HAND, rates=(40.0, 50.0)), Measured(LOOPWRIGHT, "fused", rates=(60.0,)))
    report = examples.render([Outcome("gan", "gan", measured), FAILED], rounds=2)
    assert "| gan | 50 | 60 fused | 1.20x |" in report
    assert "| cnn | - | - | - |" in report
    assert "best of 2 interleaved rounds" in report


def test_only_results_of_everything_replace_those_of_the_repository(tmp_path: Path):
    assert reports.directory(Namespace(results=None)) == reports.RESULTS
    assert reports.directory(Namespace(results=None, only=["mlp"])) is None
    assert reports.directory(Namespace(results=tmp_path, only=["mlp"])) == tmp_path


def test_results_are_written_as_markdown_and_json(tmp_path: Path):
    reports.save(tmp_path / "new", "speed", "text\n", {"a": (1,)})
    assert (tmp_path / "new" / "speed.md").read_text() == "text\n"
    assert json.loads((tmp_path / "new" / "speed.json").read_text()) == {"a": [1]}


def test_rows_of_today_and_this_machine_are_kept_when_others_are_measured_again(tmp_path: Path):
    rows = [
        asdict(SMALL)
        | {"measured": [asdict(one) | {"spread": one.spread} for one in SMALL.measured]}
    ]
    data = {
        "workloads": rows,
        "versions": {"Keras": "3.15.1"},
        "measured_on": "2020-01-01, a machine",
    }
    now = {"day_and_machine": reports.day_and_machine()}
    reports.save(tmp_path, "speed", "", data | now)
    assert speed.kept(tmp_path) == ({"mlp": SMALL}, {"Keras": "3.15.1"})
    reports.save(tmp_path, "speed", "", data | {"day_and_machine": "2020-01-01, a machine"})
    with pytest.raises(RuntimeError, match="not those of 2020-01-01"):
        speed.kept(tmp_path)


# --- what is run ---


def test_every_section_can_be_asked_for_and_has_defaults():
    assert set(BY_DEFAULT) < set(SECTIONS)
    assert parser().parse_args([]).section is None
    for name in SECTIONS:
        assert parser().parse_args([name]).results is None
    chosen = parser().parse_args(["speed", "--only", "mlp", "--only", "cnn", "--rounds", "2"])
    assert (chosen.only, chosen.rounds) == (["mlp", "cnn"], 2)


def test_every_workload_can_be_asked_for_by_its_key():
    assert list(WORKLOADS) == list(speed.KEYS)
    assert set(tuning.KEYS) < set(WORKLOADS)
    for key, make in WORKLOADS.items():
        work = make()
        assert work.key == key
        assert len(work.x) % work.batch_size == 0


def test_the_loop_by_hand_does_the_steps_of_the_example():
    assert list(STEPS) == list(examples.KEYS)
    images = gan.load()[:64]
    once: dict[str, Any] = {"batch_size": 64, "shuffle": False, "verbose": 0}
    step_by_hand = float(STEPS["gan"]()(tf.constant(images)))
    history = lw.Trainer(gan.make_task, plan="graph").fit(images, **once).history
    assert step_by_hand == pytest.approx(history["d_loss"][0] + history["g_loss"][0], rel=1e-4)


def test_a_function_is_called_in_a_process_of_its_own():
    runs = [{"first step": 3.0}, {"first step": 1.5}]
    soonest = processes.call(function="benchmarks.startup:earliest", runs=runs)
    assert soonest == {"first step": 1.5}
    with pytest.raises(RuntimeError, match="ended with exit code 1"):
        processes.call("benchmarks.startup:no_such_thing")


def test_a_tiny_run_measures_keras_the_hand_loop_and_loopwright():
    wanted = {KERAS, HAND, LOOPWRIGHT}
    everyone = contenders("mlp", settle_seconds=0.1)
    chosen = [one for one in everyone if one.column in wanted and "xla" not in one.setting]
    measured = take_turns(chosen, steps_per_epoch=256, rounds=1, round_seconds=0.01)
    assert [one.failure for one in measured] == [None, None, None]
    assert {one.column for one in measured if (one.best or 0) > 0} == wanted


def test_dense_layers_and_convolutions_are_counted_forwards_and_backwards():
    def dense() -> keras.Model:
        return keras.Sequential([keras.Input((20,)), keras.layers.Dense(64), keras.layers.Dense(1)])

    def convolutions() -> keras.Model:
        first, second = (keras.layers.Conv2D(c, 3, padding="same") for c in (4, 5))
        return keras.Sequential([keras.Input((8, 8, 3)), first, second])

    batch = [np.zeros((32, 20), "float32"), np.zeros((32, 1), "float32")]
    # Each layer: the product, the gradient of its weights, and that of its input if needed.
    by_pen = 2 * 32 * (2 * 20 * 64 + 3 * 64 * 1)
    assert flops.of_step(by_hand(dense, "mse")(), batch) == by_pen
    batch = [np.zeros((2, 8, 8, 3), "float32"), np.zeros((2, 8, 8, 5), "float32")]
    by_pen = 2 * (2 * 8 * 8) * 9 * (2 * 3 * 4 + 3 * 4 * 5)
    assert flops.of_step(by_hand(convolutions, "mse")(), batch) == by_pen
