"""Where the time of a run went, in seconds by part."""

import contextlib
from collections.abc import Callable, Iterator
from typing import final

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
    def timing(self, part: str, detail: str = "") -> Iterator[None]:
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

    def add(self, part: str, seconds: float) -> None:
        """Counts seconds that were measured elsewhere."""
        self.seconds[part] += seconds

    def largest(self, part: str) -> str:
        """Return the detail of a part that took the longest; empty if it has none."""
        named = {detail: seconds for (p, detail), seconds in self._details.items() if p == part}
        return max(named, key=lambda detail: named[detail], default="")

    def whole(self, seconds: float) -> dict[str, float]:
        """The parts of a run that took `seconds`; what nobody counted was Python."""
        counted = {**self.seconds, "Python": 0.0}
        return {**counted, "Python": max(0.0, seconds - sum(counted.values()))}
