"""Configs: what a file, the environment and the command line say, and what they may not."""

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import loopwright as lw
from docs import config_schema
from loopwright.config import changes, file, names, plain_yaml
from loopwright.config.schema import Config, Fit


def load(content: Any, *overrides: str, environment: dict[str, str] | None = None) -> Config:
    return file.from_content({"task": "digits", **content}, overrides, environment=environment)


def refusal(content: Any, *overrides: str) -> str:
    with pytest.raises(lw.ConfigurationError) as caught:
        load(content, *overrides)
    return str(caught.value)


def yaml_refusal(text: str) -> str:
    with pytest.raises(lw.ConfigurationError) as caught:
        plain_yaml.parse(text, name="It")
    return str(caught.value)


# --- precedence ---


def test_the_command_line_wins_over_the_environment_the_file_and_the_defaults():
    environment = {"LOOPWRIGHT__FIT__EPOCHS": "3", "LOOPWRIGHT__SEED": "7"}
    assert load({}).fit.epochs is None
    assert load({"fit": {"epochs": 2}}).fit.epochs == 2
    assert load({"fit": {"epochs": 2}}, environment=environment).fit.epochs == 3
    config = load({"fit": {"epochs": 2}}, "fit.epochs=4", environment=environment)
    assert (config.fit.epochs, config.seed) == (4, 7)


def test_other_variables_of_the_environment_say_nothing():
    given = {"LOOPWRIGHT_CACHE_DIR": "x", "HOME": "y", "loopwright__seed": "5"}
    assert load({}, environment=given) == load({})


def test_an_override_reaches_into_lists_and_short_forms():
    config = load(
        {"callbacks": [{"name": "EarlyStopping"}], "optimizer": "sgd"},
        "callbacks.0.patience=3",
        "optimizer.learning_rate=1e-3",
    )
    assert config.callbacks[0].options == {"patience": 3}
    assert config.optimizer is not None
    assert (config.optimizer.name, config.optimizer.options) == ("SGD", {"learning_rate": 0.001})


@pytest.mark.parametrize("word", ["fit.epochs", "=5", "fit..epochs=5", "--epochs", ""])
def test_a_word_that_sets_nothing_is_refused(word: str):
    assert "Not a KEY=VALUE override" in refusal({}, word)


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"callbacks": []}, "callbacks.0.name=x"),
        ({"callbacks": [{}]}, "callbacks.x.name=y"),
        ({"seed": 1}, "seed.more=2"),
    ],
)
def test_an_override_of_a_place_that_is_not_there_is_refused(given: Any, word: str):
    assert "No such key in the config" in refusal(given, word)


# --- interpolation ---


def test_a_reference_keeps_its_type_and_follows_an_override():
    config = load({"model": {"units": "${seed}"}, "run_dir": "runs/s${seed}"}, "seed=5")
    assert (config.model["units"], config.run_dir) == (5, "runs/s5")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"run_dir": "${nothing}"}, "no such key"),
        ({"run_dir": "${oc.env:HOME}"}, "no such key"),
        ({"run_dir": "${fit}", "fit": {}}, "not a single value"),
        ({"run_dir": "${plan}", "plan": "${run_dir}"}, "a circular reference"),
        ({"run_dir": "x${plan"}, "without a closing }"),
        ({"run_dir": "${a${seed}}", "seed": 1}, "references cannot be nested"),
        ({"callbacks": [{"monitor": "${a"}]}, "value of callbacks.0.monitor is not closed"),
    ],
)
def test_a_reference_that_leads_nowhere_is_refused(given: Any, why: str):
    assert why in refusal(given)


@pytest.mark.parametrize("seed_text", ["", "xxxxxxxx"])
def test_references_that_double_each_other_are_refused_before_they_cost_anything(seed_text: str):
    chain: dict[str, Any] = {"a0": seed_text}
    chain |= {f"a{n}": f"${{model.a{n - 1}}}${{model.a{n - 1}}}" for n in range(1, 60)}
    assert "more than" in refusal({"model": chain})


# --- the closed schema ---


@pytest.mark.parametrize(
    ("given", "task", "title", "code"),
    [
        ({"task": "./deep//gan.py"}, "deep/gan.py", "gan", ["deep/gan.py"]),
        ({"task": "../my-gan.py:small"}, "../my-gan.py:small", "small", ["../my-gan.py:small"]),
        ({"recipe": "digits"}, "digits", "digits", []),
        ({"recipe": "gan"}, "examples/gan.py", "gan", ["examples/gan.py"]),
    ],
)
def test_a_task_is_a_file_too_and_was_once_a_recipe(given: Any, task: str, title: str, code: Any):
    config = file.from_content(given)
    assert (config.task, config.title, config.code) == (task, title, code)


def test_a_config_names_a_file_only_if_the_command_line_names_it_again(tmp_path: Path):
    path = tmp_path / "config.yaml"
    path.write_text("task: mine.py\n")
    with pytest.raises(lw.ConfigurationError, match="names a program") as caught:
        file.load(str(path), ["seed=1"])
    assert "task=mine.py, if you know and trust this file" in str(caught.value)
    assert file.load(str(path), ["task=mine.py"]).task == "mine.py"
    assert file.load(str(path), environment={"LOOPWRIGHT__TASK": "mine.py"}).task == "mine.py"


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ({"sead": 1}, "unknown key sead; did you mean seed?"),
        ({"fit": {"epoch": 1}}, "unknown key fit.epoch; did you mean epochs?"),
        ({"keep": [{"latst": 1}]}, "unknown key keep.0.latst; did you mean latest?"),
        ({"zzz": 1}, "unknown key zzz; known keys: task, run_dir"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_one(given: Any, hint: str):
    assert hint in refusal(given)


@pytest.mark.parametrize(
    "given",
    [
        *({"seed": value} for value in ("1", True, -1)),
        *({"fit": {"epochs": value}} for value in (0, True, 1.0)),
        *({"fit": {"save_every": value}} for value in ("often", 5)),
        {"fit": {"validation_split": 1.0}},
        {"fit": {"verbose": 3}},
        {"fit": 3},
        {"fit": {"epochs": 2, "until": "1 hour"}},
        {"recipe": "gan"},  # beside a task
        *({"task": value} for value in (None, "mine", "a\0b.py", ".py", "../mine:experiment")),
        {"task": "os.path:join; import os"},
        *({"run_dir": value} for value in ("a\0b", "")),
        {"strategy": "parameter_server"},
        {"precision": "int8"},
        {"optimizer": "os.system"},
        {"loss": {"delta": 1.0}},
        {"optimizer": {"name": "Adam", "learning_rate": {"name": "builtins.eval"}}},
        *({"callbacks": [name]} for name in ("LambdaCallback", "RemoteMonitor", "ModelCheckpoint")),
        *({"keep": [rule]} for rule in ({}, {"latest": 1, "best": "a"}, {"best": "val_gain"})),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_in_words(given: Any):
    text = refusal(given)
    assert text.startswith("Invalid config.")
    assert "expected: a config that matches docs/config.schema.json" in text


@pytest.mark.parametrize("content", [[], "digits", 5, 1.5])
def test_a_file_without_keys_is_refused(content: Any):
    with pytest.raises(lw.ConfigurationError, match="instead of a mapping"):
        file.from_content(content)


def test_intervals_are_written_in_one_way():
    fit = Fit(save_every="10 min", validate_every="1 epochs")
    assert (fit.save_every, fit.validate_every) == ("600 seconds", "1 epoch")


def test_names_are_those_of_keras_and_of_the_components_and_nothing_else():
    import keras

    from loopwright import components

    homes: dict[str, Any] = {
        "optimizer": (keras.optimizers, keras.optimizers.Optimizer),
        "schedule": (keras.optimizers.schedules, keras.optimizers.schedules.LearningRateSchedule),
        "callback": (keras.callbacks, keras.callbacks.Callback),
        "loss": (keras.losses, keras.losses.Loss),
        "metric": (keras.metrics, keras.metrics.Metric),
    }
    for kind, known in names.KINDS.items():
        if kind == "tracker":
            continue
        home, base = homes[kind]
        for name in known:
            if name in ("accuracy", "acc", "huber_with"):  # a word of Keras; a factory
                continue
            found = getattr(components, name, None) or getattr(home, name)
            assert issubclass(found, base), name
    for short in names.ALIASES:
        assert keras.losses.get(short)


def test_every_loss_and_metric_of_keras_is_known_or_left_out_on_purpose():
    import keras

    homes: dict[str, Any] = {"loss": keras.losses, "metric": keras.metrics}
    # Base classes, a wrapper of a function, means of one value; a name that Keras reads otherwise.
    left_out = {"Loss", "Metric", "MeanMetricWrapper", "Mean", "Sum", "Accuracy"}
    for kind, home in homes.items():
        classes = {name for name in dir(home) if isinstance(getattr(home, name), type)}
        assert classes - set(names.KINDS[kind]) <= left_out


@pytest.mark.parametrize(
    ("given", "loss", "metrics"),
    [
        ({"loss": "mse"}, {"name": "MeanSquaredError"}, None),
        ({"loss": "keras.losses:Huber"}, {"name": "Huber"}, None),
        ({"loss": {"name": "huber", "delta": 2}}, {"name": "Huber", "delta": 2}, None),
        ({"loss": "loopwright.components:HuberLoss"}, {"name": "HuberLoss"}, None),
        ({"loss": "loopwright.components:huber"}, {"name": "loopwright.components:huber"}, None),
        ({"loss": "mine.losses:focal"}, {"name": "mine.losses:focal"}, None),
        ({"metrics": ["accuracy"]}, None, [{"name": "accuracy"}]),
        ({"metrics": ["mae"]}, None, [{"name": "MeanAbsoluteError", "as": "mae"}]),
        ({"metrics": ["top_k_categorical_accuracy"]}, None, [{"name": "TopKCategoricalAccuracy"}]),
        ({"metrics": []}, None, []),
    ],
)
def test_losses_and_metrics_are_written_by_one_name(given: Any, loss: Any, metrics: Any):
    shown = plain_yaml.parse(file.to_yaml(load(given)), name="It")
    assert (shown.get("loss"), shown.get("metrics")) == (loss, metrics)
    assert load(shown) == load(given)


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ({"loss": "hubber"}, "loss: unknown loss 'hubber'; did you mean Huber?"),
        ({"loss": "keras.losses:Hubr"}, "did you mean Huber?"),
        ({"loss": "loopwright.components:softplus"}, "unknown loss"),
        ({"loss": "keras.utils:get_file"}, "unknown loss"),
        ({"loss": "zzz"}, "choose one of BinaryCrossentropy"),
        ({"loss": "zzz"}, "or MODULE:OBJECT of this project"),
        ({"metrics": ["mae", "acuracy"]}, "metrics.1: unknown metric 'acuracy'; did you mean acc"),
        ({"metrics": "accuracy"}, "metrics: input should be a valid list"),
        ({"metrics": [{"name": "accuracy", "k": 3}]}, "accuracy takes no arguments"),
        ({"metrics": [{"name": "AUC", "as": "val_auc"}]}, "`as` is the reported name"),
        ({"metrics": [{"name": "AUC", "as": "loss"}]}, "`as` is the reported name"),
        (
            {"loss": {"name": "Huber", "dtype": {"class_name": "x"}}},
            "dtype of Huber must be a number",
        ),
        ({"optimizer": "adm"}, "optimizer: unknown optimizer 'adm'; did you mean Adam?"),
        ({"callbacks": ["EarlyStoping"]}, "did you mean EarlyStopping?"),
        (
            {"optimizer": {"name": "SGD", "learning_rate": {"name": "CosinDecay"}}},
            "unknown schedule 'CosinDecay'; did you mean CosineDecay?",
        ),
    ],
)
def test_an_unknown_part_is_refused_with_the_nearest_one(given: Any, hint: str):
    assert hint in refusal(given)


def test_a_config_lists_the_code_of_its_own():
    config = load({"loss": "mine:focal", "metrics": ["mae", "mine:score", "mine:focal"]})
    assert config.code == ["mine:focal", "mine:score"]
    assert load({"loss": "loopwright.components:huber"}).code == []


# --- YAML ---


def test_numbers_and_words_are_what_people_mean():
    text = "{a: 1e-3, b: no, c: 2026-11-16, d: 12:30, e: 010, f: 1_000, g: .5, h: 1 epoch, i: ~"
    assert plain_yaml.parse(text + ", j: .nan}", name="It") == {
        "a": 0.001,
        "b": "no",
        "c": "2026-11-16",
        "d": "12:30",
        "e": "010",
        "f": 1000,
        "g": 0.5,
        "h": "1 epoch",
        "i": None,
        "j": ".nan",
    }


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: 1\na: 2", "duplicate key 'a'"),
        ("a: &x 1\nb: *x", "an alias or anchor"),
        ("a: !!python/object/apply:os.system ['touch executed']", "the tag"),
        ("a: !env HOME", "the tag"),
        ("1: 2", "is not a string"),
        ("? [a, b]\n: c", "is not a string"),
        ("a: [", "in line"),
        ("[" * 100_000, "levels"),
        ("[" * 60 + "]" * 60, "levels"),
        ("- a\n" * 30_000, "parts"),
        ("a: " + "9" * 5000, "integer string conversion"),
        ("a: \x00", "It cannot be parsed"),
        ("--- 1\n--- 2", "It cannot be parsed"),
    ],
)
def test_what_is_dangerous_or_doubtful_in_yaml_is_refused(text: str, why: str):
    assert why in yaml_refusal(text)


def test_a_file_that_is_too_large_is_not_even_parsed(tmp_path: Path):
    (tmp_path / "large.yaml").write_bytes(b"[" * (plain_yaml.MOST_BYTES + 1))
    with pytest.raises(lw.ConfigurationError, match="more than 1,000,000 bytes"):
        plain_yaml.read(tmp_path / "large.yaml")


@pytest.mark.parametrize("kind", ["missing", "directory", "pipe", "bytes"])
def test_what_is_no_text_file_is_refused(tmp_path: Path, kind: str):
    path = tmp_path / "config.yaml"
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "bytes":
        path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(lw.ConfigurationError, match="cannot be read"):
        file.load(str(path))


# --- written and read back ---


def test_what_is_written_is_read_back_as_the_same(tmp_path: Path):
    config = load(
        {
            "optimizer": {
                "name": "adam",
                "learning_rate": {"name": "onecycle", "highest": 1e-05},
                "clipnorm": None,
            },
            "callbacks": ["terminateonnan"],
            "model": {
                "words": "no",
                "like": ["1e-3", "010", "null", "", ".5"],
                "number": 1e300,
                "date": "2026-11-16",
                "deep": [[1], {"a": None, "b": -math.inf}],
            },
            "keep": [{"best": "val_mae", "mode": "min"}],
            "run_dir": "läufe/eins",
        }
    )
    file.save(config, tmp_path)
    assert file.saved_in(tmp_path) == config
    assert file.load(str(tmp_path / "config.yaml")) == config
    assert (tmp_path / "config.yaml").stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.yaml"]


@pytest.mark.parametrize("name", ["config.yaml", "config.yaml.tmp"])
def test_a_symlink_in_place_of_the_file_is_refused_and_not_followed(tmp_path: Path, name: str):
    outside = tmp_path / "outside"
    outside.write_text("untouched")
    run = tmp_path / "run"
    run.mkdir()
    (run / name).symlink_to(outside)
    with pytest.raises(lw.ConfigurationError, match="link the run directory instead"):
        file.save(load({}), run)
    assert outside.read_text() == "untouched"


# --- what a resumed run may change ---


@pytest.mark.parametrize(
    ("before", "now", "is_allowed"),
    [
        ("fit.epochs=3", "fit.epochs=5", True),
        ("fit.epochs=5", "fit.epochs=3", False),
        ("fit.until=1 hour", "fit.until=2 hours", True),
        ("fit.until=1 hour", "fit.until=90 steps", False),
        ("fit.epochs=5", "fit.until=2 hours", False),
        ("fit.save_every=1 epoch", "fit.save_every=9 steps", True),
        ("fit.validate_every=1 epoch", "fit.validate_every=9 steps", True),
        ("fit.verbose=0", "fit.verbose=2", True),
        ("keep=[{latest: 1}]", "keep=[{latest: 2}]", True),
        ("plan=auto", "plan=graph", True),
        ("seed=0", "seed=1", False),
        ("model.units=1", "model.units=2", False),
        ("data.rows=1", "data.rows=2", False),
        ("fit.batch_size=8", "fit.batch_size=9", False),
        ("optimizer=sgd", "optimizer=adam", False),
        ("loss=mse", "loss=mae", False),
        ("metrics=[mae]", "metrics=[mae, auc]", False),
        ("precision=float32", "precision=float64", False),
        ("quick=true", "quick=false", False),
        ("task=digits", "task=examples/gan.py", False),
    ],
)
def test_how_long_and_how_often_may_change_and_what_is_trained_may_not(
    before: str, now: str, is_allowed: bool
):
    found = changes.changes(load({}, before), load({}, now))
    assert found
    assert all(change.is_allowed for change in found) == is_allowed
    if is_allowed:
        changes.refuse_changes(found)
    else:
        with pytest.raises(lw.ConfigurationError, match=r"NOT ALLOWED"):
            changes.refuse_changes(found)


def test_an_edit_that_is_accepted_by_name_is_allowed():
    now = ("optimizer=adam", "seed=1", "on_change=[optimizer]")
    found = changes.changes(load({}, "optimizer=sgd"), load({}, *now))
    allowed = {change.key: change.is_allowed for change in found}
    assert allowed == {"seed": False, "optimizer": True, "on_change": True}
    with pytest.raises(lw.ConfigurationError, match=r"unknown 'rate'; choose from seed, shuffle"):
        load({}, "on_change=[rate]")


def test_how_exactly_a_run_resumes_may_change():
    (found,) = changes.changes(load({}), load({}, "exact=best_effort"))
    assert str(found) == "exact: warn -> best_effort (allowed)"
    with pytest.raises(lw.ConfigurationError, match="'warn', 'require' or 'best_effort'"):
        load({}, "exact=sometimes")


# --- pure ---


def test_reading_a_config_imports_no_tensorflow_keras_or_numpy():
    program = (
        "import sys; from loopwright.config import file\n"
        "file.load('digits', ['optimizer=adam', 'callbacks=[EarlyStopping]'])\n"
        "assert not {'tensorflow', 'keras', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_schema_for_editors_is_up_to_date():
    assert config_schema.FILE.read_text() == config_schema.text(), "python -m docs.config_schema"
