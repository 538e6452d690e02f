"""Exports of runs: configs, the command line, the report, and the line that is printed."""

import json
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from tests.chromium import PATH, Chromium
from tests.cli.small_project import enter
from tests.processes import run_command

import loopwright as lw
from loopwright.cli import job
from loopwright.config import file
from loopwright.config.export_formats import Target
from loopwright.export.exporter import newest
from loopwright.sinks.report import export_rows

X = np.random.default_rng(0).normal(size=(64, 5)).astype("float32")
PROGRAM = """
import keras, numpy as np
import loopwright as lw

def experiment(*, recurrent: bool = False) -> lw.Experiment:
    x = np.random.default_rng(0).normal(size=(64, 3, 5)).astype("float32")
    inner = keras.layers.LSTM(3) if recurrent else keras.layers.Flatten()
    def make_task():
        layers = [keras.Input((3, 5), name="days"), inner, keras.layers.Dense(2)]
        return lw.Supervised(keras.Sequential(layers), "mse", "sgd")
    data = {"x": x[:48], "y": x[:48, 0, :2], "validation_data": (x[48:], x[48:, 0, :2])}
    return lw.Experiment(make_task, fit=data)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return enter(tmp_path, monkeypatch, mine=PROGRAM)


def config(*values: str) -> Any:
    return file.load("mine:experiment", ["plan=graph", "fit.verbose=0", "run_dir=run", *values])


def test_a_config_exports_a_list_of_formats_once(project: Path):
    pytest.importorskip("ai_edge_litert")
    wanted = "export=[saved_model, {format: litert, quantize: int8}]"
    said = list[str]()
    job.train(config(wanted), say=said.append)
    home = project / "run" / "export"
    assert sorted(path.name for path in home.iterdir()) == [
        "1",
        "step-2-int8.tflite",
        "step-2-int8.tflite.json",
    ]
    told = json.loads((home / "step-2-int8.tflite.json").read_text())
    assert told["examples_from"] == {"serve": "data"}
    report = (project / "run" / "report.html").read_text()
    assert "step-2-int8.tflite" in report
    said.clear()
    job.train(config(wanted), say=said.append)
    assert [
        line for line in said if "(what predict returns) already contains step 2, skipped" in line
    ] == said[-2:]
    target = Target(format="litert", quantize="int8")
    assert newest(project / "run", target) is not None
    assert newest(project / "run", Target(format="litert")) is None


def test_an_export_that_fails_leaves_the_run_and_the_other_exports(project: Path):
    pytest.importorskip("ai_edge_litert")
    said = list[str]()
    asked = config("data={recurrent: true}", "export=[litert, keras]")
    with pytest.raises(lw.LoopwrightError, match="fixed batch size"):
        job.train(asked, say=said.append)
    assert "To try again: loopwright export run --format litert" in "\n".join(said)
    assert [path.name for path in (project / "run" / "export").glob("*.keras")] == ["step-2.keras"]
    assert (project / "run" / "report.html").is_file()
    command = [sys.executable, "-m", "loopwright", "export", "run", "--format", "litert"]
    command += ["--batch-size", "1", "--task", "mine:experiment"]
    ran = run_command(command)
    assert ran.stdout.startswith(
        "run/export/step-2-batch-1.tflite (serve: what predict returns): outputs "
    )
    assert "step-2-batch-1.tflite" in (project / "run" / "report.html").read_text()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("export=coreml", "export"),
        (
            "export=[litert, {format: onnx, quantize: int8}]",
            "only LiteRT files",
        ),
        ("export={format: litert, quantize: int4}", "quantize"),
        ("export={format: keras, batch_size: 1}", "a fixed batch size is for LiteRT and ONNX"),
    ],
)
def test_a_config_with_an_unknown_format_is_refused_before_anything_is_built(
    value: str, words: str
):
    with pytest.raises(lw.ConfigurationError, match=words):
        config(value)


def test_a_config_whose_export_lacks_its_extra_is_refused_before_the_training(
    project: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "ai_edge_litert", None)
    for run in (job.train, job.rehearse):
        with pytest.raises(lw.ConfigurationError, match=r"pip install 'loopwright\[litert\]'"):
            run(config("export=litert"))
    assert not (project / "run").exists()


def stored(home: Path, name: str, **fields: Any) -> None:
    one = {"signature": "serve", "examples": 1, "largest_difference": 2e-7}
    told = {"path": name, "format": "litert", "largest_difference": 2e-7, "bytes": 4680, "step": 60}
    told |= {"comparisons": [{**one, "examples": 8}, one], "runtime": "ai-edge-litert 2.3.0"}
    (home / f"{name}.json").write_text(json.dumps({**told, **fields}))


def test_a_report_of_an_untrusted_run_shows_exports_as_text(tmp_path: Path):
    home = tmp_path / "export"
    home.mkdir()
    stored(home, "good.tflite", quantize="int8")
    stored(home, "odd.tflite", comparisons={"x": 1}, step="<b>", bytes=[], runtime={})
    stored(home, "wrong.tflite", largest_difference="0")
    (home / "list.json").write_text("[1]")
    (home / "broken.json").write_text("{")
    rows = {row["file"]: row for row in export_rows(tmp_path)}
    assert set(rows) == {"export/good.tflite", "export/odd.tflite"}
    assert rows["export/good.tflite"]["size"] == "4.7 kB"


@pytest.mark.skipif(PATH is None, reason="needs Chromium")
def test_a_browser_shows_the_exports_of_a_run(tmp_path: Path):
    layers = [keras.Input((5,)), keras.layers.Dense(2)]
    task = lw.Supervised(keras.Sequential(layers), "mse", "sgd")
    trainer = lw.Trainer(task, run_dir=tmp_path / "run", plan="graph")
    trainer.fit(X, X[:, :2], epochs=2, verbose=0)
    home = tmp_path / "run" / "export"
    home.mkdir()
    stored(home, "step-4.tflite")
    stored(home, "step-4-<i>.tflite", quantize="int8")
    trainer.export()  # writes the report again
    with Chromium() as page:
        page.open((tmp_path / "run" / "report.html").as_uri())
        text = page.evaluate("document.body.innerText")
        assert page.messages == []
    for words in ("Exports", "step-4.tflite", "4.7 kB", "step-4-<i>.tflite"):
        assert words in text, words
    assert "export/1" in text
