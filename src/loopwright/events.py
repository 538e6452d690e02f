"""What happens in a run, as values: the loop yields events, sinks receive them.

    for event in trainer.events(x, y, epochs=10):
        if isinstance(event, Validated) and event.metrics["loss"] < 0.1:
            break

Order: `Started`, then for each epoch `EpochStarted`, `Trained` and `Validated` once per stop, and
`EpochEnded`; `Finished` is always the last event. `Noted` follows `Started`; `GradientsWatched`,
`BatchSkipped` and `PlanChosen` (at most once in a run) follow a `Trained`. `Saved` comes where a
checkpoint is due, and at a stop whose validation is among the best so far. `ImagesDrawn` follows an
`EpochEnded`, and precedes `Finished`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Metrics = Mapping[str, Any]
"""Reported numbers by name. Nearly always floats; a metric may report an array."""


@dataclass(frozen=True)
class RunFacts:
    """What is known about a run before its first step, for trackers of experiments."""

    hyperparameters: Mapping[str, bool | int | float | str]
    """Seed, batch size, duration, precision, and each optimizer with its settings."""
    models: str
    """The summaries of the task's models, as Keras prints them."""
    environment: Mapping[str, Any]
    """Versions, processor, devices, threads, the command and the git revision; JSON values."""
    graph: Any = None
    """The operations of the train step as a `GraphDef`; None if the step was not traced."""
    signatures: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """By the name of each exported model its `inputs` and `outputs`: name, shape, dtype."""


@dataclass(frozen=True)
class Started:
    """A call of `fit` begins; `step` steps were run before it."""

    step: int
    epochs: int | None
    steps_per_epoch: int | None
    total_steps: int | None
    resumed_steps: int = 0
    """How many steps of this call were run before, by a process that was stopped."""
    facts: RunFacts | None = field(default=None, repr=False, compare=False)
    """None unless the trainer has sinks or a run directory: collecting them takes time."""
    inexact: Sequence[str] = ()
    """Why the run cannot be resumed exactly; empty if it can, or if there is no run directory."""
    run_dir: Path | None = field(default=None, repr=False, compare=False)
    """The run directory, if there is one."""


@dataclass(frozen=True)
class EpochStarted:
    """An epoch begins; epochs count from 0 within one call of `fit`, as in Keras."""

    epoch: int
    step: int


@dataclass(frozen=True)
class Trained:
    """Some steps were run and control is back in Python."""

    step: int
    epoch: int
    step_in_epoch: int
    steps: int
    seconds: float
    metrics: Metrics
    """Running values since the epoch began."""


@dataclass(frozen=True)
class GradientsWatched:
    """The gradients of the last step, with `watch="gradients"`; at most every 10 seconds."""

    step: int
    gradients: Mapping[str, Any]
    """NumPy arrays by the path of their variable: `model.layers[0].kernel`."""


@dataclass(frozen=True)
class PlanChosen:
    """The plan that runs the steps from now on, if the plan was left open."""

    step: int
    plan: str
    why: str
    repeat: str
    """The argument that reproduces the choice: `plan=...`."""


@dataclass(frozen=True)
class Noted:
    """A note about this run, for example about the cost of a callback."""

    step: int
    text: str


@dataclass(frozen=True)
class BatchSkipped:
    """A batch that gave NaN or infinity was skipped, as `on_nan` asks for."""

    step: int
    batch: str
    went_back_to_step: int | None = None
    """The step whose state the run was rolled back to; None: no state had changed."""


@dataclass(frozen=True)
class Validated:
    """Every validation set was scored after `step` steps."""

    step: int
    epoch: int
    seconds: float
    metrics: Metrics
    """`loss`, `accuracy`; with named validation sets `NAME_loss`, `NAME_accuracy`."""


@dataclass(frozen=True)
class EpochEnded:
    """An epoch is over, or the run ended inside it."""

    epoch: int
    step: int
    steps: int
    seconds: float
    metrics: Metrics
    validation: Metrics = field(default_factory=dict[str, Any])
    """The last scores measured in this epoch; empty if there were none."""
    learning_rates: Mapping[str, float] = field(default_factory=dict[str, float])
    """`learning_rate`, or `NAME_learning_rate` for each of several optimizers, before callbacks
    change it at the end of the epoch. Empty unless the trainer has sinks or a run directory."""


@dataclass(frozen=True)
class ImagesDrawn:
    """The images of `Task.images`, at most every 30 seconds and at the end of the run."""

    step: int
    images: Mapping[str, Any]


@dataclass(frozen=True)
class Saved:
    """A checkpoint of the state after `step` steps is being written.

    A checkpoint saved only as the best so far may still be replaced by a newer best.
    """

    step: int
    seconds: float
    """How long training waited for the checkpoint."""


@dataclass(frozen=True)
class Finished:
    """The last event of a run."""

    step: int
    seconds: float
    reason: Literal["complete", "stopped", "left", "interrupted", "skipped", "failed"]
    """`stopped`: by a callback. `left`: the caller ended a `with` block around `events`.
    `interrupted`: by a signal, or the caller left the loop over `events`. `skipped`: this call of
    `fit` was already complete."""
    spent: Mapping[str, float] = field(default_factory=dict[str, float])
    """The time of this start in seconds: data wait, step, validation, checkpoint, callbacks,
    logging (sinks), caller (the loop over `events`), tuning, compile, Python."""
    advice: str = ""
    """A sentence for each part that took more than a third of the time: why, and what to do."""
    saved: bool = False
    """Whether an interrupted run was saved at this step: the next start resumes from here."""
    failed_step: int | None = None
    """The step that ended a run with an error or a loss of NaN; None: no step did."""
    history: Mapping[str, Sequence[Any]] = field(default_factory=dict[str, Any], repr=False)
    """`History.history` of this call of `fit`, with the epochs before a resume."""
    run_dir: Path | None = field(default=None, repr=False, compare=False)
    """The run directory, if there is one."""


Event = (
    Started
    | EpochStarted
    | Trained
    | GradientsWatched
    | PlanChosen
    | Noted
    | BatchSkipped
    | Validated
    | EpochEnded
    | ImagesDrawn
    | Saved
    | Finished
)
Sink = Callable[[Event], None]


def epoch_logs(event: EpochEnded) -> dict[str, Any]:
    """Return the numbers of an epoch under the names that Keras gives them.

    >>> epoch_logs(EpochEnded(0, 10, 10, 1.0, {"loss": 0.5}, {"loss": 0.7}))
    {'loss': 0.5, 'val_loss': 0.7}
    """
    return {**event.metrics, **{f"val_{name}": value for name, value in event.validation.items()}}
