"""Fences in README and docs run in a directory of their own; choices of plans are forgotten."""

import os
from collections.abc import Generator
from pathlib import Path

import pytest

pytest_plugins = ["tests.tiers"]


def pytest_configure() -> None:
    """No test may find what another run has chosen, nor leave its own choice behind."""
    os.environ["LOOPWRIGHT_CACHE_DIR"] = ""
    # Importing albumentations would ask the network for a newer version.
    os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Generator[None, list[object], list[object]]:
    """Look for fences in pages only: reading the docstring of every object takes seconds."""
    collectors = yield
    if file_path.suffix != ".py":
        return collectors
    return [each for each in collectors if not type(each).__name__.startswith("Markdown")]


@pytest.fixture(autouse=True)
def _fences_write_elsewhere(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if request.node.get_closest_marker("markdown-docs"):
        monkeypatch.chdir(tmp_path)
