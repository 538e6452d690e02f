"""Search spaces: what is parsed, and how mistakes are explained."""

from typing import Any

import pytest

import loopwright as lw
from loopwright.config import file, space


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("float(1e-4,1e-1,log)", space.Range("float", 1e-4, 1e-1, log=True)),
        ("int(16, 256, log)", space.Range("int", 16, 256, log=True)),
        ("int(1,8)", space.Range("int", 1, 8)),
        ("float(0,1,step=0.1)", space.Range("float", 0.0, 1.0, step=0.1)),
        ("choice(a,b,null)", space.Choice(("a", "b", None))),
        ("choice([64,64],[32])", space.Choice(([64, 64], [32]))),
        ('choice("a,b",c)', space.Choice(("a,b", "c"))),
    ],
)
def test_a_space_is_parsed_and_its_text_is_parsed_to_the_same(text: str, expected: Any):
    found, overrides = space.parsed([f"model.key={text}", "seed=3"])
    assert found == {"model.key": expected}
    assert overrides == ["seed=3"]
    assert space.dimension("model.key", str(expected)) == expected


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["a=flaot(1,2)"], r"Unknown distribution 'flaot'[\s\S]*do: write float"),
        (["a=float(2,1)"], r"bounds are reversed[\s\S]*write float\(1,2"),
        (["a=float(0,1,log)"], "logarithm of 0"),
        (["a=float(1,2,lg)"], "did you mean log"),
        (["a=int(1.5,2)"], "not two whole numbers"),
        (["a=int(1,5,step=9)"], "step does not fit"),
        (["a=int(1,8,log,step=2)"], "Both log and a step"),
        (["a=choice()"], "nothing to choose from"),
        (["a=choice(x,x)"], "x twice"),
        (["a=choice(1,true)"], "twice"),
        (["a=float(1,2"], "not closed"),
        (["a=int(1,2)", "a=3"], "given twice"),
    ],
)
def test_a_mistake_in_a_space_is_explained(words: list[str], text: str):
    with pytest.raises(lw.ConfigurationError, match=text):
        space.parsed(words)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "nothing to search"),
        ({"fit.epohcs": "int(1,3)"}, "did you mean epochs"),
        ({"optimizer": ["adam", "sdg"]}, "did you mean SGD"),
        ({"fit.batch_size": "float(1,3)"}, "fit.batch_size: .* integer"),
        ({"fit.batch_size": "int(0,3)"}, "fit.batch_size"),
        ({"run_dir": ["a", "b"]}, "run_dir cannot be searched"),
    ],
)
def test_a_space_that_does_not_fit_the_config_is_refused(given: dict[str, Any], text: str):
    with pytest.raises(lw.ConfigurationError, match=text):
        space.require_fits(file.load("digits"), space.from_mapping(given))


def test_a_value_inside_of_a_chosen_part_is_kept():
    given = {"optimizer.learning_rate": "float(1e-3,1,log)", "optimizer": ["adam", "sgd"]}
    found = space.from_mapping(given)
    space.require_fits(file.load("digits"), found)
    chosen = {"optimizer.learning_rate": 0.5, "optimizer": "sgd"}
    config = space.with_parameters(file.load("digits"), found, chosen)
    assert config.optimizer is not None
    assert (config.optimizer.name, config.optimizer.options) == ("SGD", {"learning_rate": 0.5})


def test_a_grid_counts_its_combinations_and_needs_steps():
    given = {"seed": "int(1,3)", "data.share": "float(0,1,step=0.25)", "loss": ["mse", "mae"]}
    assert space.grid_size(space.from_mapping(given)) == 3 * 5 * 2
    with pytest.raises(lw.ConfigurationError, match="add a step"):
        space.grid_size(space.from_mapping({"data.share": "float(0,1)"}))
