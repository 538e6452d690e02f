"""The console sink, heard through a real rich console, a pipe and a pseudo-terminal."""

import io
import itertools
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyte
import pytest
from pyte.modes import LNM
from rich.cells import cell_len
from rich.console import Console

from loopwright.errors import ConfigurationError
from loopwright.events import (
    BatchSkipped,
    EpochEnded,
    EpochStarted,
    Event,
    Finished,
    Noted,
    PlanChosen,
    Saved,
    Sink,
    Started,
    Trained,
    Validated,
)
from loopwright.sinks.terminal import console

HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
ESCAPE_CODE = re.compile(r"\x1b\[[?\d;]*[A-Za-z]")
SOURCE = Path(__file__).parents[2] / "src"


class Clock:
    """Time that moves only when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CI", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.fixture
def clock() -> Clock:
    return Clock()


def terminal(width: int = 100, **options: Any) -> Console:
    return Console(
        file=io.StringIO(), force_terminal=True, width=width, force_jupyter=False, **options
    )


def written(output: Console) -> str:
    assert isinstance(output.file, io.StringIO)
    return output.file.getvalue()


def read(output: Console) -> str:
    """What was written, without escape codes."""
    return ESCAPE_CODE.sub("", written(output))


def drawings(output: Console) -> list[str]:
    """Every line that was ever drawn, in order."""
    lines = re.split(r"[\r\n]+", read(output))
    return [line.rstrip() for line in lines if line.strip()]


def left_on_screen(output: Console) -> list[str]:
    """The lines that are there at the end."""
    screen = pyte.Screen(200, 100)
    screen.set_mode(LNM)  # a new line begins at the left
    pyte.Stream(screen).feed(written(output))
    return [line.rstrip() for line in screen.display if line.strip()]


def draw_bar(clock: Clock, *events: Event, width: int = 100) -> tuple[Sink, Console]:
    """A sink that draws a bar, which has seen these events, and the terminal that it draws on."""
    output = terminal(width)
    sink = console(1, output=output, clock=clock)
    send(sink, *events)
    return sink, output


def send(sink: Sink, *events: Event) -> None:
    for event in events:
        sink(event)


def train(
    sink: Sink, clock: Clock, *stops: int, steps: int, seconds: float, loss: float = 0.5
) -> None:
    """Train the first epoch to each of these stops, in so many seconds of so many steps."""
    for step in stops:
        clock.now += seconds
        sink(Trained(step, 0, step, steps, seconds, {"loss": loss}))


def two_epochs(steps_per_epoch: int | None = 45) -> list[Event]:
    return [
        Started(0, 10, steps_per_epoch, None),
        EpochStarted(0, 0),
        Trained(45, 0, 45, 45, 0.4, {"loss": 0.21337, "accuracy": 0.93}),
        Validated(45, 0, 0.1, {"loss": 0.22014, "accuracy": 0.93009}),
        EpochEnded(
            epoch=0,
            step=45,
            steps=45,
            seconds=0.41,
            metrics={"loss": 0.21337, "accuracy": 0.9312},
            validation={"loss": 0.22014, "accuracy": 0.93009},
        ),
        EpochStarted(1, 45),
        Trained(90, 1, 45, 45, 0.1, {"loss": 1.3e-05, "accuracy": 1.0}),
        EpochEnded(1, 90, 45, 0.1, {"loss": 1.3e-05, "accuracy": 1.0}),
    ]


# --- which display ---


def test_verbose_0_shows_nothing() -> None:
    output = terminal()
    send(console(0, output=output), *two_epochs(), Finished(90, 0.5, "complete"))
    assert written(output) == ""


@pytest.mark.parametrize(
    ("verbose", "variables", "draws"),
    [
        ("auto", {}, True),
        ("auto", {"CI": "", "NO_COLOR": ""}, True),
        ("auto", {"CI": "1"}, False),
        ("auto", {"NO_COLOR": "1"}, False),
        (1, {"TERM": "dumb"}, False),
        (1, {"CI": "1", "NO_COLOR": "1"}, True),
    ],
)
def test_a_terminal_gets_a_bar_unless_plain_text_is_asked_for(
    verbose: Any, variables: dict[str, str], draws: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    output = terminal()
    send(console(verbose, output=output, clock=itertools.count().__next__), *two_epochs())
    assert ("━" in written(output)) == draws
    assert ("\x1b" in written(output)) == draws
    has_color = re.search(r"\x1b\[[\d;]*3\d[;m]", written(output))
    assert not (has_color and variables.get("NO_COLOR"))


@pytest.mark.parametrize(
    ("verbose", "options"),
    [("auto", {"width": 100}), (1, {"width": 100}), (2, {"width": 40, "force_terminal": True})],
)
def test_a_file_gets_a_line_per_epoch_and_so_does_a_narrow_terminal_if_told(
    verbose: Any, options: dict[str, Any]
) -> None:
    output = Console(file=io.StringIO(), **options)
    send(console(verbose, output=output), *two_epochs())
    assert "\x1b" not in written(output)
    assert len(written(output).splitlines()) == 2


def test_forced_colour_does_not_put_a_bar_into_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    send(console(), *two_epochs())
    assert "\x1b" not in capsys.readouterr().out


def test_an_unknown_verbosity_is_refused_with_the_way_out() -> None:
    wrong: Any = 3
    with pytest.raises(ConfigurationError, match=r"(?s)expected: .*received: verbose=3.*do: "):
        console(wrong)


# --- lines ---


def test_an_epoch_is_one_plain_line(capsys: pytest.CaptureFixture[str]) -> None:
    send(console(2), *two_epochs(), Finished(90, 0.51, "complete"))
    assert capsys.readouterr().out == (
        "epoch 1/10 · 45 steps · 0.41 s · 110 steps/s · loss 0.2134 · accuracy 0.9312"
        " · val_loss 0.2201 · val_accuracy 0.9301\n"
        "epoch 2/10 · 45 steps · 0.10 s · 450 steps/s · loss 1.3e-05 · accuracy 1.000\n"
        "done: 90 steps in 0.51 s\n"
    )


def test_a_long_epoch_says_each_minute_that_it_lives(clock: Clock) -> None:
    output = Console(file=io.StringIO())
    sink = console(2, output=output, clock=clock)
    send(sink, Started(0, 10, 1437, 14370), EpochStarted(2, 0))
    for step in range(10, 131, 10):
        clock.now += 10.0
        sink(Trained(step, 2, step, 10, 10.0, {"loss": 0.5}))
    assert written(output).splitlines() == [
        "epoch 3/10 · 70/1437 steps · 1.0 steps/s · 0:22:47 left · loss 0.5000"
    ]
    clock.now += 10.0
    sink(Trained(140, 2, 140, 10, 10.0, {"loss": 0.5}))
    assert len(written(output).splitlines()) == 2


@pytest.mark.parametrize("verbose", [1, 2])
def test_a_failed_run_still_tells_what_it_had_reached(verbose: Any) -> None:
    output = terminal()
    send(
        console(verbose, output=output),
        Started(0, 3, 45, 135),
        EpochStarted(0, 0),
        Trained(20, 0, 20, 20, 1.0, {"loss": 0.5}),
        Validated(20, 0, 0.1, {"loss": 0.25}),
        Finished(20, 3.21, "failed"),
    )
    assert left_on_screen(output) == [
        "epoch 1/3 · 20/45 steps · loss 0.5000",
        "step 20 · val_loss 0.2500",
        "failed after 20 steps in 3.2 s",
    ]


def test_each_line_is_flushed_at_once(tmp_path: Path) -> None:
    with (tmp_path / "log.txt").open("w", encoding="utf-8") as file:
        console(2, output=Console(file=file))(EpochEnded(0, 1, 1, 1.0, {"loss": 0.5}))
        assert "loss 0.5000" in (tmp_path / "log.txt").read_text(encoding="utf-8")


def test_an_output_that_knows_only_ascii_gets_ascii() -> None:
    raw = io.BytesIO()
    output = Console(file=io.TextIOWrapper(raw, encoding="ascii"), force_terminal=True)
    send(console(output=output), *two_epochs(), EpochEnded(2, 1, 1, 1.0, {"λ": 0.5}))
    lines = raw.getvalue().decode("ascii").splitlines()
    assert lines[0].startswith("epoch 1/10 - 45 steps - 0.41 s")
    assert lines[2].endswith("? 0.5000")


# --- bar ---


def test_above_it_is_the_run_with_its_losses_its_best_its_checkpoint_and_its_plan(
    clock: Clock,
) -> None:
    begun = Started(0, 4, 100, 400), EpochStarted(0, 0), PlanChosen(0, "fused", "", "")
    sink, output = draw_bar(clock, *begun, width=110)
    train(sink, clock, 50, steps=50, seconds=0.5, loss=0.8)
    train(sink, clock, 100, steps=50, seconds=0.5, loss=0.4)
    send(sink, Validated(100, 0, 0.1, {"loss": 0.31}), Saved(100, 0.01))
    send(sink, EpochEnded(0, 100, 100, 1.0, {"loss": 0.4}, {"loss": 0.31}))
    send(sink, Validated(150, 1, 0.1, {"loss": 0.5}), EpochStarted(1, 100))
    clock.now += 0.5
    sink(Trained(150, 1, 50, 50, 0.5, {"loss": 0.2}))
    about, run, epoch = drawings(output)[-3:]
    assert about == "loss █▃▁ · best val_loss 0.3100 at step 100 · saved at step 100 · plan fused"
    assert re.fullmatch(r"run       [━╸╺]+ 38% · 0:00:02 left", run)
    assert re.fullmatch(r"epoch 2/4 [━╸╺]+ 50/100 steps · .*loss 0\.2000", epoch)
    assert run.index("38%") == epoch.index("50/100")


def test_the_columns_of_losses_stay_few_and_show_the_whole_run(clock: Clock) -> None:
    sink, output = draw_bar(clock, Started(0, 1, 2000, 2000), EpochStarted(0, 0), width=120)
    for step in range(1, 1001):
        clock.now += 0.3
        sink(Trained(step, 0, step, 1, 0.3, {"d_loss": 1000 - step, "g_loss": 1.0}))
    about = drawings(output)[-2]
    losses = about.removeprefix("d_loss ")
    assert 16 <= len(losses) < 32
    assert losses.startswith("█")
    assert losses.endswith("▁")


def test_the_time_to_compile_is_not_taken_for_the_time_that_is_left(clock: Clock) -> None:
    sink, output = draw_bar(clock, Started(0, 30, 100, 3000), EpochStarted(0, 0))
    train(sink, clock, 1, steps=1, seconds=33.0)
    assert "left" not in read(output)
    train(sink, clock, 50, 100, steps=50, seconds=0.5)
    assert "3% · 0:00:29 left" in read(output)
    clock.now += 20.0  # the first validation compiles too
    send(sink, Validated(100, 0, 20.0, {"loss": 0.5}), EpochEnded(0, 100, 100, 54.0, {"loss": 0.5}))
    send(sink, EpochStarted(1, 100))
    assert "3% · 0:00:29 left" in drawings(output)[-2]
    clock.now += 1.0
    sink(Trained(200, 1, 100, 100, 1.0, {"loss": 0.5}))
    clock.now += 2.0  # and this one is what validations take
    sink(Validated(200, 1, 2.0, {"loss": 0.5}))
    clock.now += 1.0
    sink(Trained(300, 2, 100, 100, 1.0, {"loss": 0.5}))
    assert "10% · 0:01:03 left" in read(output)  # 7 s for 299 steps, of which 2 validations


def test_the_time_of_a_validation_does_not_lower_the_rate(clock: Clock) -> None:
    sink, output = draw_bar(clock, Started(0, 1, 1000, 1000), EpochStarted(0, 0))
    train(sink, clock, 50, 100, 150, steps=50, seconds=0.5)
    clock.now += 60.0
    sink(Validated(150, 0, 60.0, {"loss": 0.5}))
    train(sink, clock, 200, steps=50, seconds=0.5)
    assert "200/1000 steps · 100 steps/s" in drawings(output)[-1]


def test_an_epoch_of_unknown_length_pulses_and_counts(clock: Clock) -> None:
    sink, output = draw_bar(clock, Started(0, 10, None, None), EpochStarted(0, 0))
    train(sink, clock, 77, steps=77, seconds=1.0)
    assert re.fullmatch(r"epoch 1/10 ━+ 77 steps · loss 0\.5000", drawings(output)[-1])


def test_a_validation_inside_an_epoch_is_a_line_above_the_bar(clock: Clock) -> None:
    sink, output = draw_bar(clock, Started(0, 1, 1000, 1000), EpochStarted(0, 0))
    for step in (250, 500):
        train(sink, clock, step, steps=250, seconds=1.0)
        sink(Validated(step, 0, 1.0, {"loss": step / 1000}))
    validation, about, bar = left_on_screen(output)
    assert validation == "step 250 · val_loss 0.2500"
    assert about == "loss ▁▁ · best val_loss 0.2500 at step 250"
    assert bar.startswith("epoch 1/1 ━")


def test_a_sink_can_show_one_run_after_another(clock: Clock) -> None:
    unfinished = Started(0, 2, 10, 20), EpochStarted(0, 0)
    sink, output = draw_bar(clock, *unfinished)
    for _ in range(2):
        clock.now += 1.0
        send(sink, Started(0, 1, 10, 10), EpochStarted(0, 0), Finished(10, 1.0, "complete"))
    assert left_on_screen(output) == ["done: 10 steps in 1.0 s"] * 2


def test_the_bar_is_drawn_at_most_five_times_a_second(clock: Clock) -> None:
    sink, output = draw_bar(clock, Started(0, 1, 2000, 2000), EpochStarted(0, 0))
    train(sink, clock, *range(1, 2001), steps=1, seconds=0.001)
    assert 8 <= read(output).count("/2000 steps") <= 11


def test_an_event_that_is_not_drawn_is_not_even_read(clock: Clock) -> None:
    sink, _ = draw_bar(clock, Started(0, 1, 10, 10), EpochStarted(0, 0))
    unreadable: Any = None
    sink(Trained(1, 0, 1, 1, 0.1, unreadable))


def test_short_epochs_do_not_flicker(clock: Clock) -> None:
    sink, output = draw_bar(clock, Started(0, 1000, 1, 1000))
    for epoch in range(100):
        clock.now += 0.01
        sink(EpochStarted(epoch, epoch))
        sink(Trained(epoch + 1, epoch, 1, 1, 0.01, {"loss": 0.5}))
        sink(EpochEnded(epoch, epoch + 1, 1, 0.01, {"loss": 0.5}))
    assert read(output).count("━ ") <= 11


@pytest.mark.parametrize("width", [10, 20, 40, 60, 80, 100, 200])
def test_no_line_is_wider_than_the_terminal(width: int, clock: Clock) -> None:
    sink, output = draw_bar(clock, Started(0, 10, 1437, 14370), width=width)
    metrics = {"loss": 0.5, "accuracy": 0.9, "学習率": 0.001, "per_class": np.ones(9)}
    for epoch in range(2):
        sink(EpochStarted(epoch, 0))
        for step in (500, 1000, 1437):
            clock.now += 0.25
            sink(Trained(step, epoch, step, 500, 0.25, metrics))
        clock.now += 0.25
        sink(Validated(1437, epoch, 0.1, metrics))
        sink(EpochEnded(epoch, 1437, 1437, 1.0, metrics, metrics))
    sink(Finished(2874, 2.0, "complete"))
    assert max(map(cell_len, drawings(output))) <= width
    left = "".join(line.replace(" ", "") for line in left_on_screen(output))
    for number in (*metrics, *(f"val_{name}" for name in metrics), "1,437steps/s", "done:"):
        assert number in left


def test_eighty_columns_hold_every_number_of_an_epoch_and_where_the_time_went(
    clock: Clock,
) -> None:
    sink, output = draw_bar(clock, width=80)
    for event in two_epochs():
        clock.now += 0.2
        sink(event)
    spent = {"compile": 6.0, "validation": 2.0, "step": 1.0, "data wait": 0.6, "Python": 0.4}
    sink(Finished(90, 10.0, "complete", spent))
    assert left_on_screen(output) == [
        "epoch 1/10 · 45 steps · 0.41 s · 110 steps/s · loss 0.2134 · accuracy 0.9312",
        "  val_loss 0.2201 · val_accuracy 0.9301",
        "epoch 2/10 · 45 steps · 0.10 s · 450 steps/s · loss 1.3e-05 · accuracy 1.000",
        "done: 90 steps in 10.0 s",
        "  time: compile 60%, validation 20%, step 10%, data wait 6%, Python 4%",
    ]


def test_the_numbers_that_do_not_fit_beside_the_bar_are_drawn_below_it(clock: Clock) -> None:
    sink, output = draw_bar(clock, Started(0, 4, 100, 400), EpochStarted(0, 0), width=60)
    for step in (30, 50):
        clock.now += 0.5
        sink(Trained(step, 0, step, 50, 0.5, {"loss": 0.25, "accuracy": 0.5, "recall": 0.75}))
    run, epoch, below = drawings(output)[-3:]
    assert re.fullmatch(r"run       [━╸╺]+ 12% · 0:00:09 left", run)
    assert re.fullmatch(r"epoch 1/4 [━╸╺]+ 50/100 steps · 40 steps/s · 0:00:01 left", epoch)
    assert below == "  loss 0.2500 · accuracy 0.5000 · recall 0.7500"


def test_a_name_with_brackets_is_text_and_not_markup() -> None:
    output = terminal()
    console(1, output=output)(EpochEnded(0, 1, 1, 1.0, {"[red]loss[/]": 0.5}))
    assert "[red]loss[/] 0.5000" in read(output)


# --- broken outputs ---


class Broken(io.StringIO):
    """A file that breaks after some writes."""

    def __init__(self, error: Exception, writes: int) -> None:
        super().__init__()
        self._error, self._writes_left = error, writes
        self.attempts = 0

    def write(self, text: str) -> int:
        self.attempts += 1
        if self._writes_left == 0:
            raise self._error
        self._writes_left -= 1
        return super().write(text)


@pytest.mark.parametrize("verbose", [1, 2])
@pytest.mark.parametrize("writes", [0, 1, 2, 3])
@pytest.mark.parametrize(
    "error", [OSError(5, "EIO"), BrokenPipeError(), ValueError("closed file")], ids=repr
)
def test_a_broken_output_goes_quiet_and_training_goes_on(
    verbose: Any, writes: int, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())  # rich closes stdout on a broken pipe
    before = sys.stdout, sys.stderr
    file = Broken(error, writes)
    output = Console(file=file, force_terminal=True, width=100)
    sink = console(verbose, output=output)
    run = [*two_epochs(), *two_epochs(), Finished(180, 1.0, "complete")]
    send(sink, *run)
    attempts = file.attempts
    send(sink, *run)
    assert file.attempts == attempts
    assert (sys.stdout, sys.stderr) == before


def test_leaving_the_program_while_drawing_is_not_held_back(clock: Clock) -> None:
    sink, output = draw_bar(clock, Started(0, 1, 10, 10))

    class Leaves:
        def __float__(self) -> float:
            raise SystemExit(3)

    with pytest.raises(SystemExit):
        send(sink, EpochEnded(0, 1, 1, 1.0, {"loss": Leaves()}))
    sink(Finished(1, 1.0, "failed"))
    assert written(output).rfind(SHOW_CURSOR) > written(output).rfind(HIDE_CURSOR)


# --- real processes ---

RUN = """
import sys, time
from loopwright.events import EpochEnded, EpochStarted, Finished, Started, Trained
from loopwright.sinks.terminal import console

show = console({arguments})
step, reason = 0, "failed"
try:
    show(Started(0, 3, 50, 150))
    for epoch in range(3):
        show(EpochStarted(epoch, step))
        for step in range(epoch * 50 + 1, epoch * 50 + 51):
            time.sleep({pause})
            show(Trained(step, epoch, step - epoch * 50, 1, {pause}, {{"loss": 0.5}}))
            if step == 75 and sys.stdout and sys.stdout.isatty():
                print("printed by a callback")
        show(EpochEnded(epoch, step, 50, 50 * {pause}, {{"loss": 0.5}}))
    reason = "complete"
finally:
    show(Finished(step, 1.0, reason))
print("training went on to the end", file=sys.stderr)
"""


def script(arguments: str = "", pause: float = 0.0) -> list[str]:
    return [sys.executable, "-c", RUN.format(arguments=arguments, pause=pause)]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONIOENCODING": "utf-8", "COLUMNS": "100"}


def in_pseudo_terminal(command: list[str], interrupt_when: str | None = None) -> str:
    """What a person would have been sent; Ctrl-C is pressed when the given text was seen."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment()
    )
    os.close(theirs)
    text, deadline = "", time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            received = os.read(ours, 4096)
        except OSError:  # how Linux says that the other side has closed
            break
        if not received:
            break
        text += received.decode("utf-8", "replace")
        if interrupt_when is not None and interrupt_when in text:
            process.send_signal(signal.SIGINT)
            interrupt_when = None
    os.close(ours)
    process.wait(timeout=30)
    return text


def test_a_real_terminal_gets_a_bar_and_its_cursor_back() -> None:
    text = in_pseudo_terminal(script(pause=0.005))
    assert "━" in text
    assert HIDE_CURSOR in text
    assert text.rfind(SHOW_CURSOR) > text.rfind(HIDE_CURSOR)
    lines = ESCAPE_CODE.sub("", text).splitlines()
    assert any(line.startswith("epoch 3/3 · 50 steps") for line in lines)
    assert any(line.startswith("printed by a callback") for line in lines)
    assert any(line.startswith("done: 150 steps") for line in lines)


def test_ctrl_c_gives_the_cursor_back() -> None:
    text = in_pseudo_terminal(script(pause=0.02), interrupt_when="epoch 2/3")
    assert "KeyboardInterrupt" in text
    assert "failed after" in text
    assert "training went on" not in text
    assert text.rfind(SHOW_CURSOR) > text.rfind(HIDE_CURSOR)


@pytest.mark.parametrize("arguments", ["", "1", "2"])
def test_a_reader_that_goes_away_does_not_stop_training(arguments: str) -> None:
    with subprocess.Popen(
        script(arguments, pause=0.002),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        text=True,
        encoding="utf-8",
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("epoch 1/3")
        process.stdout.close()
        errors = process.stderr.read()
    assert errors == "training went on to the end\n"
    assert process.returncode == 0


def test_a_closed_stdout_does_not_stop_training() -> None:
    result = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *script()],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0
    assert result.stderr == "training went on to the end\n"


def test_every_epoch_has_a_line_however_short_it_was(clock: Clock) -> None:
    sink, output = draw_bar(clock, Started(0, 30, 10, 300))
    for epoch in range(30):
        clock.now += 0.012
        sink(EpochEnded(epoch, 10 * epoch + 10, 10, 0.012, {"loss": 0.5}))
    sink(Finished(300, 0.4, "complete"))
    shown = [line.split(" · ")[0] for line in left_on_screen(output) if "loss" in line]
    assert shown == [f"epoch {epoch}/30" for epoch in range(1, 31)]


def test_short_epochs_are_printed_before_whatever_comes_next(clock: Clock) -> None:
    ended = [EpochEnded(epoch, epoch + 1, 1, 0.001, {}) for epoch in range(2)]
    sink, output = draw_bar(clock, Started(0, 5, 1, 5), *ended)
    send(sink, Noted(2, "something to know"), EpochEnded(2, 3, 1, 0.001, {}))
    send(sink, BatchSkipped(4, "batch 4"), EpochEnded(3, 4, 1, 0.001, {}), EpochStarted(4, 4))
    clock.now += 1.0
    sink(Trained(5, 4, 1, 1, 1.0, {"loss": 0.5}))  # a long epoch: its bar is drawn below them
    assert [line.split(" · ")[0] for line in left_on_screen(output)[:6]] == [
        *("epoch 1/5", "epoch 2/5", "note: something to know"),
        *("epoch 3/5", "skipped the batch of step 4", "epoch 4/5"),
    ]
