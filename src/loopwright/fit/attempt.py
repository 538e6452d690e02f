"""The last attempt at a leg in this process, for the call of `fit` that continues it."""

from collections.abc import Mapping
from typing import Any, final

from loopwright.checkpoints import tensors
from loopwright.loop.schedule import Every
from loopwright.task import variables


@final
class LastAttempt:
    """The state a leg began with, the state it was left with, and what the user set since.

    Held tensors are copy-on-write views: they take memory only when their variable changes.
    """

    def __init__(self) -> None:
        self._leg = 0
        self._start: dict[str, Any] = {}
        self._left: dict[str, Any] = {}
        self._set: dict[str, Any] = {}
        self._variables: dict[str, Any] = {}
        self.open_until: Every | None = None
        """What was asked of a leg whose loop over `events` was left before its end."""

    def continued(self, leg: int, task: object) -> list[str]:
        """Return the names of what was set since the last attempt at this leg, if there was one."""
        if leg != self._leg:
            self.forget()
            self._leg = leg
        if not self._variables:
            return []
        # Metrics, seeds and statistics change when a model is only looked at.
        untrained = {id(variable) for variable in variables.untrained_variables(task)}
        named = {name: v for name, v in self._same(task).items() if id(v) not in untrained}
        now = tensors.snapshot(named)
        self._set = {
            name: value
            for name, value in now.items()
            if name in self._set or differ(value, self._left.get(name))
        }
        return list(self._set)

    def rewind(self, task: object) -> None:
        """Put the task back to where the leg began: no checkpoint of the leg was written."""
        named = {name: v for name, v in self._same(task).items() if name in self._start}
        tensors.assign(named, self._start)
        self.keep_what_was_set(named)

    def keep_what_was_set(self, named: Mapping[str, Any]) -> None:
        """Give restored variables the values that the user had set."""
        tensors.assign({name: v for name, v in named.items() if name in self._set}, self._set)

    def begins(self, named: Mapping[str, Any]) -> None:
        """Hold the state at the start of a leg until the leg has a checkpoint."""
        self._start = tensors.snapshot(named)

    def starts(self) -> None:
        """Note that training starts: what was left open is continued."""
        self.open_until = None

    def leaves_open(self, until: Every) -> None:
        """Note that the caller has left a loop over `events`, which asked for this much."""
        self.open_until = until

    def saves(self, *, is_on_disk: bool) -> None:
        """Note a checkpoint that holds what was set; `is_on_disk`: one has been written."""
        self._set = {}
        if is_on_disk:
            self._start = {}

    def ends(self, named: Mapping[str, Any], *, is_over: bool) -> None:
        """End the attempt; a leg that is over leaves nothing to continue."""
        if is_over:
            self.forget()
        else:
            self._variables, self._left = dict(named), tensors.snapshot(named)

    def forget(self) -> None:
        """Drop everything held."""
        self._start, self._left, self._set, self._variables = {}, {}, {}, {}
        self.open_until = None

    def _same(self, task: object) -> dict[str, Any]:
        """Return the variables that the task still holds."""
        named = variables.named(task) if self._variables else {}
        return {name: v for name, v in named.items() if self._variables.get(name) is v}


def differ(value: Any, before: Any) -> bool:
    """Return whether two tensors differ in a bit."""
    return tensors.digest({"": value}) != tensors.digest({"": before})
