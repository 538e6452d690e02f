"""What is known of a run before its first step: where, what models, what numbers, the graph."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from loopwright.compat import environment
from loopwright.task import variables
from loopwright.task.keras_model import CompiledModel
from loopwright.task.task import Task

Plain = bool | int | float | str


@dataclass(frozen=True)
class Facts:
    """Written down when a run begins."""

    environment: Mapping[str, Any]
    models: str
    hyperparameters: Mapping[str, Plain]
    graph: Any
    """The operations of the step, as a `GraphDef`."""


def facts(task: Task, asked: Mapping[str, Any], graph: Any, run_dir: Path) -> Facts:
    """The facts of a task whose models are built; `asked` is what `fit` was asked for."""
    about = environment.about(run_dir)
    return Facts(about, models(task), {**hyperparameters(task), **asked}, graph)


def models(task: Task) -> str:
    """Every model that a task names, as Keras sums it up."""
    lines = list[str]()
    for part in variables.parts(task):
        if isinstance(part.value, keras.Model) and not part.path.startswith("_"):
            # Keras cuts lines that are longer than a terminal of 80 columns.
            part.value.summary(line_length=78, print_fn=lambda text, **_: lines.append(text))
    return "\n".join(lines)


def hyperparameters(task: Task) -> dict[str, Plain]:
    """The precision, and each optimizer with its own numbers.

    A number that is scheduled is told by the name of its schedule.
    """
    found: dict[str, Plain] = {"precision": keras.config.dtype_policy().name}
    held = optimizers(task)
    for path, optimizer in held.items():
        prefix = "" if len(held) == 1 else f"{path}."
        config: dict[str, Any] = optimizer.get_config()
        found[f"{prefix}optimizer"] = type(optimizer).__name__
        for name, part in config.items():
            value = part.get("class_name") if isinstance(part, dict) else part
            if isinstance(value, bool | int | float | str) and name != "name":
                found[f"{prefix}{name}"] = value
    return found


def optimizers(task: Task) -> dict[str, keras.optimizers.Optimizer]:
    """The optimizers of a task by where they are."""
    held = {part.path: part.value for part in variables.parts(task)}
    if isinstance(task, CompiledModel):
        held = {"optimizer": task.model.optimizer}
    return {
        path: value for path, value in held.items() if isinstance(value, keras.optimizers.Optimizer)
    }


def learning_rates(held: Mapping[str, keras.optimizers.Optimizer]) -> dict[str, float]:
    """The rate of each optimizer as it is now: `learning_rate`, or `NAME_learning_rate` each."""
    rates = {
        # Under a strategy it is a variable that float() does not know.
        path: float(tf.convert_to_tensor(optimizer.learning_rate))
        for path, optimizer in held.items()
        if optimizer.built
    }
    if len(rates) == 1:
        return {"learning_rate": next(iter(rates.values()))}
    return {f"{path}_learning_rate": rate for path, rate in rates.items()}
