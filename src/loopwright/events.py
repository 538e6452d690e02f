"""What happens in a run, as values: the loop yields them, sinks hear them.

    for event in trainer.events(x, y, epochs=10):
        if isinstance(event, Validated) and event.metrics["loss"] < 0.1:
            break

Order: `Started`, then for each epoch `EpochStarted`, `Trained` and `Validated` as often as
there are stops, `EpochEnded`; and `Finished` once, last, whatever happened. `PlanChosen` comes
after a `Trained`, at most once in a run, `BatchSkipped` as well, `Saved` where a checkpoint is due
and at a stop whose validation is among the best so far, `Noted` after `Started`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Metrics = Mapping[str, Any]
"""Reported numbers by name. Nearly always floats; a metric may report an array."""


@dataclass(frozen=True)
class Started:
    """A call of `fit` begins; `step` steps were done before it."""

    step: int
    epochs: int | None
    steps_per_epoch: int | None
    total_steps: int | None
    resumed_steps: int = 0
    """How many of its steps were done before, by a process that was stopped."""


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
class PlanChosen:
    """How steps are run from now on, where that was left open."""

    step: int
    plan: str
    why: str
    repeat: str
    """What to write to run it like this again."""


@dataclass(frozen=True)
class Noted:
    """Something to know about this run: what a callback costs, for instance."""

    step: int
    text: str


@dataclass(frozen=True)
class BatchSkipped:
    """A batch that would have spoiled the run was left out, as `on_nan` asks for."""

    step: int
    batch: str
    went_back_to_step: int | None = None
    """The state that the run goes on from; None: nothing had been changed."""


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


@dataclass(frozen=True)
class Saved:
    """A checkpoint of the state after `step` steps is being written.

    One that was saved only as the best so far may still be replaced by a newer best.
    """

    step: int
    seconds: float
    """For how long training waited for it."""


@dataclass(frozen=True)
class Finished:
    """The last event of a run."""

    step: int
    seconds: float
    reason: Literal["complete", "stopped", "left", "interrupted", "skipped", "failed"]
    """`stopped`: a callback asked for it. `left`: the caller broke out of `events`.
    `interrupted`: a signal came. `skipped`: this leg of the run was finished before."""
    spent: Mapping[str, float] = field(default_factory=dict[str, float])
    """Where the time of this start went, in seconds: data wait, step, validation, checkpoint,
    callbacks, logging (sinks), caller (the loop over `events`), tuning, compile, Python."""
    advice: str = ""
    """A sentence for each part that took more than a third of the time: why, and what to do."""
    saved: bool = False
    """Whether an interrupted run was saved at this step: the next start resumes from here."""


Event = (
    Started
    | EpochStarted
    | Trained
    | PlanChosen
    | Noted
    | BatchSkipped
    | Validated
    | EpochEnded
    | Saved
    | Finished
)
Sink = Callable[[Event], None]


def epoch_logs(event: EpochEnded) -> dict[str, Any]:
    """The numbers of an epoch under the names that Keras gives them.

    >>> epoch_logs(EpochEnded(0, 10, 10, 1.0, {"loss": 0.5}, {"loss": 0.7}))
    {'loss': 0.5, 'val_loss': 0.7}
    """
    return {**event.metrics, **{f"val_{name}": value for name, value in event.validation.items()}}
