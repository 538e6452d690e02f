"""What guards watch while a run trains: settings that change, and weights that do not."""

import ast
import zlib
from typing import Any, final

import keras
import tensorflow as tf

from loopwright import step_warnings
from loopwright.compat import keras_optimizers
from loopwright.compat.lines import variable_name
from loopwright.events import Event, Started, Trained
from loopwright.guards.guard import listed, report, warning
from loopwright.guards.source import reached
from loopwright.task import variables
from loopwright.task.optimizers import learning_rates, optimizers
from loopwright.task.task import Task
from loopwright.task.variables import Setting, is_plain

_LATE_CHANGE = warning(
    "late-change",
    "a setting of the task or of a layer changed during `fit`, and compiled steps keep the old one",
)
_ZERO_LEARNING_RATE = warning(
    "zero-learning-rate",
    "no weight changed in the first 16 updates: the learning rate is 0, or below 1e-5",
)
_ZERO_GRADIENTS = warning(
    "zero-gradients",
    "no weight of an optimizer changed in its first 16 updates: all gradients are exactly zero",
)

UPDATES = 16
"""How many updates must leave every weight unchanged, from the first one on.

Later, weights may stay unchanged because nothing is left to learn.
"""
_NO_RATE = 1e-5
"""A learning rate so small that weights may stay unchanged though gradients are not zero."""


@final
class SettingsWatch:
    """The settings that the trace of a step has read, compared with what they are at a stop.

    These are plain attributes, `trainable`, and the models and optimizers of the task. In the
    user's classes, only attributes count that occur in code that the step runs, and that this
    code does not write itself.
    """

    def __init__(self, title: str, step: Any, task: Task) -> None:
        self._title = title
        nodes = [n for here in reached(step, task) for n in ast.walk(here.node)]
        attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
        written = {node.attr for node in attributes if isinstance(node.ctx, ast.Store)}
        read = {node.attr for node in attributes} - written
        self._settings = [
            setting
            for setting in variables.settings(task)
            if setting.attribute in {*read, "trainable", "optimizer"}
            or type(setting.holder).__module__.startswith(("keras.", "loopwright."))
        ]

    def warn_of_changes(self) -> bool:
        """Warn of the settings that changed, each once; return whether there are any."""
        changed, same = list[Setting](), list[Setting]()
        for setting in self._settings:
            was, now = setting.value, setting.now()
            is_same = now is was or (is_plain(was) and is_plain(now) and was == now)
            (same if is_same else changed).append(setting)
        if not changed:
            return False
        self._settings = same
        texts = [f"{s.path}: {_text(s.value)}, now {_text(s.now())}" for s in changed]
        report(
            _LATE_CHANGE(
                f"{changed[0].path} changed during fit, and {self._title} does not see it: the "
                "compiled step keeps what it was traced with.",
                expected="settings of the task and of its layers that stay the same during fit",
                received=listed(texts, 3),
                do="end this fit and call fit again: it continues with the new value; hold a "
                "number that changes while training in a tf.Variable (assign it) or an "
                'lw.Scheduled; or run Python in each step with plan="eager"',
            ),
        )
        return True


def _text(value: Any) -> str:
    return repr(value) if is_plain(value) else f"a {type(value).__name__}"


@final
class LearningWatch:
    """A sink that looks at weights at stops, where control is back in Python."""

    def __init__(self, task: Task, silenced: frozenset[str]) -> None:
        self._task, self._silenced = task, silenced
        self._optimizers: dict[str, keras.optimizers.Optimizer] = {}
        self._checksums: dict[str, tuple[int, ...]] = {}
        """Of the weights of each optimizer before its first update; empty once compared."""

    def __call__(self, event: Event) -> None:
        """Look at an event; warn of the mistake that it shows."""
        if isinstance(event, Started):
            self._optimizers = {
                path: getattr(optimizer, "inner_optimizer", optimizer)
                for path, optimizer in optimizers(self._task).items()
            }
            self._store_checksums()
        elif isinstance(event, Trained):
            self._store_checksums()
            for path, before in self._checksums.items():
                optimizer = self._optimizers[path]
                if before and _updates(optimizer) > UPDATES:
                    self._checksums[path] = ()
                    if _checksums(optimizer) == before:
                        # What other optimizers leave unchanged may follow from this one.
                        self._checksums = dict.fromkeys(self._checksums, ())
                        with step_warnings.silenced(self._silenced):
                            self._warn_of_unchanged_weights(path, optimizer)
                        return

    def _store_checksums(self) -> None:
        """Store checksums of the weights before the first update, as far as they are built.

        An eager step builds its optimizer when it runs: the first update has been made then.
        """
        for path, optimizer in self._optimizers.items():
            # The trace, or Keras, names an optimizer without weights to train.
            is_built = optimizer.built and keras_optimizers.trained_by(optimizer)
            if path not in self._checksums and is_built:
                is_first = _updates(optimizer) <= 1
                self._checksums[path] = _checksums(optimizer) if is_first else ()

    def _warn_of_unchanged_weights(self, path: str, optimizer: keras.optimizers.Optimizer) -> None:
        rate = learning_rates({path: optimizer})["learning_rate"]
        names = [variable_name(v) for v in keras_optimizers.trained_by(optimizer)]
        owner = "" if len(self._optimizers) == 1 else f" of {path}"
        is_rate = rate < _NO_RATE
        why = f"the learning rate is {rate:g}" if is_rate else "all gradients are exactly zero"
        kind = _ZERO_LEARNING_RATE if is_rate else _ZERO_GRADIENTS
        finding = kind(
            f"No weight{owner} changed in the first {UPDATES} updates: {why}.",
            expected="updates that change the weights",
            received=f"learning_rate={rate:g}; unchanged: {listed(names, 4)}",
            do="set the optimizer's learning_rate; check the schedule or callback that sets it"
            if is_rate
            else "check the last activation: a ReLU whose inputs are all negative or a saturated "
            "sigmoid has no gradient; scale the inputs, or use another activation or initializer; "
            "check that the loss is neither clipped nor rounded",
        )
        report(finding)


def _updates(optimizer: keras.optimizers.Optimizer) -> int:
    return int(tf.convert_to_tensor(optimizer.iterations))


def _checksums(optimizer: keras.optimizers.Optimizer) -> tuple[int, ...]:
    """Return a checksum of every weight: holding copies of them would take their memory again."""
    held = [v for part in keras_optimizers.trained_by(optimizer) for v in variables.variables(part)]
    # Half precision is too coarse to distinguish a small update from none.
    if not all(v.dtype in (tf.float32, tf.float64) for v in held):
        return ()
    return tuple(zlib.crc32(variables.replicas(v)[0].numpy().tobytes()) for v in held)
