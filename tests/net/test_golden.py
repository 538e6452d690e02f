"""What users see is what the dumps say; a change that is meant writes its dump again."""

from pathlib import Path

import pytest
from tests.net import golden

DUMPS = golden.dumps()


@pytest.mark.parametrize("name", DUMPS)
def test_what_users_see_is_what_its_dump_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    differences = golden.differences(
        (golden.HERE / f"{name}.txt").read_text(), DUMPS[name](tmp_path)
    )
    assert not differences, f"If this is meant: `python -m tests.net.golden {name}`.\n{differences}"


def test_every_dump_is_compared():
    assert {path.stem for path in golden.HERE.iterdir()} == set(DUMPS)
