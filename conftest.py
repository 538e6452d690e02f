"""Fences in README and docs run in a directory of their own."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _fences_write_elsewhere(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if request.node.get_closest_marker("markdown-docs"):
        monkeypatch.chdir(tmp_path)
