"""The shelf: every recipe is known by its name and keeps the contract."""

import inspect
import subprocess
import sys
from importlib import import_module, resources
from pathlib import Path

import pytest

import loopwright as lw
from loopwright import recipes

ROOT = Path(__file__).parents[2]


def test_every_recipe_is_known_by_its_name():
    assert {"digits", "regression"} <= set(recipes.names())
    assert not [name for name in recipes.names() if name.startswith("_")]


def test_an_unknown_recipe_is_refused_in_words():
    with pytest.raises(lw.ConfigurationError, match="There is no such recipe") as caught:
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
    parameters = inspect.signature(recipe.main).parameters
    defaults = {key: parameter.default for key, parameter in parameters.items()}
    assert defaults == {
        "run_dir": f"runs/{name}",
        "plan": "auto",
        "quick": False,
        "save_every": "1 epoch",
    }
    assert callable(recipe.load)
    assert callable(recipe.make_task)


@pytest.mark.parametrize("name", recipes.names())
def test_every_recipe_has_a_page_with_a_small_figure(name: str):
    page = (ROOT / "docs" / "recipes" / f"{name}.md").read_text()
    assert f"python -m loopwright.recipes.{name}" in page
    assert f"]({name}.png)" in page
    assert (ROOT / "docs" / "recipes" / f"{name}.png").stat().st_size < 150_000


def test_the_data_is_small_and_says_where_it_comes_from():
    data = resources.files("loopwright.recipes") / "data"
    files = {entry.name: len(entry.read_bytes()) for entry in data.iterdir()}
    assert sum(files.values()) < 1_000_000
    described = (data / "README.md").read_text()
    assert all(name in described for name in files if name != "README.md")
