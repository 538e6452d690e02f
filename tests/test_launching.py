"""A config becomes a training: a person's own experiment, its numbers, its parts by name."""

import sys
from pathlib import Path
from typing import Any

import keras
import pytest

import loopwright as lw
from loopwright import config as configs
from loopwright import launching, projects, recipes, registry
from loopwright.checkpoint import Store

MINE = """
import keras, numpy as np
import loopwright as lw


def make_task(*, seed=0, optimizer=None, units=4):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(units), keras.layers.Dense(1)])
    return lw.Supervised(model, "mse", optimizer or "sgd", metrics=["mae"])


def experiment(*, rows=64, poisoned=False):
    x = np.random.default_rng(0).normal(size=(rows, 3)).astype("float32")
    y = x.sum(1, keepdims=True)
    if poisoned:
        x[5] = np.nan
    fit = {"x": x, "y": y, "validation_data": (x, y), "epochs": 2, "batch_size": 16}
    return lw.Experiment(make_task, fit={**fit, "verbose": 0}, test=(x, y))


def nothing():
    return 5
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a person's own module, as the working directory."""
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return tmp_path


def train(*overrides: str, say: Any = lambda text: None) -> dict[str, float]:
    config = configs.load("mine:experiment", ["fit.verbose=0", "plan=graph", *overrides])
    return launching.train(config, say=say)


def newest(run_dir: str = "runs/experiment") -> Any:
    found = Store(Path(run_dir) / "checkpoints").newest()
    assert found is not None
    return found


def test_a_config_trains_what_it_names_and_saves_itself(project: Path):
    scores = train("fit.epochs=3", "model.units=7", "optimizer={name: adam, learning_rate: 0.01}")
    assert sorted(scores) == ["loss", "mae"]
    shapes = {row["name"]: row["shape"] for row in newest().content["variables"]}
    assert newest().step == 12
    assert shapes["model.layers[0].kernel"] == [3, 7]
    assert any("velocities" in name for name in shapes)
    saved = configs.load(str(project / "runs/experiment/config.yaml"))
    assert (saved.fit.epochs, saved.fit.batch_size) == (3, 16)


def test_a_saved_config_runs_again_to_the_same_bits(project: Path):
    train("seed=3", "run_dir=one", "fit.batch_size=8")
    saved = configs.load("one/config.yaml", ["run_dir=two"])
    assert saved.fit.epochs == 2  # the experiment's own, written down
    launching.train(saved)
    for name in ("state.index", "state.data-00000-of-00001"):
        assert (newest("one").path / name).read_bytes() == (newest("two").path / name).read_bytes()
    train("seed=4", "run_dir=three", "fit.batch_size=8")
    one, three = newest("one").path, newest("three").path
    name = "state.data-00000-of-00001"
    assert (one / name).read_bytes() != (three / name).read_bytes()


def test_the_seed_decides_the_weights_that_training_begins_with():
    def kernel(seed: int) -> Any:
        config = configs.load("mine:experiment", [f"seed={seed}"])
        with launching.launched(config) as launch:
            return launch.trainer.task.model.layers[0].kernel.numpy().tolist()

    assert kernel(3) == kernel(3)
    assert kernel(3) != kernel(4)


def test_more_epochs_go_on_and_the_change_is_shown():
    told: list[str] = []
    train()
    train("fit.epochs=3", say=told.append)
    assert told == ["config: fit.epochs: 2 -> 3 (allowed)"]
    assert newest().step == 12
    assert configs.load("runs/experiment/config.yaml").fit.epochs == 3


def test_another_model_is_refused_before_anything_changes():
    train()
    before = Path("runs/experiment/config.yaml").read_text()
    told: list[str] = []
    with pytest.raises(lw.ConfigurationError, match=r"NOT ALLOWED") as caught:
        train("model.units=9", "fit.save_every=1 epoch", say=told.append)
    assert "on_change=start_over" in str(caught.value)
    assert told[0].startswith("config: model: {} -> {'units': 9} (NOT ALLOWED")
    assert told[1] == "config: fit.save_every: none -> 1 epoch (allowed)"
    assert Path("runs/experiment/config.yaml").read_text() == before


def test_an_edit_is_accepted_by_name_or_starts_over():
    train("optimizer.name=sgd", "optimizer.learning_rate=0.1")
    rate = "optimizer.learning_rate=0.2"
    with pytest.raises(lw.ConfigurationError, match="NOT ALLOWED"):
        train("optimizer.name=sgd", rate, "fit.epochs=3")
    train("optimizer.name=sgd", rate, "fit.epochs=3", "on_change=[learning_rate]")
    assert newest().step == 12
    assert len(list(Path("runs").iterdir())) == 1
    told: list[str] = []
    train("model.units=9", "on_change=start_over", say=told.append)
    assert told[-1].startswith("starting over; previous run moved to ")
    assert newest().step == 8
    old, new = (
        configs.load(str(path / "config.yaml")) for path in sorted(Path("runs").iterdir())[::-1]
    )
    assert (old.fit.epochs, new.fit.epochs, new.model) == (3, 2, {"units": 9})
    train("model.units=9", "on_change=start_over")
    assert len(list(Path("runs").iterdir())) == 2


def test_a_run_that_never_saved_anything_may_be_corrected():
    with pytest.raises(lw.ConfigurationError):
        train("plan=no_such_plan.json")
    with pytest.raises(lw.DataError):
        train("fit.batch_size=1000000000000", "data.rows=0")
    train("model.units=2")


def test_fresh_moves_the_run_aside():
    train()
    config = configs.load("mine:experiment", ["fit.verbose=0", "model.units=9"])
    with pytest.warns(lw.LoopwrightWarning, match="Previous run moved to"):
        launching.train(config, fresh=True)
    assert len(list(Path("runs").iterdir())) == 2
    assert configs.load("runs/experiment/config.yaml").model == {"units": 9}


def test_precision_is_that_of_the_config_and_afterwards_as_before():
    train("precision=float64", "run_dir=double")
    dtypes = {row["name"]: row["dtype"] for row in newest("double").content["variables"]}
    assert dtypes["model.layers[0].kernel"] == "float64"
    assert keras.config.dtype_policy().name == "float32"


def test_a_config_may_ask_for_replicas():
    train("strategy=mirrored")
    assert newest().step == 8


def test_what_happens_with_nan_is_said_in_the_config():
    with pytest.raises(lw.NotFiniteError):
        train("data.poisoned=true", "run_dir=raises", "fit.validate_every=9 epochs")
    train("data.poisoned=true", "run_dir=skips", "on_nan=skip", "fit.validate_every=9 epochs")


def test_callbacks_are_made_by_name_and_write_into_the_run_directory(project: Path):
    train("callbacks=[{name: EarlyStopping, monitor: loss, patience: 1}, CSVLogger, TensorBoard]")
    run = project / "runs" / "experiment"
    assert (run / "history.csv").is_file()
    assert list((run / "callbacks").rglob("events.out.*"))


@pytest.mark.parametrize(
    "callback",
    [
        "{name: CSVLogger, filename: ../outside.csv}",
        "{name: CSVLogger, filename: /tmp/outside.csv}",
        "{name: TensorBoard, log_dir: ../../outside}",
        "{name: TensorBoard, embeddings_metadata: x}",
        "{name: EarlyStopping, patients: 3}",
    ],
)
def test_a_callback_that_would_write_elsewhere_or_is_misspelt_is_refused(
    callback: str, project: Path
):
    with pytest.raises(lw.ConfigurationError):
        train(f"callbacks=[{callback}]")
    assert not list(project.glob("outside*"))


def test_a_schedule_is_made_inside_an_optimizer_and_inside_a_schedule():
    inner = {"name": "CosineDecay", "initial_learning_rate": 0.1, "decay_steps": 10}
    rate = {"name": "warmup", "schedule": inner, "steps": 4}
    given = configs.from_content(
        {"recipe": "digits", "optimizer": {"name": "sgd", "learning_rate": rate}}
    ).optimizer
    assert given is not None
    made = registry.optimizer(given)
    made.iterations.assign(4)
    assert float(made.learning_rate) == pytest.approx(0.1)
    made.iterations.assign(0)
    assert float(made.learning_rate) == pytest.approx(0.0)


@pytest.mark.parametrize(
    "override",
    [
        "optimizer={name: sgd, learning_rat: 1}",
        "optimizer={name: sgd, learning_rate: {name: CosineDecay}}",
        "optimizer={name: sgd, momentum: 7}",
        "optimizer={name: OneCycle}",
        "model.layers=3",
        "data.colums=3",
        "quick=true",
    ],
)
def test_options_that_nothing_takes_are_refused(override: str):
    with pytest.raises(lw.ConfigurationError):
        train(override)


def test_a_function_that_gives_no_experiment_is_refused():
    config = configs.load("mine:nothing")
    with pytest.raises(lw.ConfigurationError, match="is not an experiment"):
        launching.train(config)


@pytest.mark.parametrize("named", ["os:system", "json:loads", "keras:Model", "nowhere:x", "mine:x"])
def test_only_modules_of_the_project_are_imported(named: str, project: Path):
    with pytest.raises(lw.ConfigurationError, match="was not found"):
        projects.function(named, project)


def test_a_module_from_elsewhere_is_not_even_tried(
    project: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "other.py").write_text("open('executed', 'w').close()\ndef experiment(): ...\n")
    monkeypatch.syspath_prepend(elsewhere)
    with pytest.raises(lw.ConfigurationError, match="has no module 'other'"):
        projects.function("other:experiment", project)
    assert not (project / "executed").exists()


def test_a_module_of_the_project_does_not_hide_behind_one_that_was_imported(project: Path):
    (project / "json.py").write_text("def loads(): ...")
    with pytest.raises(lw.ConfigurationError, match="the name of another module"):
        projects.function("json:loads", project)


def test_importing_leaves_the_path_as_it_was(project: Path):
    before = list(sys.path)
    projects.function("mine:experiment", project)
    assert sys.path == before


@pytest.mark.parametrize("name", recipes.names())
def test_every_recipe_takes_the_numbers_of_a_config(name: str):
    config = configs.load(name, ["quick=true", "fit.epochs=7", "seed=3", "plan=graph"])
    with launching.launched(config) as launch:
        assert launch.config.fit.epochs == 7
        assert launch.config.fit.save_every == "1 epoch"
        assert launch.trainer.task.step_counter == 0


def test_a_recipe_with_a_callback_of_its_own_trains_by_a_config():
    values = ["quick=true", "fit.epochs=1", "fit.save_every=5 steps", "plan=graph"]
    scores = launching.train(configs.load("gan", [*values, "callbacks=[TerminateOnNaN]"]))
    assert scores["digits"] >= 0
    assert Path("runs/gan/figures/samples.png").is_file()
