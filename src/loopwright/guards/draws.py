"""Python's random numbers and clocks in a step: they are read once, while it is traced."""

import ast
import contextlib
import pickle
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from loopwright.compat.error_messages import is_users_frame
from loopwright.guards.source import GENERATORS, reached

_UNREPEATABLE = frozenset(
    [
        *("time.time", "time.time_ns", "time.perf_counter", "time.perf_counter_ns"),
        *("time.monotonic", "time.monotonic_ns", "time.process_time", "time.thread_time"),
        *("datetime.now", "datetime.utcnow", "datetime.today", "uuid.uuid1", "uuid.uuid4"),
        *("secrets.choice", "secrets.randbelow", "secrets.token_bytes", "secrets.token_hex"),
        "posix.urandom",
    ]
)
"""Functions by module and name that return something else each time."""


@dataclass(frozen=True)
class Draw:
    """A call whose value changes each time, and where it is."""

    name: str
    place: str
    callee: Any
    """A function, or a method of a generator."""

    @property
    def is_clock(self) -> bool:
        """Return whether it reads a clock, not a random number."""
        return self.name.startswith(("time.", "datetime."))

    @property
    def generator(self) -> Any:
        """The generator that it draws from; None if it has no state that can be compared."""
        own = getattr(self.callee, "__self__", None)
        return own if isinstance(own, GENERATORS) else None

    def __str__(self) -> str:
        return f"{self.name} ({self.place})"


def possible_draws(step: Any, owner: Any) -> list[Draw]:
    """Return such calls in the user's functions that a step may call."""
    found = [
        Draw(ast.unparse(call.func), here.place(call), callee)
        for here in reached(step, owner)
        for call, callees in here.called()
        for callee in callees
        if _draws(callee)
    ]
    return list({str(draw): draw for draw in found}.values())


def _draws(callee: Any) -> bool:
    own = getattr(callee, "__self__", None)
    if isinstance(own, GENERATORS):
        return not isinstance(own, random.SystemRandom)
    module = getattr(own, "__module__", None) or getattr(callee, "__module__", None)
    return f"{module}.{getattr(callee, '__name__', '')}" in _UNREPEATABLE


@contextlib.contextmanager
def made(possible: Sequence[Draw]) -> Iterator[list[Draw]]:
    """Collect those of the draws that are made inside.

    A generator shows it by its state, also one that is not written in Python.
    """
    before = [_state(draw) for draw in possible]
    others = [draw.callee for draw in possible if draw.generator is None]
    codes = {getattr(callee, "__code__", None): callee for callee in others}
    called, found = list[Any](), list[Draw]()

    def look(frame: FrameType, event: str, builtin: Any) -> None:
        if event == "c_call" and builtin in others and is_users_frame(frame):
            called.append(builtin)
        elif event == "call" and frame.f_code in codes and is_users_frame(frame.f_back):
            called.append(codes[frame.f_code])

    watches = bool(others) and sys.getprofile() is None  # a profiler of the user goes first
    if watches:
        sys.setprofile(look)
    try:
        yield found
    finally:
        if watches:
            sys.setprofile(None)
    for draw, state in zip(possible, before, strict=True):
        is_made = draw.callee in called if draw.generator is None else _state(draw) != state
        found += [draw] * is_made


def _state(draw: Draw) -> bytes:
    return b"" if draw.generator is None else pickle.dumps(draw.generator)
