"""A training that has mlflow-skinny only: `python -m tests.sinks.skinny_client RUN OPTIONS`.

The packages that the complete MLflow needs and mlflow-skinny does not cannot be imported.
"""

import importlib.metadata
import json
import re
import sys
from pathlib import Path

from packaging.requirements import Requirement


def packages_of(*names: str) -> set[str]:
    """The packages that these need, and those that they need in turn; with extras: name[extra]."""
    found, waiting = set[tuple[str, str]](), [Requirement(name) for name in names]
    while waiting:
        wanted = waiting.pop()
        name = re.sub(r"[-_.]+", "-", wanted.name).lower()
        for extra in ("", *wanted.extras):
            if (name, extra) in found:
                continue
            found.add((name, extra))
            for line in importlib.metadata.requires(name) or []:
                each = Requirement(line)
                if each.marker is None or each.marker.evaluate({"extra": extra}):
                    waiting.append(each)
    return {name for name, _ in found}


def leave_skinny() -> list[str]:
    """Make modules that only the complete MLflow needs look as if they were not installed."""
    missing = packages_of("mlflow") - packages_of("loopwright[mlflow]", "pytest")
    modules = [
        module
        for module, homes in importlib.metadata.packages_distributions().items()
        if {re.sub(r"[-_.]+", "-", home).lower() for home in homes} <= missing
    ]
    for module in modules:
        sys.modules[module] = None  # pyright: ignore[reportArgumentType]
    return modules


if __name__ == "__main__":
    assert {"sqlalchemy", "flask", "pandas"} <= set(leave_skinny())
    from tests.sinks import tracked_program

    tracked_program.train(Path(sys.argv[1]), "MLflow", json.loads(sys.argv[2]), 0.0)
    assert sys.modules["sqlalchemy"] is None
