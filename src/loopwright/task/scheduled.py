"""Scheduled: a number inside a step that follows a schedule.

class Translator(lw.Task):
    def __init__(self, model):
        super().__init__()
        self.model, self.optimizer = model, keras.optimizers.Adam()
        self.teacher_forcing = lw.Scheduled(keras.optimizers.schedules.CosineDecay(1.0, 10_000))

    def train_step(self, batch):
        ...  # self.teacher_forcing is a number here, and is reported by this name
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

import keras
import tensorflow as tf

from loopwright.errors import StepError
from loopwright.task import context, variables

_Operator = Callable[[Any, Any], Any]


def _left(apply: _Operator) -> _Operator:
    """Return the operator of a number on the left of another operand."""
    return lambda number, other: apply(_like(number, other), other)


def _right(apply: _Operator) -> _Operator:
    """Return the operator of a number on the right of another operand."""
    return lambda number, other: apply(other, _like(number, other))


def _like(number: "Scheduled", other: Any) -> tf.Tensor:
    """Return the value of a number in the dtype of the other operand."""
    dtype = tf.as_dtype(getattr(other, "dtype", keras.config.floatx()))
    return tf.cast(number.value, dtype) if dtype.is_floating else number.value


@final
@dataclass(frozen=True, eq=False)
class Scheduled:
    """A number inside a step: a loss weight, a teacher-forcing rate, a temperature.

    `schedule` is a Keras `LearningRateSchedule`, or any function of the number of steps done. The
    number follows `task.step`, so it is resumed with it. Those that the task holds are reported.

    >>> weight = Scheduled(keras.optimizers.schedules.PolynomialDecay(0.0, 10, 1.0))
    >>> float(weight.at(5))
    0.5
    """

    schedule: Callable[[Any], Any]

    @property
    def value(self) -> tf.Tensor:
        """The number at the current step, as a tensor."""
        counter = context.current().counter
        if counter is None:
            raise StepError(
                "A Scheduled has a value only inside a step: it follows the step counter.",
                expected="a read in train_step, test_step or predict_step, run by a Trainer",
                received="a read outside a step",
                do="write scheduled.at(task.step)",
            )
        return self.at(counter.read_value())

    def at(self, step: Any) -> tf.Tensor:
        """Return the number after `step` steps."""
        return tf.cast(self.schedule(tf.cast(step, tf.int64)), keras.config.floatx())

    # TensorFlow converts it on the right of a tensor; these methods are for all other places.

    __array_priority__ = 100  # NumPy would multiply element by element

    __add__, __radd__ = _left(operator.add), _right(operator.add)
    __sub__, __rsub__ = _left(operator.sub), _right(operator.sub)
    __mul__, __rmul__ = _left(operator.mul), _right(operator.mul)
    __truediv__, __rtruediv__ = _left(operator.truediv), _right(operator.truediv)
    __lt__, __le__ = _left(operator.lt), _left(operator.le)
    __gt__, __ge__ = _left(operator.gt), _left(operator.ge)


def held(task: object) -> dict[str, Scheduled]:
    """Return every `Scheduled` that a task holds, by its path: `kl_weight`, `weights[0]`.

    >>> class Task:
    ...     def __init__(self):
    ...         self.rates = [Scheduled(lambda step: 0.5)]
    >>> list(held(Task()))
    ['rates[0]']
    """
    found = variables.parts(task, Scheduled)
    return {part.path: part.value for part in found if isinstance(part.value, Scheduled)}


def fingerprint(task: object) -> Any:
    """Return a value that changes when a traced step no longer matches the task and its numbers."""
    return variables.fingerprint(task), held(task)


def reported(task: object, outputs: Any) -> Any:
    """Return the outputs of a step, and the scheduled numbers it ran with."""
    if not isinstance(outputs, Mapping):
        return outputs
    numbers = {name: number for name, number in held(task).items() if name not in outputs}
    return {**outputs, **{name: number.value for name, number in numbers.items()}}


def _as_tensor(value: Scheduled, dtype: Any = None, name: Any = None, as_ref: bool = False) -> Any:
    return value.value if dtype is None else tf.cast(value.value, dtype)


tf.register_tensor_conversion_function(Scheduled, _as_tensor)
