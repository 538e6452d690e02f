"""Whatever stands in a config: a typed error within a second, nothing run, nothing written."""

import os
import sys
from pathlib import Path

from tests.processes import run_command

ROOT = Path(__file__).parents[2]
EXAMPLES = 10_000 if os.environ.get("LOOPWRIGHT_ALL_FAULTS") else 300


def test_any_text_is_a_config_or_a_typed_error_and_does_nothing(tmp_path: Path):
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = run_command(
        [sys.executable, "-m", "tests.config.config_fuzz", str(EXAMPLES)],
        cwd=tmp_path,
        env={"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.stdout == f"{EXAMPLES} examples\n"
    assert not [path for path in tmp_path.iterdir() if path.name != ".hypothesis"]
