"""How long tests may take: a deadline for a run, and a budget of seconds for each folder.

`make test` leaves out what is marked `thorough`: more cases of a promise that a test of `make test`
keeps already, or one that takes minutes. `make test-all` runs everything.
"""

import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import PurePosixPath

import pytest

BUDGET_SECONDS: dict[str, int] = {}
"""What the tests of a folder may take in `make test`, added up over all of its processes."""

THOROUGH: dict[str, str] = {}
"""Beginnings of node ids that `make test` leaves out, and which test keeps the promise there."""

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
        for beginning in THOROUGH:
            if item.nodeid.startswith(beginning):
                item.add_marker("thorough")
                unused.discard(beginning)
    collected = {item.nodeid.partition("::")[0] for item in items}
    stale = sorted(b for b in unused if b.partition("::")[0] in collected)
    chosen = any("::" in argument for argument in items[0].config.args) if items else True
    if stale and not chosen:
        raise pytest.UsageError(f"tests/tiers.py lists tests that do not exist: {stale}")


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
