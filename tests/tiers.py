"""How long tests may take: a deadline for a run, and a budget of seconds for each folder.

`make test` leaves out what is marked `thorough`: more cases of a promise that a test of `make test`
keeps already, or one that takes minutes. `make test-all` runs everything.
"""

import re
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import PurePosixPath

import pytest

BUDGET_SECONDS = {
    "tests/resume": 650,
    "tests/engine": 500,
    "tests/checkpoints": 320,
    "tests/programs": 280,
    "tests/task": 270,
    "tests/sinks": 260,
    "tests/data": 230,
    "tests/distribute": 220,
    "tests/cli": 170,
    "tests/export": 130,
    "tests/components": 110,
    "tests/recipes": 110,
    "tests": 90,
    "docs": 90,
    "tests/compat": 70,
    "tests/docs": 50,
    ".": 45,
    "tests/loop": 10,
    "tests/fit": 10,
}
"""What the tests of a folder may take in `make test`, added up over all of its processes."""

THOROUGH: dict[str, str] = {
    # More plans of what every plan is tried with.
    r"programs/test_wrong_programs.py::.*-(eager|xla)\]": "the same programs on graph and fused",
    r"engine/test_runner.py::test_(every_plan|a_run_split).*Plan\(step='xla'": "the short words",
    r"sinks/test_batch_hooks.py::test_(recording|every_plan).*Plan\(": "the short words",
    r"sinks/test_batch_hooks.py::.*-compiled\]": "the same with a supervised task",
    r"resume/test_resume.py::test_a_run_that_failed.*\[stream-fused\]": "stream-graph",
    r"engine/test_plan_selector.py::test_(chunks_are|preparing_a_plan)": "small_network",
    r"programs/test_wrong_programs.py::test_without_its_mistake": "test_right_programs.py",
    r"engine/test_parity.py::.*-compiled\]": "the same with a supervised task",
    r"sinks/test_keras_callbacks.py::test_a_callback_does.*-compiled\]": "with a supervised task",
    r"components/test_parts_by_plan.py::": "engine/test_runner.py; each part's own tests",
    r"engine/test_on_nan.py::test_a_skipped_step.*\[(xla|Plan)": "graph, eager, fused",
    r"checkpoints/test_tensors.py::test_(held|a_run_that_is_put).*\[(xla|sparse, fused)\]": "fused",
    r"resume/test_resume.py::test_the_end_of_an_epoch.*\[(stream|pydataset)\]": "unknown length",
    # More kills and more workers: `make faults` has hundreds of them.
    r"resume/test_signals_and_kills.py::test_killed_at_random.*stream": "arrays-graph",
    r"resume/test_signals_and_kills.py::test_killed_at_a_system_call": "test_store_kills.py",
    r"resume/test_interruptions.py::test_asked_to_leave_in_any_hook": "asked to leave elsewhere",
    r"resume/test_interruptions.py::test_killed_in_the_second_leg.*\[unfreezes": "freezes",
    r"resume/test_plans.py::test_what_the_cache_forgets.*\[3\]": "8",
    r"resume/test_mutations.py::": "the tests of resuming; these test them",
    r"resume/test_signals_and_kills.py::test_a_signal_saves.*\[(2|10)\]": "SIGTERM",
    r"checkpoints/test_run_directory_security.py::test_a_workers_project": "test_launch.py",
    r"distribute/test_replicas.py::test_a_break_of_any_rule": "without a break",
    r"distribute/test_numbers.py::.*\(3, 1\)": "two workers",
    r"distribute/test_exact.py::test_(a_signal|all_workers_(refuse|go))": "one is gone",
    r"distribute/test_exact.py::test_a_worker_that_is_gone.*stopped worker": "chief killed",
    r"distribute/test_launch.py::test_workers_that_are_killed": "test_exact.py",
    r"distribute/test_replicas.py::test_one_two_and_four.*\[4\]": "two replicas",
    r"cli/test_kill_test.py::test_a_recipe_that_is_killed": "a small program, killed",
    # More models and more formats.
    r"export/test_exporter.py::test_(strings_flags|a_task_chooses)": "saved_model, nan, keras_file",
    r"recipes/test_recipes.py::test_every_recipe_exports": "test_exporter.py, cli/test_cli.py",
    r"recipes/test_augment.py::test_images_changed.*\[(layers|albumentations)\]": "function",
    r"recipes/test_gan.py::test_(samples|a_second_call|the_generator)": "its tests of resuming",
    r"recipes/test_augment.py::test_every_way_of_changing": "its tests of resuming",
    r"recipes/test_imputation.py::test_what_is_trained": "its other tests",
    r"recipes/test_seq2seq.py::test_(it_learns|teacher_forcing)": "test_scheduled_value.py",
    # What tests the tests.
    r"tests/test_police.py::test_a_module_that_makes_tensors": "any such module fails at once",
}
"""Patterns of node ids that `make test` leaves out, and which tests keep the promise there."""

_BEGUN = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seconds",
        type=float,
        help="skip the tests that would begin later than so many seconds after the start",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_BEGUN] = time.monotonic()


@pytest.hookimpl(tryfirst=True)  # before `-m` and `-k` choose among them
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is listed; an entry that matches no test of its file is an error."""
    unused = set(THOROUGH)
    for item in items:
        for pattern in THOROUGH:
            if re.search(pattern, item.nodeid):
                item.add_marker("thorough")
                unused.discard(pattern)
    collected = {item.nodeid.partition("::")[0] for item in items}
    files = {pattern: pattern.partition("::")[0] for pattern in unused}
    stale = [p for p, file in files.items() if any(c.endswith(file) for c in collected)]
    chosen = any("::" in argument for argument in items[0].config.args) if items else True
    if stale and not chosen:
        raise pytest.UsageError(f"tests/tiers.py has patterns that match no test: {stale}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    seconds = item.config.getoption("--seconds")
    if seconds is not None and time.monotonic() - item.config.stash[_BEGUN] > seconds:
        pytest.skip(f"the {seconds:.0f} seconds of --seconds are over")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [
        report
        for some in terminalreporter.stats.values()
        for report in some
        if isinstance(report, pytest.TestReport)
    ]
    taken = seconds_by_folder((report.nodeid, report.duration) for report in reports)
    if sum(taken.values()) < 60:
        return
    terminalreporter.section("seconds by folder")
    for folder, seconds in taken.items():
        budget = BUDGET_SECONDS.get(folder)
        over = "  over its budget" if budget is not None and seconds > budget else ""
        terminalreporter.write_line(f"{seconds:7.0f} of {budget or '-':>4}  {folder}{over}")


def seconds_by_folder(durations: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Add up durations by folder, the longest first.

    >>> seconds_by_folder([("tests/data/test_a.py::test_b", 1.0), ("README.md::fence", 2.5)])
    {'.': 2.5, 'tests/data': 1.0}
    """
    taken: defaultdict[str, float] = defaultdict(float)
    for nodeid, seconds in durations:
        file = PurePosixPath(nodeid.partition("::")[0])
        taken[str(PurePosixPath(*file.parent.parts[:2]))] += seconds
    return dict(sorted(taken.items(), key=lambda item: -item[1]))
