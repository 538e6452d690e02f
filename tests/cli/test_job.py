"""A config becomes a training: a person's own experiment, its numbers, its parts by name."""

import sys
from pathlib import Path
from typing import Any

import keras
import pytest
from tests.cli.small_project import enter
from typer.testing import CliRunner

import loopwright as lw
from loopwright import runs
from loopwright.checkpoints.store import Store
from loopwright.cli import job, main, registry, run_overview
from loopwright.config import file, schema

MINE = """
import keras, numpy as np
import loopwright as lw


def make_task(*, seed=0, optimizer=None, loss="mse", metrics=("mae",), units=4, biased=True):
    keras.utils.set_random_seed(seed)
    hidden = keras.layers.Dense(units, use_bias=biased)
    model = keras.Sequential([keras.Input((3,)), hidden, keras.layers.Dense(1)])
    return lw.Supervised(model, loss, optimizer or "sgd", metrics=metrics)


def experiment(*, rows=64, poisoned=False):
    x = np.random.default_rng(0).normal(size=(rows, 3)).astype("float32")
    y = x.sum(1, keepdims=True)
    if poisoned:
        x[5] = np.nan
    fit = {"x": x, "y": y, "validation_data": (x, y), "epochs": 2, "batch_size": 16}
    return lw.Experiment(make_task, fit={**fit, "verbose": 0}, test=(x, y))


def nothing():
    return 5


def unseeded():
    import tensorflow as tf

    made = experiment()
    tf.random.set_seed(None)
    rows = tf.data.Dataset.from_tensor_slices((made.fit["x"], made.fit["y"]))
    return lw.Experiment(make_task, fit={"x": rows.shuffle(64).batch(16), "epochs": 1})


def unreadable():
    raise OSError("the data was read")


def closed(*, seed=0):
    return make_task(seed=seed)


def without_parts():
    made = experiment()
    return lw.Experiment(closed, fit=made.fit, test=made.test)


def power(y_true, y_pred, exponent=2.0):
    return keras.ops.mean(keras.ops.abs(y_true - y_pred) ** exponent, axis=-1)


def power_of(exponent, squared=False):
    return lambda y_true, y_pred: power(y_true, y_pred, exponent)


class Largest(keras.metrics.Metric):
    def __init__(self, factor=1.0, **options):
        super().__init__(**options)
        self.factor, self.seen = factor, self.add_weight(name="seen", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        error = keras.ops.max(keras.ops.abs(y_true - y_pred))
        self.seen.assign(keras.ops.maximum(self.seen, self.factor * error))

    def result(self):
        return self.seen


shared = keras.metrics.MeanSquaredError()
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a person's own module, as the working directory."""
    return enter(tmp_path, monkeypatch, mine=MINE)


def train(*overrides: str, say: Any = lambda text: None) -> dict[str, float]:
    config = file.load("mine:experiment", ["fit.verbose=0", "plan=graph", *overrides])
    return job.train(config, say=say)


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
    saved = file.load(str(project / "runs/experiment/config.yaml"))
    assert (saved.fit.epochs, saved.fit.batch_size) == (3, 16)


def test_a_saved_config_runs_again_to_the_same_bits(project: Path):
    train("seed=3", "run_dir=one", "fit.batch_size=8")
    saved = file.load("one/config.yaml", ["run_dir=two"])
    assert saved.fit.epochs == 2  # the experiment's own, written down
    job.train(saved)
    for name in ("state.index", "state.data-00000-of-00001"):
        assert (newest("one").path / name).read_bytes() == (newest("two").path / name).read_bytes()
    train("seed=4", "run_dir=three", "fit.batch_size=8")
    one, three = newest("one").path, newest("three").path
    name = "state.data-00000-of-00001"
    assert (one / name).read_bytes() != (three / name).read_bytes()


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
        file.load(str(path / "config.yaml")) for path in sorted(Path("runs").iterdir())[::-1]
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
    config = file.load("mine:experiment", ["fit.verbose=0", "model.units=9"])
    with pytest.warns(lw.LoopwrightWarning, match="Previous run moved to"):
        job.train(config, fresh=True)
    assert len(list(Path("runs").iterdir())) == 2
    assert file.load("runs/experiment/config.yaml").model == {"units": 9}


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
    given = file.from_content(
        {"task": "digits", "optimizer": {"name": "sgd", "learning_rate": rate}}
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
        "optimizer={name: sgd, nesterov: no}",
        "callbacks=[{name: EarlyStopping, restore_best_weights: yes}]",
        "model.layers=3",
        "model.biased=no",
        "data.colums=3",
        "quick=true",
    ],
)
def test_options_that_nothing_takes_are_refused(override: str):
    with pytest.raises(lw.ConfigurationError):
        train(override)


def test_a_tracker_is_refused_before_the_data_is_read():
    with pytest.raises(lw.ConfigurationError, match="tracking_url"):
        train("task=mine:unreadable", "sinks=[{name: mlflow, tracking_url: 'http://a'}]")
    assert not Path("runs").exists()


def test_a_loss_and_metrics_by_name_are_those_of_keras():
    parts = ["loss={name: Huber, delta: 0.5}", "metrics=[mse, AUC, {name: AUC, as: area}]"]
    scores = train(*parts, "run_dir=by_name", "fit.epochs=1")
    assert sorted(scores) == ["area", "auc", "loss", "mse"]
    again = train(*parts, "run_dir=again", "fit.epochs=1")
    assert again == scores  # Keras would call the second AUC of a process auc_1
    saved = file.load("by_name/config.yaml")
    assert saved.loss == schema.Named.model_validate({"name": "Huber", "delta": 0.5})

    def make() -> lw.Task:
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(1)])
        return lw.Supervised(model, keras.losses.Huber(delta=0.5), "sgd", metrics=["mse"])

    data = job.load_experiment(saved).fit
    trainer = lw.Trainer(make, plan="graph")
    trainer.fit(**{**data, "epochs": 1})
    expected = trainer.evaluate(*data["validation_data"])
    assert expected == {name: scores[name] for name in expected}


@pytest.mark.parametrize(
    "loss",
    [
        "{name: mine:power, exponent: 1.0}",
        "{name: mine:power_of, exponent: 1.0}",
        "mae",
        "keras.losses:MeanAbsoluteError",
    ],
)
def test_a_loss_of_ones_own_is_a_function_a_factory_or_a_class(loss: str):
    trained = train(f"loss={loss}", "metrics=[mae, mine:power, {name: mine:Largest, factor: 2}]")
    assert sorted(trained) == ["largest", "loss", "mae", "power"]
    assert trained["loss"] == pytest.approx(trained["mae"])
    assert trained["largest"] >= 2 * trained["mae"]


def test_components_are_losses_and_metrics_of_a_config():
    parts = ["loss={name: loopwright.components:huber_with, threshold: 2.0}"]
    scores = train(*parts, "metrics=[{name: HuberMetric, threshold: 2.0}]")
    assert scores["loss"] == pytest.approx(scores["huber"])


@pytest.mark.parametrize(
    ("override", "why"),
    [
        ("loss={name: Huber, delt: 1}", "unknown argument delt; did you mean delta?"),
        ("loss={name: Huber, delta: wide}", "delta is a number, not 'wide'"),
        ("loss={name: bce, from_logits: no}", "from_logits is true or false, not 'no'"),
        ("loss={name: HuberLoss, threshold: 0}", "greater than zero"),
        ("loss=huber_with", "missing a required argument: 'threshold'"),
        ("loss={name: mine:power, exponents: 1}", "did you mean exponent?"),
        (
            "loss={name: mine:power_of, exponent: 1, squared: no}",
            "true or false, not 'no'",
        ),
        ("loss=mine:powr", "mine has no function 'powr'"),
        ("loss=mine:Largest", "it returned Largest"),
        ("loss=mine:nothing", "it returned int"),
        ("loss=os:system", "has no module 'os'"),
        ("metrics=[mine:shared]", "name its class instead"),
        ("metrics=[mine:nothing]", "it returned int"),
        ("metrics=[AUC, AUC]", "Two metrics of the config are reported as 'auc'"),
        ("metrics=[{name: TopKCategoricalAccuracy, k: '3'}]", "k is a number, not '3'"),
    ],
)
def test_a_loss_or_metric_that_cannot_be_made_is_refused(override: str, why: str):
    with pytest.raises(lw.ConfigurationError) as caught:
        train(override)
    assert why in str(caught.value)
    assert not Path("runs").exists()


@pytest.mark.parametrize("part", ["optimizer=adam", "loss=mse", "metrics=[mae]"])
def test_a_task_that_takes_no_part_from_a_config_says_so(part: str):
    config = file.load("mine:without_parts", [part])
    with pytest.raises(lw.ConfigurationError, match="without_parts does not accept `") as caught:
        job.train(config)
    assert "add the argument to the function" in str(caught.value)


def test_a_function_that_gives_no_experiment_is_refused():
    config = file.load("mine:nothing")
    with pytest.raises(lw.ConfigurationError, match="is not an experiment"):
        job.train(config)


@pytest.mark.parametrize("named", ["os:system", "json:loads", "keras:Model", "nowhere:x", "mine:x"])
def test_only_modules_of_the_project_are_imported(named: str, project: Path):
    with pytest.raises(lw.ConfigurationError, match="was not found"):
        registry.load_function(named, project)


def test_a_module_from_elsewhere_is_not_even_tried(
    project: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "other.py").write_text("open('executed', 'w').close()\ndef experiment(): ...\n")
    monkeypatch.syspath_prepend(elsewhere)
    with pytest.raises(lw.ConfigurationError, match="has no module 'other'"):
        registry.load_function("other:experiment", project)
    assert not (project / "executed").exists()


def test_a_module_of_the_project_does_not_hide_behind_one_that_was_imported(project: Path):
    (project / "json.py").write_text("def loads(): ...")
    with pytest.raises(lw.ConfigurationError, match="the name of another module"):
        registry.load_function("json:loads", project)


def test_what_a_module_imports_is_not_its_own(project: Path):
    (project / "careless.py").write_text(
        "from os import system\nfrom random import seed\nfrom subprocess import run, Popen\n"
        "from keras.utils import get_file\n"
    )
    for name in ("system", "run", "Popen", "get_file", "seed"):
        with pytest.raises(lw.ConfigurationError, match="is imported there from"):
            registry.load_function(f"careless:{name}", project)


def test_a_module_may_import_from_another_of_the_project(project: Path):
    (project / "own_parts").mkdir()
    (project / "own_parts" / "inner.py").write_text("def experiment(rows): ...")
    (project / "outer.py").write_text(
        "from contextlib import contextmanager\nfrom functools import partial\n"
        "from own_parts.inner import experiment\nsmall = partial(experiment, rows=8)\n"
        "@contextmanager\ndef wrapped(): ...\n"
    )
    before = list(sys.path)
    assert registry.load_function("outer:experiment", project).__module__ == "own_parts.inner"
    assert callable(registry.load_function("outer:small", project))
    assert callable(registry.load_function("outer:wrapped", project))
    assert sys.path == before


def test_a_file_is_a_module_of_its_own_directory(project: Path):
    (project / "deep").mkdir()
    (project / "deep" / "beside.py").write_text("ROWS = 3")
    (project / "deep" / "own-file.py").write_text(
        "from beside import ROWS\ndef experiment(): return ROWS\ndef small(): return 1\n"
    )
    before = list(sys.path)
    assert registry.load_function("deep/own-file.py", project)() == 3
    assert registry.load_function("deep/own-file.py:small", project)() == 1
    assert sys.path == before
    for named in ("deep/none.py", "deep/own-file.py:none", "json.py"):
        with pytest.raises(lw.ConfigurationError, match="was not found"):
            registry.load_function(named, project)


def test_a_config_accepts_training_that_cannot_be_resumed_exactly(project: Path):
    words = ["fit.verbose=0", "plan=graph", "exact=best_effort"]
    job.train(file.load("mine:unseeded", words), say=lambda text: None)
    why = "not exactly resumable: shuffle() has no seed: pass seed=1"
    rows = run_overview.summary(runs.open(Path("runs/unseeded")), {}, [])
    assert ("resume", why) in rows
    done = CliRunner().invoke(main.app, ["runs", "runs/unseeded"])
    assert why in " ".join(done.output.split())
