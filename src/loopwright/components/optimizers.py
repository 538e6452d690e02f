"""A custom optimizer, and schedules for learning rates and `lw.Scheduled`."""

import math
from typing import Any, Literal, final, get_args

import keras

from loopwright.components.registration import registered
from loopwright.errors import ConfigurationError

Kind = Literal["triangular", "halved", "decayed"]
_Schedule = keras.optimizers.schedules.LearningRateSchedule


@final
@registered
class Tiger(keras.optimizers.Optimizer):
    """Tiger, a memory-saving optimizer: updates by the sign of the momentum.

    By Jianlin Su, 2023 (github.com/bojone/tiger): Lion with one momentum instead of two. This class
    has only the update rule, not the learning rates by kind of weight. Every weight moves by the
    learning rate at each step, so use a tenth to a third of Adam's rate, and let it decay.

    >>> weight = keras.Variable([1.0, -1.0])
    >>> Tiger(learning_rate=0.125).apply([keras.ops.array([3.0, -0.001])], [weight])
    >>> weight.numpy().tolist()
    [0.875, -0.875]
    """

    def __init__(
        self,
        learning_rate: Any = 1e-3,
        beta: float = 0.965,
        *,
        name: str = "tiger",
        **options: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, name=name, **options)
        self.beta = float(beta)
        self._momentums: Any = []

    def build(self, variables: Any) -> None:
        """Create a momentum for each variable."""
        if not self.built:
            super().build(variables)
            self._momentums = self.add_optimizer_variables(variables, "momentum")

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update one variable; Keras does weight decay, clipping and averages."""
        momentum = self._momentums[self._get_variable_index(variable)]
        gradient = keras.ops.cast(gradient, variable.dtype)
        rate = keras.ops.cast(learning_rate, variable.dtype)
        mixed = self.beta * momentum + (1.0 - self.beta) * gradient
        self.assign(momentum, mixed)
        self.assign_sub(variable, rate * keras.ops.sign(mixed))

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return {**super().get_config(), "beta": self.beta}


@final
@registered
class Cyclic(_Schedule):
    """Linear up and down between two rates, after Smith, 2015 (arXiv:1506.01186).

    `kind`: the height of the cycles is constant (`triangular`), halves with each cycle (`halved`),
    or is multiplied by `decay` at each step (`decayed`).

    >>> schedule = Cyclic(0.0, 1.0, half_cycle_steps=10)
    >>> [float(schedule(step)) for step in (0, 5, 10, 15, 20, 30)]
    [0.0, 0.5, 1.0, 0.5, 0.0, 1.0]
    """

    def __init__(
        self,
        lowest: float,
        highest: float,
        half_cycle_steps: int,
        kind: Kind = "triangular",
        decay: float = 0.9999,
    ) -> None:
        _require(kind in get_args(Kind), "kind", f"one of {', '.join(get_args(Kind))}", kind)
        _require(half_cycle_steps > 0, "half_cycle_steps", "at least 1", half_cycle_steps)
        self.lowest, self.highest = float(lowest), float(highest)
        self.half_cycle_steps, self.kind, self.decay = int(half_cycle_steps), kind, float(decay)

    def __call__(self, step: Any) -> Any:
        """Return the rate at a step."""
        # In integers as long as possible: a float32 cannot count beyond 16,777,216.
        step = keras.ops.cast(step, "int64")
        cycle_steps = 2 * self.half_cycle_steps
        place = keras.ops.cast(step % cycle_steps, "float32") / self.half_cycle_steps
        height = 1.0 - keras.ops.abs(place - 1.0)
        if self.kind == "halved":
            height = height * 0.5 ** keras.ops.cast(step // cycle_steps, "float32")
        elif self.kind == "decayed":
            height = height * self.decay ** keras.ops.cast(step, "float32")
        return self.lowest + (self.highest - self.lowest) * height

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        names = ("lowest", "highest", "half_cycle_steps", "kind", "decay")
        return {name: getattr(self, name) for name in names}


@final
@registered
class OneCycle(_Schedule):
    """One rise and one long fall over the whole training, both along a cosine.

    After Smith and Topin, 2017 (arXiv:1708.07120): from `highest / start_divisor` up to `highest`,
    then down to the start divided by `end_divisor`, and constant from there.

    >>> schedule = OneCycle(1.0, total_steps=100)
    >>> [round(float(schedule(step)), 4) for step in (0, 15, 30, 65, 100)]
    [0.04, 0.52, 1.0, 0.5, 0.0]
    """

    def __init__(
        self,
        highest: float,
        total_steps: int,
        rise: float = 0.3,
        start_divisor: float = 25.0,
        end_divisor: float = 1e4,
    ) -> None:
        _require(total_steps > 1, "total_steps", "at least 2", total_steps)
        _require(0 < rise < 1, "rise", "a fraction of the steps, between 0 and 1", rise)
        self.highest, self.total_steps, self.rise = float(highest), int(total_steps), float(rise)
        self.start_divisor, self.end_divisor = float(start_divisor), float(end_divisor)

    def __call__(self, step: Any) -> Any:
        """Return the rate at a step."""
        step = keras.ops.cast(step, "float32")
        rise_steps = self.rise * self.total_steps
        start = self.highest / self.start_divisor
        up = _cosine(start, self.highest, step / rise_steps)
        down = _cosine(
            self.highest,
            start / self.end_divisor,
            (step - rise_steps) / (self.total_steps - rise_steps),
        )
        return keras.ops.where(step < rise_steps, up, down)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        names = ("highest", "total_steps", "rise", "start_divisor", "end_divisor")
        return {name: getattr(self, name) for name in names}


@final
@registered
class Warmup(_Schedule):
    """A linear rise from `start` to the first rate of another schedule, then that schedule.

    >>> schedule = Warmup(keras.optimizers.schedules.CosineDecay(1.0, 100), steps=10)
    >>> [round(float(schedule(step)), 4) for step in (0, 5, 10, 60, 110)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """

    def __init__(self, schedule: Any, steps: int, start: float = 0.0) -> None:
        _require(steps > 0, "steps", "at least 1", steps)
        self.schedule, self.steps, self.start = schedule, int(steps), float(start)

    def __call__(self, step: Any) -> Any:
        """Return the rate at a step."""
        step = keras.ops.cast(step, "int64")
        target = self.schedule(keras.ops.maximum(step - self.steps, 0))
        part = keras.ops.cast(keras.ops.minimum(step, self.steps), "float32") / self.steps
        # After the warmup the factors are exactly 0 and 1: the rate is that of the schedule.
        return self.start * (1.0 - part) + target * part

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        inner = keras.optimizers.schedules.serialize(self.schedule)
        return {"schedule": inner, "steps": self.steps, "start": self.start}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Warmup":
        """Recreate the schedule with its inner schedule."""
        inner = keras.optimizers.schedules.deserialize(config["schedule"])
        return cls(**{**config, "schedule": inner})


def _cosine(begin: float, end: float, part: Any) -> Any:
    angle = math.pi * keras.ops.clip(part, 0.0, 1.0)
    return end + (begin - end) * 0.5 * (1.0 + keras.ops.cos(angle))


def _require(holds: bool, name: str, expected: str, received: Any) -> None:
    if not holds:
        raise ConfigurationError(
            f"Invalid {name} of a learning rate schedule.",
            expected=expected,
            received=f"{name}={received!r}",
            do=f"change {name}",
        )
