"""Means over an epoch, and how many steps fit into a call: plain arithmetic."""

from collections.abc import Callable, Mapping
from typing import final


@final
class Meter:
    """Weighted means of named numbers since the last reset.

    >>> meter = Meter()
    >>> meter.add({"loss": (6.0, 3.0)}); meter.add({"loss": (1.0, 1.0)})
    >>> meter.means()
    {'loss': 1.75}
    """

    def __init__(self) -> None:
        self._totals: dict[str, tuple[float, float]] = {}

    def add(self, totals: Mapping[str, tuple[float, float]]) -> None:
        """Adds (weighted sum, weight) per name."""
        for name, (total, weight) in totals.items():
            old_total, old_weight = self._totals.get(name, (0.0, 0.0))
            self._totals[name] = (old_total + total, old_weight + weight)

    def means(self) -> dict[str, float]:
        """The means so far; a name whose weights are all zero has none."""
        return {name: total / weight for name, (total, weight) in self._totals.items() if weight}

    def reset(self) -> None:
        """Forgets everything."""
        self._totals.clear()

    def state(self) -> dict[str, tuple[float, float]]:
        """What `add` would have to be given to get here; floats survive JSON bit for bit."""
        return dict(self._totals)


@final
class Pace:
    """How many steps the next call may run so that it takes about `seconds_per_call`.

    Control has to come back often enough to draw progress and to see Ctrl-C, and seldom enough
    to cost nothing. The first call is one step; then the measured rate decides. `limit` returns
    the most steps that the next call may run, or None; it is asked before every call.

    >>> pace = Pace(seconds_per_call=0.5)
    >>> pace.at_most_steps
    1
    >>> pace.add(steps=1, seconds=0.001); pace.at_most_steps
    16
    >>> pace.add(steps=16, seconds=0.016); pace.add(steps=256, seconds=0.256); pace.at_most_steps
    500
    >>> Pace(limit=lambda: 1).at_most_steps
    1
    """

    # One fast call can be a fluke, one slow call a hiccup: growth is bounded, not the fall.
    _MOST_GROWTH = 16

    def __init__(
        self, seconds_per_call: float = 0.25, *, limit: Callable[[], int | None] = lambda: None
    ) -> None:
        self._seconds_per_call, self._limit = seconds_per_call, limit
        self._steps = 1

    @property
    def at_most_steps(self) -> int:
        """The number of steps for the next call."""
        limit = self._limit()
        return self._steps if limit is None else max(1, min(self._steps, limit))

    def add(self, *, steps: int, seconds: float) -> None:
        """Learns from a call that ran `steps` in `seconds`."""
        if steps == 0:
            return
        fitting = int(self._seconds_per_call * steps / max(seconds, 1e-9))
        # A call cut short by the end of an epoch says little about longer ones.
        grown = self._MOST_GROWTH * max(steps, self._steps // self._MOST_GROWTH)
        self._steps = max(1, min(fitting, grown))
