"""`history.plot`: a figure of the curves of a history."""

import sys
from pathlib import Path
from typing import Any

import pytest

from loopwright.errors import ConfigurationError

pytest.importorskip("matplotlib")
PNG = b"\x89PNG"


def history(validations: bool = True, **more: Any) -> Any:
    from loopwright.events import EpochEnded, Validated
    from loopwright.fit.history import History

    found = History()
    for number, loss in enumerate([0.9, 0.5, 0.6]):
        step = 100 + 10 * (number + 1)
        if validations:
            found(Validated(step - 5, number, 1.0, {"loss": loss + 0.2}))
            found(Validated(step, number, 1.0, {"loss": loss + 0.1}))
        found(EpochEnded(number, step, 10, 1.0, {"loss": loss, "mae": 2 * loss, **more}))
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
    from loopwright.fit.history import History

    with pytest.raises(ConfigurationError, match="no numbers to plot"):
        History().plot()


def test_odd_names_and_numbers_are_drawn(tmp_path: Path):
    odd: dict[str, Any] = {
        "$\\input{x}$": 1.0,
        "_private": 2.0,
        "\x1b[2J": 3.0,
        "huge": 1e308,
        "nan": float("nan"),
    }
    history(**odd).plot(path=tmp_path / "curves.svg")
    assert "<svg" in (tmp_path / "curves.svg").read_text()


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'loopwright\[plot\]'"):
        history().plot()
