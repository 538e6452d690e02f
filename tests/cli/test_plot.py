"""`loopwright plot` and `history.plot`: figures of curves, from files and from a history."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.small_project import content_of, invoke

from loopwright.errors import ConfigurationError

pytest.importorskip("matplotlib")
PNG = b"\x89PNG"


def journal(run: Path, losses: list[float], **more: Any) -> Path:
    """A run directory with an epoch of ten steps for each loss."""
    run.mkdir(parents=True)
    lines: list[Any] = [{"event": "started", "step": 0}]
    for number, loss in enumerate(losses):
        step = 10 * (number + 1)
        metrics = {"loss": loss, "accuracy": 1 - loss, **more}
        lines += [
            {"event": "validated", "step": step, "metrics": {"loss": loss + 0.1}},
            {"event": "epoch_ended", "step": step, "epoch": number, "metrics": metrics},
        ]
        lines[-1]["learning_rates"] = {"learning_rate": 0.1}
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def test_the_curves_of_two_runs_are_one_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    one = journal(tmp_path / "a" / "run", [0.5, 0.3, 0.4])
    two = journal(tmp_path / "b" / "run", [0.6, 0.2])
    before = content_of(tmp_path)
    for name in ("curves.png", "curves.svg", "curves.pdf"):
        code, output = invoke("plot", str(one), str(two), "--output", name, "--metric", "loss")
        assert (code, output.strip()) == (0, name)
    assert (tmp_path / "curves.png").read_bytes().startswith(PNG)
    drawn = (tmp_path / "curves.svg").read_text()
    assert "<!-- loss -->" in drawn
    assert "accuracy" not in drawn
    assert "learning rate" not in drawn
    assert "<!-- a/run -->" in drawn, "both are named run: their paths tell them apart"
    assert invoke("plot", str(one), "--output", "all.svg")[0] == 0
    assert "learning rate" not in (tmp_path / "all.svg").read_text(), "it never changes"
    (tmp_path / "all.svg").unlink()
    written = {tmp_path / f"curves.{kind}" for kind in ("png", "svg", "pdf")}
    assert {path: c for path, c in content_of(tmp_path).items() if path not in written} == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--metric", "lss"], "expected: one of loss, accuracy, learning rate"),
        (["--output", "curves.txt"], "expected: a file that ends in .png, .svg or .pdf"),
        (["--output", "gone/curves.png"], "in a directory that exists"),
        (["{run}"], "received: 2 paths"),
        (["{run}/gone"], "No run found"),
    ],
)
def test_what_cannot_be_drawn_is_refused_and_nothing_is_written(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    run = journal(tmp_path / "run", [0.5, 0.3])
    before = content_of(tmp_path)
    code, output = invoke("plot", str(run), *(word.format(run=run) for word in words))
    assert code == 2
    assert said in output
    assert content_of(tmp_path) == before


def test_a_run_of_a_stranger_is_only_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    odd = {"$\\input{x}$": 1.0, "_private": 2.0, "\x1b[2J": 3.0, "huge": 1e308, "text": "x"}
    run = journal(tmp_path / "run", [0.5, float("nan")], **odd)
    assert invoke("plot", str(run), "--output", "all.svg")[0] == 0
    link = tmp_path / "linked"
    link.mkdir()
    (tmp_path / "secret").write_text("{}")
    (link / "metrics.jsonl").symlink_to(tmp_path / "secret")
    code, output = invoke("plot", str(link))
    assert code == 2
    assert "symlink" in output


def test_plotting_a_run_imports_no_tensorflow(tmp_path: Path):
    journal(tmp_path / "run", [0.5, 0.3])
    check = (
        "import sys; from typer.testing import CliRunner; from loopwright.cli import main;"
        "done = CliRunner().invoke(main.app, ['plot', 'run']); assert done.exit_code == 0, done;"
        "assert not {'tensorflow', 'keras'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", check], cwd=tmp_path, check=True)


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    run = journal(tmp_path / "run", [0.5, 0.3])
    code, output = invoke("plot", str(run), "--output", str(tmp_path / "curves.png"))
    assert code == 2
    assert "pip install 'loopwright[plot]'" in output


def history(validations: bool = True) -> Any:
    from loopwright.events import EpochEnded, Validated
    from loopwright.sinks.history import History

    found = History()
    for number, loss in enumerate([0.9, 0.5, 0.6]):
        step = 100 + 10 * (number + 1)
        if validations:
            found(Validated(step - 5, number, 1.0, {"loss": loss + 0.2}))
            found(Validated(step, number, 1.0, {"loss": loss + 0.1}))
        found(EpochEnded(number, step, 10, 1.0, {"loss": loss, "mae": 2 * loss}))
    return found


def test_a_history_is_drawn_by_epoch_with_its_best_epoch(tmp_path: Path):
    figure = history().plot(path=tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(PNG)
    loss, mae = figure.axes
    assert (loss.get_title("left"), mae.get_title("left")) == ("loss", "mae")
    lines = {line.get_label(): line for line in loss.get_lines()}
    assert list(lines["train"].get_xdata()) == [1, 2, 3]
    assert list(lines["validation"].get_xdata()) == [0.5, 1, 1.5, 2, 2.5, 3]
    assert "best val_loss 0.6 at epoch 2" in figure.get_suptitle()
    assert [line.get_xdata()[0] for line in mae.get_lines() if len(line.get_xdata()) == 2] == [2]


def test_a_history_draws_some_metrics_or_says_which_there_are(tmp_path: Path):
    assert len(history().plot("val_loss").axes) == 1
    assert len(history(validations=False).plot(["mae", "loss"]).axes) == 2
    with pytest.raises(ConfigurationError, match="expected: one of loss, mae"):
        history().plot(["accuracy"])
    with pytest.raises(ConfigurationError, match="cannot be written"):
        history().plot(path=tmp_path / "gone" / "curves.png")
    from loopwright.sinks.history import History

    with pytest.raises(ConfigurationError, match="no numbers to plot"):
        History().plot()
