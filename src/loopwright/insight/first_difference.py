"""The first step at which two runs differ, found by bisection over checkpoints and replays.

Nothing here imports TensorFlow: the states come from the run's process, or from a child of it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, final

from loopwright.errors import LoopwrightError, message

_SECTIONS = 32
"""Into how many parts an interval is cut: each level replays the interval of the one before."""


@final
@dataclass(frozen=True)
class State:
    """The state of a run after a step, by the digests of its variables."""

    step: int
    digests: Mapping[str, str]

    def differing(self, other: "State") -> list[str]:
        """Return the names of the variables that differ, in the order of this state.

        >>> State(3, {"a": "1", "b": "2"}).differing(State(3, {"a": "1", "b": "3"}))
        ['b']
        """
        names = [*self.digests, *(name for name in other.digests if name not in self.digests)]
        return [name for name in names if self.digests.get(name) != other.digests.get(name)]


class States(Protocol):
    """The states that a run went through."""

    @property
    def steps(self) -> Sequence[int]:
        """The steps that have a checkpoint, the oldest first."""
        ...

    def ask(self, step: int) -> None:
        """Ask for the state after a step; two runs are asked at the same time."""
        ...

    def answer(self) -> State:
        """Return the state after the step that was asked for."""
        ...

    def disagreement(self, step: int) -> list[str]:
        """Replay from `step` to the next checkpoint; return the variables that differ from it."""
        ...


@final
@dataclass(frozen=True)
class Difference:
    """The first step after which two runs differ.

    >>> print(Difference(37, ["model.layers[0].kernel", "model.layers[0].bias"]))
    first difference: step 37, in model.layers[0].kernel and 1 more
    """

    step: int
    """0: they differ before their first step."""
    variables: Sequence[str]
    """The variables that differ after it."""
    compared: int = 0
    """How many states were compared."""

    def __str__(self) -> str:
        place = f"step {self.step:,}" if self.step else "before the first step"
        more = f" and {len(self.variables) - 1} more" if len(self.variables) > 1 else ""
        return f"first difference: {place}, in {self.variables[0]}{more}"


class NotReproducedError(LoopwrightError):
    """A replay does not give the state that the run has recorded."""

    def __init__(self, text: str, which: int) -> None:
        super().__init__(text)
        self.which = which


def bisect_states(
    one: States,
    other: States,
    *,
    known_equal: Sequence[int] = (),
    hints: Sequence[int] = (),
    say: Callable[[str], None] = lambda text: None,
) -> Difference | None:
    """Return the first step at which two runs differ; None: their last common step is equal.

    `known_equal` are steps whose states are known to be equal, `hints` steps to look at first,
    like the end of the first epoch with another loss. Once different, runs are expected to stay
    different.
    """
    compared: dict[int, list[str]] = {}

    def differing(step: int) -> list[str]:
        if step not in compared:
            for states in (one, other):
                states.ask(step)
            compared[step] = one.answer().differing(other.answer())
            say(f"step {step:,}: {'different' if compared[step] else 'equal'}")
        return compared[step]

    last = min(max(one.steps, default=0), max(other.steps, default=0))
    low, high = max(known_equal, default=-1), last
    if low >= last or not differing(last):
        return None
    first = [step for step in hints if low < step < high][:1]
    between = sorted(step for step in {*one.steps, *other.steps, *hints} if 0 < step < high)
    while between := [step for step in between if low < step < high]:
        step = first.pop() if first else between[len(between) // 2]
        low, high = (low, step) if differing(step) else (step, high)
    if low < 0:
        if names := differing(0):
            return Difference(0, names, len(compared))
        low = 0
    # Walk from `low` in sections to the first that differs, then cut that one: all sections
    # together are replayed little more than once.
    while high - low > 1:
        length = max(1, (high - low) // _SECTIONS)
        step = low + length
        while step < high and not differing(step):
            low, step = step, step + length
        high = min(step, high)
    difference = Difference(high, differing(high), len(compared))
    for which, states in enumerate((one, other)):
        if names := states.disagreement(high):
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            text = message(
                f"Replayed from step {high:,}, the run does not reach the state that it recorded.",
                expected="the bits of its next checkpoint",
                received=f"other values of {names[0]}{more}",
                do="loopwright verify --repeat says whether the program repeats itself",
            )
            raise NotReproducedError(text, which)
    return difference
