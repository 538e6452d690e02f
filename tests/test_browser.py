"""What people look at, in a real browser: TensorBoard with a run, and the report of it.

The screenshots stay in `build/screenshots`, to be looked at.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread
from tests.resume.program import train

SCREENSHOTS = Path(__file__).parent.parent / "build" / "screenshots"
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
BLUE, RED = (0, 119, 187), (204, 51, 17)  # what TensorBoard draws the second and third run with

pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs chromium: apt-get install chromium")


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: Any) -> Path:
    where = tmp_path_factory.mktemp("seen") / "runs" / "noisy"
    train(where, "arrays", "graph")
    return where


@pytest.fixture(scope="module")
def board(run_dir: Path) -> Iterator[str]:
    """The address of TensorBoard, when it has read the run."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = ["board", str(run_dir.parent), "--port", str(port)]
    process = subprocess.Popen(
        [sys.executable, "-m", "loopwright", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        while "epoch_loss" not in _tags(address):
            assert process.poll() is None
            time.sleep(0.2)
        yield address
    finally:
        os.killpg(process.pid, signal.SIGTERM)  # a background job has no ears for SIGINT
        process.wait()


def _tags(address: str) -> str:
    try:
        with urllib.request.urlopen(f"{address}/data/plugin/scalars/tags", timeout=5) as answer:
            tags = json.load(answer)
    except OSError:
        return ""
    return " ".join(tags.get("noisy/tensorboard/validation", {}))


def look(address: str, name: str, *options: str, size: str = "1400,1000") -> np.ndarray:
    """The pixels of a page, as a browser shows it."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    path = SCREENSHOTS / f"{name}.png"
    path.unlink(missing_ok=True)
    subprocess.run(
        [
            *(str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *(f"--window-size={size}", f"--screenshot={path}", *options, address),
        ],
        check=True,
        capture_output=True,
        timeout=180,
    )
    return (imread(path)[..., :3] * 255).astype(int)


def count(pixels: np.ndarray, colour: tuple[int, int, int]) -> int:
    return int((np.abs(pixels - np.array(colour)).sum(-1) < 30).sum())


def test_tensorboard_shows_the_losses_of_training_and_validation(board: str):
    page = f"{board}/#scalars&tagFilter=epoch_loss"
    pixels = look(page, "tensorboard", "--virtual-time-budget=60000")
    charts = pixels[:, 360:]  # beside the list of runs, which has these colours too
    assert count(charts, BLUE) > 150
    assert count(charts, RED) > 150


def test_the_report_shows_its_curves_in_the_light_in_the_dark_and_on_a_phone(run_dir: Path):
    page = f"file://{run_dir / 'report.html'}"
    light = look(page, "report-light", size="1280,2000")
    dark = look(page, "report-dark", "--blink-settings=preferredColorScheme=0", size="1280,2000")
    phone = look(page, "report-phone", size="500,3000")
    assert light[5, 5].tolist() == [255, 255, 255]
    assert max(dark[5, 5].tolist()) < 40
    for pixels in (light, dark, phone):
        assert count(pixels, (31, 119, 180)) > 300  # the line of the training
        assert count(pixels, (224, 122, 31)) > 300  # the line of the validation
