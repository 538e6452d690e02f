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
    search = _Search(one, other, say)
    last = min(max(one.steps, default=0), max(other.steps, default=0))
    anchors = sorted(step for step in {*one.steps, *other.steps, *hints} if 0 < step <= last)
    low, high = max(known_equal, default=-1), last
    if low >= last:
        return None
    found = search.differing(last)
    if not found:
        return None
    for step in [step for step in hints if low < step < high][:1]:
        if search.differing(step):
            high = step
        else:
            low = step
    between = [step for step in anchors if low < step < high]
    while between:
        middle = between[len(between) // 2]
        if search.differing(middle):
            high = middle
        else:
            low = middle
        between = [step for step in between if low < step < high]
    if low < 0:
        if search.differing(0):
            return Difference(0, search.differing(0), search.compared)
        low = 0
    low, high = search.narrowed(low, high)
    difference = Difference(high, search.differing(high), search.compared)
    for which, states in enumerate((one, other)):
        names = states.disagreement(high)
        if names:
            raise NotReproducedError(_not_reproduced(high, names), which)
    return difference


def _not_reproduced(step: int, names: Sequence[str]) -> str:
    return message(
        f"Replayed from step {step:,}, the run does not reach the state that it recorded.",
        expected="the bits of its next checkpoint",
        received=f"other values of {names[0]}" + (f" and {len(names) - 1} more" * (len(names) > 1)),
        do="loopwright verify --repeat says whether the program repeats itself",
    )


@final
class _Search:
    """Compares the states of two runs, each step once."""

    def __init__(self, one: States, other: States, say: Callable[[str], None]) -> None:
        self._one, self._other, self._say = one, other, say
        self._known: dict[int, list[str]] = {}

    @property
    def compared(self) -> int:
        """How many steps were compared."""
        return len(self._known)

    def differing(self, step: int) -> list[str]:
        """Return the variables that differ after a step."""
        if step not in self._known:
            for states in (self._one, self._other):
                states.ask(step)
            first, second = self._one.answer(), self._other.answer()
            self._known[step] = first.differing(second)
            verdict = "different" if self._known[step] else "equal"
            self._say(f"step {step:,}: {verdict}")
        return self._known[step]

    def narrowed(self, low: int, high: int) -> tuple[int, int]:
        """Return neighbours between which the runs begin to differ: equal at `low`, then not.

        It walks from `low` in sections and stops at the first that differs, then cuts that one:
        all sections together are replayed little more than once.
        """
        while high - low > 1:
            length = max(1, (high - low) // _SECTIONS)
            step = low + length
            while step < high and not self.differing(step):
                low, step = step, step + length
            high = min(step, high)
        return low, high
