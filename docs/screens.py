"""Take the pictures in README and docs again: `python docs/screens.py [NAME ...]`.

Every picture shows a real run. Commands run in a pseudo-terminal whose screen is saved as SVG;
headless Chromium photographs the report. Needs `pip install pyte pillow` and `chromium`.
"""

import itertools
import os
import pty
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyte
from PIL import Image
from rich.console import Console
from rich.style import Style
from rich.text import Text

ROWS = 60
HERE = Path(__file__).parent
_COLOURS = {"brown": "yellow"}


class Terminal:
    """A pseudo-terminal that runs one command after the other."""

    def __init__(self, directory: Path, columns: int = 104) -> None:
        self._directory, self._columns = directory, columns
        self._screen = pyte.HistoryScreen(columns, ROWS, history=500)
        self._stream = pyte.ByteStream(self._screen)

    def run(self, command: str, hit: "Callable[[subprocess.Popen[bytes]], object]" = id) -> None:
        """Run a command to its end; `hit` is called after each output and may kill processes."""
        self._stream.feed(f"\x1b[1m$ {command}\x1b[0m\r\n".encode())
        process, master = self._started(command)
        while True:
            try:
                found = os.read(master, 65_536)
            except OSError:  # the command has closed the terminal
                break
            self._stream.feed(found)
            if process.poll() is None:
                hit(process)
        if process.wait() == -signal.SIGKILL:
            self._stream.feed(b"\r\n\x1b[31mKilled (kill -9)\x1b[0m\r\n")
        os.close(master)

    def save(self, name: str, title: str) -> None:
        """Save the screen as SVG."""
        console = Console(record=True, width=self._columns, file=open(os.devnull, "w"))  # noqa: SIM115
        for line in self._lines():
            console.print(line, no_wrap=True, crop=False)
        console.save_svg(str(HERE / "screens" / f"{name}.svg"), title=title)

    def _started(self, command: str) -> tuple["subprocess.Popen[bytes]", int]:
        master, slave = pty.openpty()
        size = f"stty rows {ROWS} cols {self._columns}; exec {command}"
        environment = {
            **os.environ,
            "TERM": "xterm-256color",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        environment.pop("CI", None)
        process = subprocess.Popen(
            ["sh", "-c", size],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=self._directory,
            env=environment,
            start_new_session=True,
        )
        os.close(slave)
        return process, master

    def _lines(self) -> list[Text]:
        rows = [*self._screen.history.top, *(self._screen.buffer[y] for y in range(ROWS))]
        lines = [_text(row, self._columns) for row in rows]
        while lines and not lines[-1].plain.strip():
            lines.pop()
        return lines


def _text(row: Any, columns: int) -> Text:
    line = Text()
    cells = (row[column] for column in range(columns))
    for style, same in itertools.groupby(cells, key=_style):
        line.append("".join(cell.data for cell in same), style)
    line.rstrip()
    return line


def _style(cell: Any) -> Style:
    name = str(_COLOURS.get(cell.fg, cell.fg))
    is_hex = len(name) == 6 and set(name) <= set("0123456789abcdef")
    colour = None if name == "default" else f"#{name}" if is_hex else name
    return Style(color=colour, bold=cell.bold)


def killed(place: Path) -> None:
    """Save a run that is killed and resumed; train it further and save its report."""
    saved = place / "runs" / "digits" / "checkpoints"

    def kill(process: "subprocess.Popen[bytes]") -> None:
        if len(list(saved.glob("step-*"))) > 2:
            process.kill()

    terminal = Terminal(place, columns=80)
    terminal.run("loopwright train digits fit.epochs=6", kill)
    terminal.run("loopwright train digits fit.epochs=6")
    terminal.save("killed", "kill -9, then the same command")
    terminal.run("loopwright resume runs/digits fit.epochs=15")
    photograph(place / "runs" / "digits" / "report.html", HERE / "screens" / "report.png")


def verified(place: Path) -> None:
    """Save `loopwright verify`, which kills a run at random and compares the bits."""
    terminal = Terminal(place, columns=80)
    terminal.run("loopwright verify digits")
    terminal.save("verified", "loopwright verify")


def rehearsed(place: Path) -> None:
    """Save `loopwright train --rehearse`: what a run will take, before it starts."""
    terminal = Terminal(place, columns=82)
    terminal.run("loopwright train digits --rehearse")
    terminal.save("rehearsed", "loopwright train --rehearse")


def launched(place: Path) -> None:
    """Save a run of two workers; one is killed, all restart and resume."""
    saved, killed = place / "runs" / "digits" / "checkpoints", list[int]()

    def kill_a_worker(process: "subprocess.Popen[bytes]") -> None:
        if not killed and len(list(saved.glob("step-????????"))) > 2:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            killed.append(int(children.split()[-1]))
            os.kill(killed[0], signal.SIGKILL)

    terminal = Terminal(place, columns=128)
    train = "train digits fit.epochs=6 'fit.save_every=1 epoch'"
    terminal.run(f"loopwright launch --workers 2 --restarts 3 -- {train}", kill_a_worker)
    terminal.save("launched", "two workers: one is killed, all restart and resume")


_POISONED = """
import keras, numpy as np, tensorflow as tf
import loopwright as lw


class Demand(lw.Task):
    def __init__(self):
        super().__init__()
        layers = [keras.layers.Dense(64, "relu"), keras.layers.Dense(32, "relu")]
        self.model = keras.Sequential([keras.Input((8,)), *layers, keras.layers.Dense(1)])
        self.optimizer = keras.optimizers.Adam(0.003)

    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            scaled = tf.math.log1p(x)
            loss = tf.reduce_mean(tf.square(y - self.model(scaled, training=True)))
        self.minimize(loss, self.model, self.optimizer, tape)
        return {"loss": loss}


def experiment():
    x = np.random.default_rng(0).gamma(2.0, size=(20_000, 8)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    x[13_377, 5] = -2.0
    fit = {"x": x, "y": y, "epochs": 5, "batch_size": 32, "save_every": "100 steps"}
    return lw.Experiment(Demand, fit=fit)
"""


def replayed(place: Path) -> None:
    """Save a run that ends with NaN, and the replay of the step that ended it."""
    (place / "demand.py").write_text(_POISONED)
    terminal = Terminal(place, columns=80)
    terminal.run("loopwright train demand:experiment run_dir=runs/demand fit.verbose=0")
    terminal.run("loopwright replay runs/demand --task demand:experiment")
    terminal.save("replayed", "which batch made it NaN?")


def photograph(page: Path, picture: Path) -> None:
    """Save the top of a page as a PNG of few colours, which is small."""
    browser = [
        *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
        *("--virtual-time-budget=5000", "--window-size=1200,550", f"--screenshot={picture}"),
    ]
    subprocess.run([*browser, page.as_uri()], check=True, capture_output=True)
    with Image.open(picture) as image:
        image.convert("RGB").quantize(64).save(picture, optimize=True)


def main() -> None:
    """Take all pictures, or the named ones."""
    for take in (killed, verified, rehearsed, replayed, launched):
        if not sys.argv[1:] or take.__name__ in sys.argv[1:]:
            with tempfile.TemporaryDirectory() as directory:
                take(Path(directory))


if __name__ == "__main__":
    main()
