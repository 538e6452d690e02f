"""When things happen in a run, as data: intervals, and the stops they lead to.

schedule = Schedule(steps_per_epoch=100, until=Every(epochs=2), validate_every=Every(steps=40))
schedule.next_stop(Position(step=80, step_in_epoch=80)).step      # 100: the epoch ends
"""

import re
from dataclasses import dataclass, fields, replace
from numbers import Integral

from loopwright.errors import ConfigurationError

_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}
_SHORT = {"s": "second", "sec": "second", "min": "minute", "h": "hour", "d": "day"}
_FORMS = '"500 steps", "1 epoch", "10 minutes", "6 hours"'


@dataclass(frozen=True)
class Every:
    """An interval with its unit: exactly one of steps, epochs, seconds.

    >>> Every(steps=500)
    Every(steps=500, epochs=None, seconds=None)
    """

    steps: int | None = None
    epochs: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        given = {name: value for name, value in given.items() if value is not None}
        whole = all(isinstance(given.get(name, 1), Integral) for name in ("steps", "epochs"))
        if len(given) != 1 or not whole or not all(value > 0 for value in given.values()):
            raise ConfigurationError(
                "An interval has exactly one unit and is greater than zero.",
                expected="Every(steps=...), Every(epochs=...) or Every(seconds=...)",
                received=f"Every({', '.join(f'{k}={v!r}' for k, v in given.items())})",
                do=f"write it as a value with a unit: {_FORMS}; steps and epochs are whole",
            )

    def __str__(self) -> str:
        if self.seconds is not None:
            return f"{self.seconds:.12g} seconds"
        number, unit = (self.steps, "step") if self.epochs is None else (self.epochs, "epoch")
        return f"{number} {unit}{'' if number == 1 else 's'}"


def every(text: "str | Every") -> Every:
    """Parse an interval.

    >>> every("500 steps").steps, every("1 epoch").epochs, every("10 minutes").seconds
    (500, 1, 600.0)
    """
    if isinstance(text, Every):
        return text
    found = re.fullmatch(r"\s*(\d+|\d{1,3}([_,]\d{3})+|\d*\.\d+)\s*([a-z]+)\s*", str(text).lower())
    number, unit = (re.sub("[_,]", "", found[1]), found[3]) if found else ("", "")
    unit = unit if unit == "s" else unit.removesuffix("s")
    unit = _SHORT.get(unit, unit)
    if unit in ("step", "epoch") and number.isdigit():
        return Every(**{f"{unit}s": int(number)})
    if unit in _SECONDS:
        return Every(seconds=float(number) * _SECONDS[unit])
    raise ConfigurationError(
        "This is not an interval.",
        expected=f"a number and a unit: {_FORMS}",
        received=repr(text),
        do="add or correct the unit; steps and epochs are whole numbers",
    )


def require_positive(otherwise: str = "leave it out", /, **counts: object) -> None:
    """Raise if one of these is neither None nor a whole number of 1 or more."""
    for name, count in counts.items():
        is_count = isinstance(count, int) and not isinstance(count, bool) and count > 0
        if count is not None and not is_count:
            raise ConfigurationError(
                f"{name} is a count.",
                expected=f"a whole number of 1 or more as {name}",
                received=f"{name}={count!r}",
                do=f"pass such a number, or {otherwise}",
            )


@dataclass(frozen=True)
class Read:
    """How much a call of `fit` has read of its data."""

    batches: int = 0
    ends: int = 0
    """How often the data has signalled the end of an epoch of unknown length."""
    last_digest: str | None = None
    """Digest of the last batch, for data that is replayed when a run resumes."""


NOTHING_READ = Read()


@dataclass(frozen=True)
class Position:
    """Where a run is, counted from the beginning of this call of `fit`."""

    step: int = 0
    epoch: int = 0
    step_in_epoch: int = 0
    seconds: float = 0.0
    epoch_began_seconds: float = 0.0
    validated_step: int | None = None
    validated_seconds: float = 0.0
    saved_seconds: float = 0.0
    is_due: bool = False
    """Whether steps were run to get here, and what is due at this stop is still to be done."""
    epoch_ended: bool = False
    """Whether the data of the epoch ended here."""
    is_over: bool = False
    """Whether this call of `fit` has nothing more to do."""
    read: Read = NOTHING_READ
    """What was read of the data to get here; each step reads one batch."""


@dataclass(frozen=True)
class Stop:
    """A step after which control returns to Python, and what is due there."""

    step: int
    validate: bool = False
    save: bool = False
    ends_epoch: bool = False
    ends_run: bool = False


@dataclass(frozen=True)
class Schedule:
    """The rule that yields the stops of a run.

    `steps_per_epoch=None` means that an epoch's length is found out when its data ends.
    """

    steps_per_epoch: int | None
    until: Every
    validate_every: Every | None = None
    save_every: Every | None = None
    restarted_steps: int = 0
    """Steps of epochs that were interrupted and restarted, in addition to those of the epochs."""

    @property
    def total_steps(self) -> int | None:
        """How many steps the whole run has, where that is known beforehand."""
        if self.until.epochs is not None and self.steps_per_epoch is not None:
            return self.until.epochs * self.steps_per_epoch + self.restarted_steps
        return self.until.steps

    def next_stop(self, position: Position, *, at_most_steps: int | None = None) -> Stop:
        """Return the stop after `position`, at most `at_most_steps` away."""
        bounds = [self.total_steps]
        if self.steps_per_epoch is not None:
            bounds.append(position.step - position.step_in_epoch + self.steps_per_epoch)
        asked = [every.steps for every in (self.validate_every, self.save_every) if every]
        bounds += [(position.step // interval + 1) * interval for interval in filter(None, asked)]
        if at_most_steps is not None:
            bounds.append(position.step + at_most_steps)
        step = min((b for b in bounds if b is not None), default=position.step + 1)
        step = max(step, position.step)  # a resumed run may be beyond a bound that is lower now
        return self.stop_at(moved(position, steps=step - position.step, seconds=position.seconds))

    def stop_at(self, position: Position, *, leaving: bool = False) -> Stop:
        """Return what is due at `position`; `leaving`: a callback asked to stop here."""
        ends_epoch = position.epoch_ended or _reaches(position.step_in_epoch, self.steps_per_epoch)
        ends_run = (
            leaving
            or _reaches(position.step, self.total_steps)
            or (ends_epoch and _reaches(position.epoch + 1, self.until.epochs))
            or _reaches(position.seconds, self.until.seconds)
        )
        return Stop(
            step=position.step,
            validate=position.step != position.validated_step
            and _is_due(
                self.validate_every, position, position.validated_seconds, ends_epoch, ends_run
            ),
            save=_is_due(self.save_every, position, position.saved_seconds, ends_epoch, ends_run),
            ends_epoch=ends_epoch or ends_run,
            ends_run=ends_run,
        )


def _reaches(value: float, bound: float | None) -> bool:
    # Not ==: a leg that is restarted with a lower bound may be beyond it.
    return bound is not None and value >= bound


def _is_due(
    interval: Every | None,
    position: Position,
    last_seconds: float,
    ends_epoch: bool,
    ends_run: bool,
) -> bool:
    """Return whether something done at this interval is due here, or at the end of a run."""
    if interval is None:
        return False
    if ends_run:
        return True
    if interval.steps is not None:
        return position.step % interval.steps == 0
    if interval.epochs is not None:
        return ends_epoch and (position.epoch + 1) % interval.epochs == 0
    return position.seconds - last_seconds >= (interval.seconds or 0.0)


def moved(position: Position, *, steps: int, seconds: float, epoch_ended: bool = False) -> Position:
    """Return the position `steps` later, `seconds` after the run began, with its stop still due."""
    before = position.read
    read = replace(before, batches=before.batches + steps, ends=before.ends + epoch_ended)
    return replace(
        position,
        step=position.step + steps,
        step_in_epoch=position.step_in_epoch + steps,
        seconds=seconds,
        is_due=True,
        epoch_ended=epoch_ended,
        read=read,
    )


def restarted(position: Position) -> Position:
    """Return the beginning of the epoch that `position` is in; the steps run so far still count."""
    batches = position.read.batches - position.step_in_epoch
    return replace(
        position,
        step_in_epoch=0,
        epoch_began_seconds=position.seconds,
        is_due=False,
        epoch_ended=False,
        read=replace(position.read, batches=batches),
    )


def restarted_steps(position: Position, steps_per_epoch: int | None) -> int:
    """Return how many steps of restarted epochs were run in addition to those of the epochs."""
    if steps_per_epoch is None:
        return 0
    return max(0, position.step - position.step_in_epoch - position.epoch * steps_per_epoch)


def validated(position: Position, *, seconds: float) -> Position:
    """Return the same position, validated `seconds` after the run began."""
    return replace(position, validated_step=position.step, validated_seconds=seconds)


def at_end_of_epoch(position: Position, *, seconds: float) -> Position:
    """Return the beginning of the next epoch, `seconds` after the run began."""
    return replace(
        position,
        epoch=position.epoch + 1,
        step_in_epoch=0,
        epoch_began_seconds=seconds,
        is_due=False,
        epoch_ended=False,
    )


def after(stop: Stop, position: Position, *, seconds: float) -> Position:
    """Return the position where everything due at `stop` is done, `seconds` after the run began."""
    position = replace(
        position, seconds=seconds, is_due=False, epoch_ended=False, is_over=stop.ends_run
    )
    if stop.validate:
        position = validated(position, seconds=seconds)
    if stop.save:
        position = replace(position, saved_seconds=seconds)
    return at_end_of_epoch(position, seconds=seconds) if stop.ends_epoch else position
