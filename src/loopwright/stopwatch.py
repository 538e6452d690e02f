"""Where the time of a run went, and what to do about it."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import final

PARTS = ("data wait", "step", "validation", "checkpoint", "tuning", "compile", "Python")
_ADVICE_SHARE = 0.3
_SECONDS_WORTH_ADVICE = 5.0


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

    @contextlib.contextmanager
    def timing(self, part: str) -> Iterator[None]:
        """Counts what happens inside as time of this part."""
        began = self.clock()
        try:
            yield
        finally:
            self.add(part, self.clock() - began)

    def add(self, part: str, seconds: float) -> None:
        """Counts seconds that were measured elsewhere."""
        self.seconds[part] += seconds

    def whole(self, seconds: float) -> dict[str, float]:
        """The parts of a run that took `seconds`; what nobody counted was Python."""
        counted = {**self.seconds, "Python": 0.0}
        return {**counted, "Python": max(0.0, seconds - sum(counted.values()))}


def advice(spent: Mapping[str, float], steps: int) -> str | None:
    """One sentence, where waiting for data or Python took much of a run.

    >>> advice({"data wait": 8.0, "step": 2.0}, steps=4000)
    'The data gave 400 batches/s, the step could take 2,000: cache or prefetch the data.'
    """
    total = sum(spent.values())
    if not steps or total < _SECONDS_WORTH_ADVICE:
        return None
    waited, python = spent.get("data wait", 0.0), spent.get("Python", 0.0)
    if waited > _ADVICE_SHARE * total:
        running = max(spent["step"], 1e-9)
        return (
            f"The data gave {steps / (waited + running):,.0f} batches/s, the step could take "
            f"{steps / running:,.0f}: cache or prefetch the data."
        )
    if python > _ADVICE_SHARE * total:
        return (
            f"Python between the steps took {python / total:.0%} of the time (callbacks, sinks, "
            "the caller's own loop): let it run less often, or make epochs longer."
        )
    return None
