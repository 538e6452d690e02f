"""Where the time of a run goes, by part; how many steps fit into a call."""

import contextlib
from collections.abc import Callable, Generator
from typing import final

from loopwright.events import Event, Sink

PARTS = (
    "data wait",
    "step",
    "validation",
    "checkpoint",
    "callbacks",
    "logging",
    "caller",
    "tuning",
    "compile",
    "Python",
)


@final
class Stopwatch:
    """Adds up seconds by name.

    >>> watch = Stopwatch(clock=iter([0.0, 2.0]).__next__)
    >>> with watch.timing("validation"):
    ...     pass
    >>> watch.seconds["validation"]
    2.0
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.seconds: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        self.times: dict[str, int] = dict.fromkeys(PARTS, 0)
        """How often each part was timed."""
        self._details: dict[tuple[str, str], float] = {}
        self._inner = 0.0

    @contextlib.contextmanager
    def timing(self, part: str, detail: str = "") -> Generator[None]:
        """Count the time inside as this part, without what is timed further inside.

        `detail` names the piece of the part: a hook of a callback, for instance.
        """
        outer, self._inner = self._inner, 0.0
        began = self.clock()
        try:
            yield
        finally:
            seconds = self.clock() - began
            own = seconds - self._inner
            self._inner = outer + seconds
            self.add(part, own)
            self.times[part] += 1
            if detail:
                self._details[part, detail] = self._details.get((part, detail), 0.0) + own

    def timed_sink(self, sink: Sink) -> Sink:
        """Return a sink whose time counts as logging, under its name."""
        name = getattr(sink, "__qualname__", type(sink).__name__).rpartition(".")[2]

        def timed(event: Event) -> None:
            with self.timing("logging", name):
                sink(event)

        return timed

    def add(self, part: str, seconds: float) -> None:
        """Count seconds that were measured elsewhere."""
        self.seconds[part] += seconds

    def details(self, part: str) -> dict[str, float]:
        """Return the seconds of each named piece of a part."""
        return {detail: seconds for (p, detail), seconds in self._details.items() if p == part}

    def largest(self, part: str) -> str:
        """Return the detail of a part that took the longest; empty if it has none."""
        named = self.details(part)
        return max(named, key=lambda detail: named[detail], default="")

    def whole(self, seconds: float) -> dict[str, float]:
        """Return the parts of a run that took `seconds`; the rest was Python."""
        counted = {**self.seconds, "Python": 0.0}
        return {**counted, "Python": max(0.0, seconds - sum(counted.values()))}


@final
class Pace:
    """Decides how many steps the next call runs, so that it takes about `seconds_per_call`.

    Control has to return often enough to draw progress and to see Ctrl-C, and rarely enough
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
        """Learn from a call that ran `steps` in `seconds`."""
        if steps == 0:
            return
        fitting = int(self._seconds_per_call * steps / max(seconds, 1e-9))
        # A call cut short by the end of an epoch says little about longer ones.
        grown = self._MOST_GROWTH * max(steps, self._steps // self._MOST_GROWTH)
        self._steps = max(1, min(fitting, grown))
