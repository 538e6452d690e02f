"""What a right program is: something to train, its data, and the other arguments of `fit`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

BATCH = 4
STEPS = 3


@dataclass(frozen=True)
class Program:
    """A compiled Keras model, or a task, and the arguments of `fit`."""

    trained: Any
    x: Any = None
    y: Any = None
    options: dict[str, Any] = field(default_factory=dict)
    plan: str = "graph"


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    """Random inputs for a whole epoch of batches."""
    draw = np.random.default_rng(seed)
    return draw.normal(size=(BATCH * STEPS, *shape)).astype("float32")


def classes(count: int, *shape: int, seed: int = 1) -> np.ndarray:
    """Random class numbers for a whole epoch of batches."""
    return np.random.default_rng(seed).integers(0, count, size=(BATCH * STEPS, *shape))


def programs_of(*modules: ModuleType) -> dict[str, Callable[[], Program]]:
    """Every public function of these modules, by name."""
    found: dict[str, Any] = {
        f"{module.__name__.rpartition('.')[2]}.{name}": function
        for module in modules
        for name, function in vars(module).items()
        if callable(function)
        and not name.startswith("_")
        and getattr(function, "__annotations__", {}).get("return") is Program
    }
    return dict(sorted(found.items()))


def assert_same_as_keras(program: Program, history: Any, reference: Program, expected: Any) -> None:
    """Metrics and weights are those that Keras' own `fit` reported and trained."""
    assert set(history) == set(expected)
    for key, values in expected.items():
        np.testing.assert_allclose(history[key], values, rtol=1e-4, atol=1e-6, err_msg=key)
    pairs = zip(program.trained.get_weights(), reference.trained.get_weights(), strict=True)
    for got, wanted in pairs:
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
