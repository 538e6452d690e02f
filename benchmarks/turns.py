"""Let processes take turns: one trains a round while all others wait; no TensorFlow."""

import contextlib
import json
import os
import select
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

from benchmarks.measuring import say
from benchmarks.outcomes import Measured

_ROUND_SECONDS = 120.0
_KEPT = {1: 0.5, 3: 0.75}
"""Who has done less than this share of its column's best after so many rounds has no further
ones."""


@final
class Process:
    """A child that was told what to prepare, and answers in JSON lines."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._log = log
        with log.open("wb") as errors:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=Path(__file__).parents[1],
                env=dict(environment),
            )
        self._unread = b""

    def ask(self, order: dict[str, Any], seconds: float = _ROUND_SECONDS) -> dict[str, Any]:
        """Send an order and return the answer."""
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the answer says that it ended
            self._child.stdin.write(json.dumps(order).encode() + b"\n")
            self._child.stdin.flush()
        return self.answer(seconds)

    def answer(self, seconds: float) -> dict[str, Any]:
        """Return the next answer, or `{"failure": why}` after which nothing can be asked."""
        assert self._child.stdout is not None
        until = time.monotonic() + seconds
        while True:
            line, end, rest = self._unread.partition(b"\n")
            if end:
                self._unread = rest
                with contextlib.suppress(ValueError):  # what started the process may print, too
                    found = json.loads(line)
                    if isinstance(found, dict):
                        return found
                continue
            left = max(0.0, until - time.monotonic())
            if not select.select([self._child.stdout], [], [], left)[0]:
                self.close()
                return {"failure": f"no answer within {seconds:.0f} s"}
            read = os.read(self._child.stdout.fileno(), 65_536)
            if not read:
                code = self._child.wait()
                return {"failure": f"ended with exit code {code}: {self._last_words()}"}
            self._unread += read

    def processor_seconds(self) -> float:
        """Return the processor time that the process has used; 0 where it cannot be read."""
        try:
            content = Path(f"/proc/{self._child.pid}/stat").read_text()
        except OSError:
            return 0.0
        # The name, in brackets, may contain anything; user and system time are fields 14 and 15.
        user, system = content.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """End the process."""
        self._child.kill()
        self._child.wait()
        for stream in (self._child.stdin, self._child.stdout):
            with contextlib.suppress(OSError):
                assert stream is not None
                stream.close()

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines() or [""]
        return lines[-1][:300]


@dataclass(frozen=True)
class Start:
    """How to start a process, and what its contenders are called in the report."""

    name: str
    process: Callable[[], Process]
    shown: Callable[[str, str], tuple[str, str]]
    prepares_alone: bool = False


@dataclass(frozen=True)
class Turns:
    """What the rounds of all processes gave."""

    measured: tuple[Measured, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    waiting_share: float | None = None
    """Seconds of a processor that waiting processes used, per second of the others' turns."""


@dataclass(frozen=True)
class _Player:
    """One contender: whose process it belongs to, and its place there."""

    process: Process
    place: int
    shown: Callable[[str, str], tuple[str, str]]


def take_turns(
    starts: Sequence[Start],
    *,
    rounds: int,
    round_seconds: float,
    cores: int,
    prepare_seconds: float = 600.0,
) -> Turns:
    """Start and prepare all processes, then let their contenders train one after the other."""
    with contextlib.ExitStack() as stack:
        ready = list(_prepared(starts, cores, prepare_seconds, stack))
        players: list[_Player] = []
        measured: list[Measured] = []
        versions: dict[str, str] = {}
        for start, process, answer in ready:
            if "failure" in answer:
                say(f"{start.name}: {answer['failure']}")
                continue
            versions |= answer["versions"]
            for place, one in enumerate(answer["prepared"]):
                column, setting = start.shown(one["column"], one["setting"])
                players.append(_Player(process, place, start.shown))
                measured.append(Measured(column, setting, failure=one["failure"]))
        processes = [process for _, process, _ in ready]
        waited = trained = 0.0
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            for turn in _order(len(players), number):
                if not is_in(measured[turn], measured, number):
                    continue
                player = players[turn]
                waiting = [one for one in processes if one is not player.process]
                before, began = _total(waiting), time.monotonic()
                measured[turn] = _with_round(measured[turn], player, round_seconds)
                trained += time.monotonic() - began
                waited += _total(waiting) - before
    return Turns(tuple(measured), versions, waited / trained if trained else None)


def is_in(one: Measured, everyone: Sequence[Measured], number: int) -> bool:
    """Return whether a contender takes part in this round (from 0 on).

    Everyone takes part in the first. A column shows its best contender: those that are far from it
    would cost time and change nothing.
    """
    if one.failure is not None or number == 0:
        return one.failure is None
    best = max(other.best or 0.0 for other in everyone if other.column == one.column)
    share = max(share for rounds, share in _KEPT.items() if rounds <= number)
    return (one.best or 0.0) >= share * best


def _prepared(
    starts: Sequence[Start], cores: int, seconds: float, stack: contextlib.ExitStack
) -> Iterator[tuple[Start, Process, dict[str, Any]]]:
    """Yield each process with its answer; as many prepare at once as there are cores."""

    def prepare(start: Start) -> tuple[Start, Process, dict[str, Any]]:
        say(f"preparing {start.name}")
        process = start.process()
        stack.callback(process.close)
        return start, process, process.answer(seconds)

    yield from map(prepare, [one for one in starts if one.prepares_alone])
    with ThreadPoolExecutor(max(1, cores)) as pool:
        yield from pool.map(prepare, [one for one in starts if not one.prepares_alone])


def _order(count: int, number: int) -> list[int]:
    """Return everyone's turn in this round: each time another one begins."""
    first = number % max(1, count)
    return [*range(first, count), *range(first)]


def _total(processes: Sequence[Process]) -> float:
    return sum(one.processor_seconds() for one in processes)


def _with_round(one: Measured, player: _Player, seconds: float) -> Measured:
    answer = player.process.ask({"place": player.place, "seconds": seconds})
    if "failure" in answer:
        return replace(one, failure=answer["failure"])
    found = answer["found"]
    column, setting = one.column, one.setting
    if "setting" in found:
        column, setting = player.shown(one.column, found["setting"])
    return replace(
        one,
        column=column,
        setting=setting,
        notes=tuple(found.get("notes", ())),
        rates=(*one.rates, answer["steps"] / answer["seconds"]),
        steps_per_round=answer["steps"],
    )
