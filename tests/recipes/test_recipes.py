"""The shelf: every recipe is known by its name and keeps the contract."""

import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module, resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loopwright as lw
from loopwright import recipes
from loopwright.export.exporter import export

ROOT = Path(__file__).parents[2]
INPUTS: dict[str, Callable[[Any], Any]] = {
    "imputation": lambda recipe: np.ones((2, recipe.HOURS, 10), "float32"),
    "seq2seq": lambda recipe: recipe.load()["test"][0][:2],
    "swissroll": lambda recipe: recipe.load()[0][:2],
    "wide_and_deep": lambda recipe: {k: v[:2] for k, v in recipe.load()["test"][0].items()},
}
"""Of models that do not say themselves what they take."""
SERVED = {"augment": "layers", "imputation": "mixed", "swissroll": "rebuilding"}
SERVED |= {"wide_and_deep": "both"}
"""One of those that are compared: the others are of the same kind."""


def test_every_recipe_is_known_by_its_name():
    assert {"digits", "regression"} <= set(recipes.names())
    assert not [name for name in recipes.names() if name.startswith("_")]


def test_an_unknown_recipe_is_refused_in_words():
    with pytest.raises(lw.ConfigurationError, match="Unknown recipe") as caught:
        recipes.run("digitz")
    assert "digits" in str(caught.value)


def test_listing_recipes_imports_none_of_them():
    program = (
        "import sys; from loopwright import recipes; recipes.names()\n"
        "assert not {'tensorflow', 'keras', 'matplotlib', 'sklearn'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("name", recipes.names())
def test_every_recipe_has_the_same_doors(name: str):
    recipe = import_module(f"loopwright.recipes.{name}")
    assert callable(recipe.load)
    doors = {recipe.experiment: ("quick", False), recipe.make_task: ("seed", 0)}
    for door, (option, default) in doors.items():
        parameters = inspect.signature(door).parameters
        assert parameters[option].default == default
        assert all(p.kind == inspect.Parameter.KEYWORD_ONLY for p in parameters.values())


def test_running_a_recipe_trains_it_in_a_directory_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    options: dict[str, Any] = {"plan": "graph", "quick": True, "epochs": 1, "verbose": 0}
    recipes.run("digits", **options)
    assert (tmp_path / "runs" / "digits" / "figures" / "readings.png").is_file()


def test_every_recipe_exports_models_that_a_new_process_can_load(tmp_path: Path):
    # All in one export: each process takes seconds to start.
    models, examples = dict[str, Any](), dict[str, Any]()
    for name in recipes.names():
        recipe = import_module(f"loopwright.recipes.{name}")
        served = recipe.make_task().exports()
        models[name] = served.get("serve") or served[SERVED[name]]
        if name in INPUTS:
            examples[name] = INPUTS[name](recipe)
    done = export(models, tmp_path / "export", examples)
    assert done.signatures == recipes.names()
    assert done.largest_difference < 1e-5


@pytest.mark.parametrize("name", recipes.names())
def test_every_recipe_has_a_page_with_its_row_its_result_and_a_small_figure(name: str):
    page = (ROOT / "docs" / "recipes" / f"{name}.md").read_text()
    assert f"python -m loopwright.recipes.{name}" in page
    assert f"]({name}.png)" in page
    assert re.search(r"^Rows? M\d+", page, re.MULTILINE), "which row of the mission it answers"
    assert re.search(r"^\| 20\d\d-\d\d-\d\d, ", page, re.MULTILINE), "measured when"
    assert (ROOT / "docs" / "recipes" / f"{name}.png").stat().st_size < 150_000


def test_the_data_is_small_and_says_where_it_comes_from():
    data = resources.files("loopwright.recipes") / "data"
    files = {entry.name: len(entry.read_bytes()) for entry in data.iterdir()}
    assert sum(files.values()) < 1_000_000
    described = (data / "README.md").read_text()
    assert all(name in described for name in files if name != "README.md")
