"""Every example is trained by its file and keeps the contract; digits is one of them."""

import inspect
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import loopwright as lw
from loopwright import testing
from loopwright.cli import job, main
from loopwright.config import file
from loopwright.export.exporter import export
from loopwright.fit import run_spec

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
NAMES = sorted({path.stem for path in EXAMPLES.glob("*.py")} - {"figures"} | {"digits"})
INPUTS: dict[str, Callable[[Any], Any]] = {
    "imputation": lambda example: np.ones((2, example.HOURS, 10), "float32"),
    "seq2seq": lambda example: example.load()["test"][0][:2],
    "swissroll": lambda example: example.load()[0][:2],
    "wide_and_deep": lambda example: {k: v[:2] for k, v in example.load()["test"][0].items()},
}
"""Of models that do not say themselves what they take."""
SERVED = {"augment": "layers", "imputation": "mixed", "swissroll": "rebuilding"}
SERVED |= {"wide_and_deep": "both"}
"""One of those that are compared: the others are of the same kind."""

every_example = pytest.mark.parametrize("name", NAMES)


def module(name: str) -> Any:
    return import_module("loopwright.digits" if name == "digits" else name)


def source(name: str) -> str:
    return name if name == "digits" else str(EXAMPLES / f"{name}.py")


def declared(experiment: lw.Experiment) -> Any:
    task = lw.Trainer(experiment.task).task
    return run_spec.record(task, {"seed": 0}, leg=0, before=None)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@every_example
def test_every_example_has_the_same_doors_and_a_page_with_its_result_and_a_small_figure(name: str):
    example = module(name)
    assert callable(example.load)
    doors = {example.experiment: ("quick", False), example.make_task: ("seed", 0)}
    for door, (option, default) in doors.items():
        parameters = inspect.signature(door).parameters
        assert parameters[option].default == default
        assert all(p.kind == inspect.Parameter.KEYWORD_ONLY for p in parameters.values())
    pages = ROOT / "docs" / "examples"
    page = (pages / f"{name}.md").read_text()
    assert f"loopwright train {'digits' if name == 'digits' else f'examples/{name}.py'}" in page
    assert f"]({name}.png)" in page
    assert re.search(r"^Rows? M\d+", page, re.MULTILINE), "which row of the mission it answers"
    assert re.search(r"^\| 20\d\d-\d\d-\d\d, ", page, re.MULTILINE), "measured when"
    assert (pages / f"{name}.png").stat().st_size < 150_000


def test_an_example_imports_only_public_names():
    modules = re.findall(
        r"^(?:from|import) (loopwright[\w.]*)",
        "\n".join(path.read_text() for path in EXAMPLES.glob("*.py")),
        re.MULTILINE,
    )
    rooms = {name.split(".")[1] for name in modules if "." in name}
    assert rooms == {"components", "digits"}


@every_example
def test_every_example_takes_the_numbers_of_a_config_and_gives_no_alarm_if_built_twice(name: str):
    config = file.load(source(name), ["quick=true", "fit.epochs=7", "seed=3", "plan=graph"])
    with job.open_job(config) as opened:
        assert opened.config.fit.epochs == 7
        assert opened.config.fit.save_every == "1 epoch"
        assert opened.trainer.task.step_counter == 0
        one, other = (declared(opened.experiment) for _ in range(2))
    assert one == other
    assert one["optimizer"]


@pytest.mark.parametrize(
    ("name", "kind", "reported"),
    [
        ("digits", "SparseCategorical", ["loss", "same"]),
        ("charlm", "SparseCategorical", ["loss", "perplexity", "same"]),
        ("unet", "Binary", ["loss", "same"]),
    ],
)
def test_supervised_examples_take_the_loss_and_metrics_of_a_config(
    name: str, kind: str, reported: list[str]
):
    loss = f"{{name: {kind}Crossentropy, from_logits: true}}"
    metric = f"{{name: {kind}Crossentropy, from_logits: true, as: same}}"
    values = ["quick=true", "plan=graph", f"loss={loss}", f"metrics=[{metric}]"]
    with job.open_job(file.load(source(name), values)) as opened:
        test = opened.experiment.test or ()
        few = [part.take(1) if name == "unet" else part[:4] for part in test]
        scores = opened.trainer.evaluate(*few)
    assert sorted(scores) == reported
    assert scores["loss"] == pytest.approx(scores["same"], rel=1e-4)


def test_an_example_is_trained_from_anywhere_and_resumed_by_who_names_it_again(tmp_path: Path):
    def loopwright(*words: str) -> str:
        done = CliRunner().invoke(main.app, words, env={"COLUMNS": "300"})
        return done.output + str(done.exception)

    run = tmp_path / "runs" / "gan"
    values = ["fit.save_every=5 steps", "plan=graph", "callbacks=[TerminateOnNaN]"]
    said = loopwright("train", source("gan"), "--quick", "fit.epochs=1", *values)
    assert f"resume runs/gan fit.epochs=2 --task {source('gan')}" in said, said
    assert (run / "figures" / "samples.png").is_file()
    assert f"expected: --task {source('gan')}" in loopwright("resume", "runs/gan")
    # A run of the time when examples were recipes of the package.
    content = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(content.replace(f"task: {source('gan')}", "recipe: gan"))
    assert "expected: --task examples/gan.py" in loopwright("resume", "runs/gan")
    (tmp_path / "examples").symlink_to(EXAMPLES)
    said = loopwright("resume", "runs/gan", "fit.epochs=2", "--task", "examples/gan.py")
    assert "epoch 2/2" in said, said


def first(rows: int, data: tuple[Any, Any]) -> tuple[Any, Any]:
    return data[0][:rows], data[1][:rows]


RESUMED: dict[str, tuple[Any, dict[str, Any]]] = {
    # An LSTM, which is slow: eight characters of each row.
    "charlm": (lambda e: [part[:32, :8] for part in e.load()["train"]], {"batch_size": 8}),
    "digits": (lambda e: first(128, e.load()["train"]), {}),
    # Two networks, two optimizers and a seed.
    "gan": (lambda e: [e.load()[:128]], {}),
    # A step that draws its own batches.
    "regression": (lambda e: [], {"until": "8 steps"}),
    # Two models, an added loss and its metric.
    "swissroll": (lambda e: first(128, e.load()), {}),
    # Two optimizers on one model.
    "wide_and_deep": (
        lambda e: [
            {k: v[:128] for k, v in e.load()["train"][0].items()},
            e.load()["train"][1][:128],
        ],
        {},
    ),
}


@pytest.mark.parametrize("name", RESUMED)
def test_an_example_resumes_exactly(name: str):
    example = module(name)
    data, options = RESUMED[name]
    testing.assert_resumes_exactly(
        lambda run_dir: lw.Trainer(example.make_task(), run_dir=run_dir, plan="eager"),
        *data(example),
        **{"until": "1 epoch", "break_at": [2], **options},
    )


def test_every_example_exports_models_that_a_new_process_can_load(tmp_path: Path):
    # All in one export: each process takes seconds to start.
    models, examples = dict[str, Any](), dict[str, Any]()
    for name in NAMES:
        example = module(name)
        served = example.make_task().exports()
        models[name] = served.get("serve") or served[SERVED[name]]
        if name in INPUTS:
            examples[name] = INPUTS[name](example)
    done = export(models, tmp_path / "export", examples)
    assert done.signatures == NAMES
    assert done.largest_difference < 1e-5


def test_the_data_is_small_and_says_where_it_comes_from():
    files = {entry.name: entry.stat().st_size for entry in (EXAMPLES / "data").iterdir()}
    assert sum(files.values()) < 1_000_000
    described = (EXAMPLES / "data" / "README.md").read_text()
    assert all(name in described for name in files if name != "README.md")
