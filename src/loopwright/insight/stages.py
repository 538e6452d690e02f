"""The parts of a rehearsal: timed, named in an error, with the warnings of all of them."""

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator
from typing import final

from loopwright.errors import LoopwrightError, LoopwrightWarning
from loopwright.insight.rehearsal_report import Check


@final
class Stages:
    """The parts of a rehearsal, in order; an error says in which of them it was raised."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.checks: list[Check] = []

    @contextlib.contextmanager
    def part(self, name: str, *, is_shown: bool = True) -> Iterator[Callable[[str], None]]:
        """Time a part; what it notes is its result."""
        began, found = time.perf_counter(), list[str]()
        try:
            yield found.append
        except Exception as error:
            in_part(error, name)
            raise
        if is_shown:
            self._add(Check(name, "; ".join(found), time.perf_counter() - began))

    def leave_out(self, name: str, why: str) -> None:
        """Note a part that is not rehearsed."""
        self._add(Check(name, why, is_done=False))

    def _add(self, check: Check) -> None:
        self.checks.append(check)
        self._say(str(check))


def in_part(error: Exception, name: str) -> Exception:
    """Return the error, which says now in which part of a rehearsal it was raised.

    >>> print(in_part(LoopwrightError("The data is empty."), "validation"))
    The rehearsal failed in the part "validation".
    The data is empty.
    """
    where = f'The rehearsal failed in the part "{name}".'
    if isinstance(error, LoopwrightError) and error.args:
        error.args = (f"{where}\n{error.args[0]}", *error.args[1:])
    else:
        error.add_note(where)
    return error


@contextlib.contextmanager
def collected() -> Iterator[list[str]]:
    """Collect the warnings of Loopwright; give all others at the end, and all after an error."""
    found, given = list[str](), list[warnings.WarningMessage]()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            given = caught
            yield found
    except BaseException:
        for each in given:
            with contextlib.suppress(Warning):  # where warnings are errors, the first error counts
                _give(each)
        raise
    own = [each for each in given if isinstance(each.message, LoopwrightWarning)]
    found += dict.fromkeys(str(each.message) for each in own)
    for each in given:
        if each not in own:
            _give(each)


def _give(warning: warnings.WarningMessage) -> None:
    warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
