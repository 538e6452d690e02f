"""The command line, as a person uses it."""

import subprocess
import sys
from typing import Any

import pytest
from typer.testing import CliRunner

from loopwright import cli


def loopwright(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "loopwright", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_help_lists_the_commands_and_imports_no_tensorflow():
    program = (
        "import sys; sys.argv = ['loopwright', '--help']\n"
        "from loopwright.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "assert not {'tensorflow', 'keras', 'numpy'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "verify" in done.stdout


def test_an_unknown_recipe_is_refused_in_words_without_a_stack():
    done = loopwright("verify", "digitz")
    assert done.returncode == 2
    assert done.stderr.startswith("error: There is no such recipe.\n  expected: one of ")
    assert "digits" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_verdict_that_is_not_exact_is_an_exit_code(monkeypatch: pytest.MonkeyPatch):
    from loopwright import verifying

    def verdict(*_: Any, **__: Any) -> verifying.Verdict:
        return verifying.Verdict(kills=3, steps=40, files=2, differing=["state.index"])

    monkeypatch.setattr(verifying, "verify", verdict)
    done = CliRunner().invoke(cli.app, ["verify", "digits"])
    assert done.exit_code == 1
    assert done.output == (
        "NOT EXACT: 40 steps, killed 3 times and started again: other bits in state.index\n"
    )
