"""Settings of a task that Python changes during `fit`: a compiled step does not see them."""

import ast
from typing import Any, final

from loopwright.errors import message
from loopwright.guards.guard import listed
from loopwright.guards.source import reached
from loopwright.step_warnings import declare, warn
from loopwright.task import variables
from loopwright.task.task import Task, owner
from loopwright.task.variables import is_plain

_LATE_CHANGE = declare(
    "late-change",
    "a setting of the task or of a layer changed during `fit`, and compiled steps keep the old one",
)
_MOST_NAMED = 3


@final
class SettingsWatch:
    """The settings that the trace of a step has read, compared with what they are at a stop.

    These are plain attributes, `trainable`, and the models and optimizers of the task. In the
    user's classes, only attributes count that occur in code that the step runs, and that this
    code does not write itself.
    """

    def __init__(self, title: str, step: Any, task: Task) -> None:
        self._title = title
        nodes = [n for here in reached(step, owner(task)) for n in ast.walk(here.node)]
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
        changed = [s for s in self._settings if _differs(s.value, s.now())]
        if not changed:
            return False
        self._settings = [setting for setting in self._settings if setting not in changed]
        texts = [f"{s.path}: {_text(s.value)}, now {_text(s.now())}" for s in changed]
        warn(
            _LATE_CHANGE,
            message(
                f"{changed[0].path} changed during fit, and {self._title} does not see it: the "
                "compiled step keeps what it was traced with.",
                expected="settings of the task and of its layers that stay the same during fit",
                received=listed(texts, _MOST_NAMED),
                do="end this fit and call fit again: it continues with the new value; hold a "
                "number that changes while training in a tf.Variable (assign it) or an "
                'lw.Scheduled; or run Python in each step with plan="eager"',
            ),
        )
        return True


def _differs(was: Any, now: Any) -> bool:
    return now is not was and not (is_plain(was) and is_plain(now) and was == now)


def _text(value: Any) -> str:
    return repr(value) if is_plain(value) else f"a {type(value).__name__}"
