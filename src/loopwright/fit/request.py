"""The arguments of `Trainer` and `fit`, checked before anything is built."""

from typing import Any

from loopwright.errors import ConfigurationError, message
from loopwright.loop.schedule import Every, every
from loopwright.task.task import Task


def require_watchable(watch: Any, task: Task) -> None:
    """Raise if this cannot be watched of the task."""
    if watch not in (None, "gradients") or (watch and task.reported == "last"):
        raise ConfigurationError(
            message(
                "This cannot be watched.",
                expected='watch="gradients", with a task whose step calls minimize or apply',
                received=f"watch={watch!r}, {type(task).__name__}",
                do="leave watch out; of a compiled Keras model, make a task: lw.Supervised(...)",
            )
        )


def duration(epochs: int, until: str | Every | None) -> Every:
    """Return how long to train.

    >>> str(duration(3, None)), str(duration(1, "6 hours"))
    ('3 epochs', '21600 seconds')
    """
    if until is None:
        require_positive(epochs=epochs)
        return Every(epochs=epochs)
    if epochs != 1:
        raise ConfigurationError(
            message(
                "epochs and until both say how long to train.",
                expected="one of them",
                received=f"epochs={epochs}, until={until!r}",
                do="leave one out",
            )
        )
    return every(until)


def require_positive(**counts: Any) -> None:
    """Raise if one of these is neither None nor a whole number of 1 or more."""
    for name, count in counts.items():
        is_count = isinstance(count, int) and not isinstance(count, bool) and count > 0
        if count is not None and not is_count:
            raise ConfigurationError(
                message(
                    f"{name} is a count.",
                    expected=f"a whole number of 1 or more as {name}",
                    received=f"{name}={count!r}",
                    do="leave it out, or pass such a number",
                )
            )


def length_without_data(length: int | None, duration: Every) -> int | None:
    """Return the steps per epoch of a step that needs no data: all of them, unless told."""
    if length is None and duration.epochs is not None:
        raise ConfigurationError(
            message(
                "A step without data has no epochs of its own.",
                expected='until="10000 steps", or steps_per_epoch',
                received="no data and no length",
                do='call fit(None, until="10000 steps")',
            )
        )
    return duration.steps if length is None else length
