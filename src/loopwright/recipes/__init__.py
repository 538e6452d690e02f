"""Recipes: runnable examples that ship with the package.

from loopwright import recipes

recipes.run("digits", quick=True)
"""

import ast
import importlib
import pkgutil
from importlib import resources
from typing import Any

from loopwright.errors import ConfigurationError, message


def names() -> list[str]:
    """Return the names of all recipes, without importing one.

    >>> "digits" in names()
    True
    """
    found = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name for name in found if not name.startswith("_"))


def titles() -> dict[str, str]:
    """Return the first docstring line of every recipe, without importing one.

    >>> titles()["digits"].startswith("Handwritten digits")
    True
    """
    found = dict[str, str]()
    for name in names():
        source = (resources.files(__name__) / f"{name}.py").read_text(encoding="utf-8")
        found[name] = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
    return found


def require(name: str) -> None:
    """Raise if there is no recipe of this name."""
    if name not in names():
        raise ConfigurationError(
            message(
                "Unknown recipe.",
                expected=f"one of {', '.join(names())}",
                received=repr(name),
                do="choose one of these; `loopwright recipes` describes them",
            )
        )


def run(
    name: str,
    run_dir: str | None = None,
    *,
    plan: str = "auto",
    quick: bool = False,
    **fit: Any,
) -> dict[str, float]:
    """Train a recipe in `runs/NAME`, or resume it there, and return its scores.

    `quick` trains a small version in seconds; `fit` overrides the recipe's settings.
    """
    require(name)
    from loopwright import experiment  # imports TensorFlow

    made = importlib.import_module(f"{__name__}.{name}").experiment(quick=quick)
    return experiment.run(made, run_dir or f"runs/{name}", plan=plan, **fit)
