"""TensorFlow's start-up is quiet; what is not noise is still said."""

import os
import sys
from pathlib import Path

import pytest
from tests.processes import run_command

from loopwright.quiet_start import quiet_start


def test_known_noise_is_held_back_and_everything_else_is_said(
    capfd: pytest.CaptureFixture[str],
):
    with quiet_start():
        os.write(2, b"I0000 port.cc:153] oneDNN custom operations are on. You may see\n")
        os.write(2, b"W0000 allocation of 9999 exceeds 10% of free system memory\n")
    os.write(2, b"afterwards\n")
    said = capfd.readouterr().err.splitlines()
    assert said == [
        "W0000 allocation of 9999 exceeds 10% of free system memory",
        "afterwards",
    ]


def test_what_was_said_before_an_error_is_not_lost(capfd: pytest.CaptureFixture[str]):
    def fail() -> None:
        os.write(2, b"the reason\n")
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"), quiet_start():
        fail()
    assert capfd.readouterr().err == "the reason\n"


def test_a_program_without_standard_error_is_served_as_well():
    load = "from loopwright.quiet_start import quiet_start"
    code = load + "\nwith quiet_start():\n    print('done')"
    done = run_command(["sh", "-c", f'exec {sys.executable} -c "{code}" 2>&-'])
    assert done.stdout == "done\n"


def test_a_crash_while_libraries_load_is_not_silent():
    code = (
        "import os, signal\nfrom loopwright.quiet_start import quiet_start\n"
        "with quiet_start():\n    os.kill(os.getpid(), signal.SIGABRT)"
    )
    done = run_command([sys.executable, "-c", code], exits=None)
    assert done.returncode < 0
    assert "Fatal Python error: Aborted" in done.stderr
    assert "line 4 in <module>" in done.stderr


def test_what_is_said_about_a_gpu_that_is_there_is_no_noise(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    line = b"E0000 cuda_platform.cc:52] failed call to cuInit: UNKNOWN ERROR (303)\n"
    for driver in (tmp_path / "missing", tmp_path):
        monkeypatch.setattr("loopwright.quiet_start._GPU_DRIVERS", (str(driver),))
        with quiet_start():
            os.write(2, line)
    assert capfd.readouterr().err == line.decode()
