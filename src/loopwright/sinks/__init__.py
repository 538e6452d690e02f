"""Sinks receive events: terminal, notebook, log, TensorBoard, trackers, report.

A sink never changes the training; a sink that fails is disabled with a
warning. Everything that a sink needs is in the events. The terminal, the log, the report and the
trackers import no TensorFlow.

Open files: curves, defaults, figures, mlflow, notebook, outbox, progress_text,
report, tensorboard, terminal, wandb.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loopwright.sinks.mlflow import MLflow as MLflow
    from loopwright.sinks.wandb import WandB as WandB

_HOMES = {"MLflow": "mlflow", "WandB": "wandb"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'loopwright.sinks' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"loopwright.sinks.{_HOMES[name]}"), name)
