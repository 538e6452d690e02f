"""What is saved in one process is the same in another: predictions, thresholds, rates, seeds."""

import inspect
import json
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from tests.components.parts import arrays, of_layers
from tests.processes import run_command

from loopwright import components
from loopwright.components import losses

LOADER = Path(__file__).with_name("loader.py")
ROOT = Path(__file__).parents[2]
FLOATS = ("float32", "mixed_float16")
MODELS: dict[str, Any] = {
    "layers": of_layers,
    "residual": lambda policy: components.ResidualRegressor(1, units=8, dtype=policy),
    "reconstruction": lambda policy: components.ReconstructionRegressor(1, dtype=policy),
}
LOSSES: dict[str, Any] = {
    "function": lambda: components.huber,
    "factory": lambda: components.huber_with(2.0),
    "class": lambda: components.HuberLoss(2.0),
}
OPTIMIZERS: dict[str, Any] = {
    "function": lambda: keras.optimizers.SGD(
        components.Warmup(components.Cyclic(0.1, 0.2, 5, kind="halved"), steps=7)
    ),
    "factory": lambda: components.Tiger(components.OneCycle(0.1, 100), beta=0.8),
    "class": lambda: "sgd",
}


@pytest.fixture(scope="module")
def saved_and_loaded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What each model was here, and what a new process says about its file."""
    directory = tmp_path_factory.mktemp("models")
    keras.utils.set_random_seed(1)
    x, y = arrays()
    np.savez(directory / "data.npz", x=x, y=4 * y)
    here: dict[str, Any] = {}
    for name, make in MODELS.items():
        for policy in FLOATS:
            here[f"{name} {policy}"] = make(policy)
    for name, loss in LOSSES.items():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile(OPTIMIZERS[name](), loss(), metrics=[components.HuberMetric(0.25)])
        here[f"huber {name}"] = model
    told: dict[str, Any] = {}
    for name, model in here.items():
        told[name] = np.asarray(model(x)).ravel().tolist()
        model.save(directory / f"{name}.keras")
    environment = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    result = run_command([sys.executable, str(LOADER), str(directory)], env=environment)
    scores = {
        name: model.evaluate(x, 4 * y, verbose=0, return_dict=True)
        for name, model in here.items()
        if model.compiled
    }
    return told, scores, json.loads(result.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", [f"{name} {policy}" for name in MODELS for policy in FLOATS])
def test_a_model_predicts_the_same_in_a_new_process(saved_and_loaded: Any, name: str):
    told, _, loaded = saved_and_loaded
    assert np.ptp(told[name]) > 0
    assert loaded[name]["predictions"] == told[name]


@pytest.mark.parametrize(("way", "threshold"), [("factory", 2.0), ("class", 2.0)])
def test_the_threshold_survives_a_new_process(saved_and_loaded: Any, way: str, threshold: float):
    _, _, loaded = saved_and_loaded
    assert loaded[f"huber {way}"]["compiled"]["loss"]["config"]["threshold"] == threshold


@pytest.mark.parametrize("way", list(LOSSES))
def test_the_loss_is_as_large_in_a_new_process(saved_and_loaded: Any, way: str):
    _, scores, loaded = saved_and_loaded
    assert loaded[f"huber {way}"]["scores"] == pytest.approx(scores[f"huber {way}"], rel=1e-6)


def test_thresholds_matter_to_these_losses(saved_and_loaded: Any):
    # Otherwise the test before this one would pass with any threshold.
    _, scores, _ = saved_and_loaded
    for way in LOSSES:
        assert scores[f"huber {way}"]["loss"] != pytest.approx(
            scores[f"huber {way}"]["huber"], rel=0.05
        )


def test_a_schedule_inside_a_schedule_survives_a_new_process(saved_and_loaded: Any):
    _, _, loaded = saved_and_loaded
    rate = loaded["huber function"]["compiled"]["optimizer"]["config"]["learning_rate"]["config"]
    assert (rate["steps"], rate["start"]) == (7, 0.0)
    assert rate["schedule"]["config"] == {
        "lowest": 0.1,
        "highest": 0.2,
        "half_cycle_steps": 5,
        "kind": "halved",
        "decay": 0.9999,
    }


def test_an_optimizer_of_ones_own_survives_a_new_process(saved_and_loaded: Any):
    _, _, loaded = saved_and_loaded
    optimizer = loaded["huber factory"]["compiled"]["optimizer"]
    assert optimizer["registered_name"] == "loopwright>Tiger"
    assert optimizer["config"]["beta"] == 0.8
    assert optimizer["config"]["learning_rate"]["config"]["total_steps"] == 100


def test_a_mixed_precision_model_keeps_its_policy(saved_and_loaded: Any):
    _, _, loaded = saved_and_loaded
    policy = loaded["residual mixed_float16"]["config"]["dtype"]["config"]["name"]
    assert policy == "mixed_float16"


CYCLIC: Any = {
    "lowest": 0.1,
    "highest": 0.2,
    "half_cycle_steps": 3,
    "kind": "decayed",
    "decay": 0.9,
}
ONE_CYCLE: Any = {"highest": 0.1, "total_steps": 9, "rise": 0.4, "start_divisor": 10.0}
TIGER: Any = {"learning_rate": 0.25, "beta": 0.5, "weight_decay": 0.01, "clipnorm": 2.0}
NESTED: dict[str, Any] = {
    "Dense": lambda: {
        "activation": components.softplus,
        "kernel_initializer": components.GlorotNormal(4),
    },
    "Warmup": lambda: {"schedule": components.Cyclic(**CYCLIC)},
}
PARTS: list[tuple[Any, dict[str, Any]]] = [
    (losses.HuberFunction, {"threshold": 3.0}),
    (components.HuberLoss, {"threshold": 3.0, "reduction": "sum", "name": "mine"}),
    (components.HuberMetric, {"threshold": 3.0, "name": "mine"}),
    (components.Perplexity, {"from_logits": True, "name": "mine"}),
    (components.GlorotNormal, {"seed": 3}),
    (components.L1, {"factor": 0.5}),
    (components.NonNegative, {}),
    (components.Exponential, {"name": "mine"}),
    (components.Dense, {"units": 3}),
    (components.SumProductQuotient, {"name": "mine"}),
    (components.TrainingNoise, {"stddev": 0.3, "seed": 4}),
    (components.ResidualBlock, {"depth": 3, "units": 7, "activation": "tanh"}),
    (components.ResidualRegressor, {"output_dim": 2, "units": 5}),
    (
        components.ReconstructionRegressor,
        {"output_dim": 2, "reconstruction_weight": 0.3, "units": 5},
    ),
    (components.Cyclic, CYCLIC),
    (components.OneCycle, {**ONE_CYCLE, "end_divisor": 100.0}),
    (components.Warmup, {"steps": 5, "start": 0.01}),
    (components.Tiger, TIGER),
]
each_part = pytest.mark.parametrize(
    ("kind", "arguments"), PARTS, ids=[kind.__name__ for kind, _ in PARTS]
)


def made(kind: Any, arguments: dict[str, Any]) -> Any:
    return kind(**arguments, **NESTED.get(kind.__name__, dict)())


@each_part
def test_a_part_is_the_same_after_its_config(kind: Any, arguments: dict[str, Any]):
    config = made(kind, arguments).get_config()
    assert {name: config[name] for name in arguments} == pytest.approx(arguments)
    again = kind.from_config(json.loads(json.dumps(config)))
    assert again.get_config() == config
    assert keras.saving.get_registered_name(kind) == f"loopwright>{kind.__name__}"


@each_part
def test_every_argument_of_a_part_is_in_its_config(kind: Any, arguments: dict[str, Any]):
    own = set(inspect.signature(kind).parameters) - {"args", "kwargs", "options"}
    assert own <= set(made(kind, arguments).get_config())


def test_every_class_of_the_shelf_is_among_these():
    kinds = {kind for kind, _ in PARTS} - {losses.HuberFunction}
    classes = {part for part in vars(components).values() if isinstance(part, type)}
    assert kinds == {part for part in classes if not issubclass(part, keras.callbacks.Callback)}
