"""The workers of one training: they exchange numbers and decide alike.

All workers must call the same collective operations in the same order, or all hang. So nothing that
differs between them may decide what comes next: no clock, no signal, no request to stop. They meet
where control is back in Python, exchange a few numbers, and use these until they meet again. For a
worker that trains alone all of this costs nothing.
"""

import contextlib
import hashlib
import json
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, final

import numpy as np
import tensorflow as tf

from loopwright.compat import messages, tensorflow_internals
from loopwright.distribute import replicas
from loopwright.errors import ConfigurationError, WorkerLostError, message
from loopwright.loop.signals import Signals

_FAILED = -(2**62)
_PLACE = "{0}.workers[{1}]"


@final
class Team:
    """The workers of one strategy; this process is one of them."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self.strategy = strategy
        self.size, self.index = tensorflow_internals.workers(strategy)
        rows = tf.TensorSpec([self.size, None], tf.int64)
        # Compiled: several times as fast as operation by operation.
        self._summed = tensorflow_internals.compiled(self._sum, input_signature=(rows,))

    @property
    def is_alone(self) -> bool:
        """Whether there are no other workers."""
        return self.size == 1

    @property
    def is_chief(self) -> bool:
        """Whether this worker decides, writes and prints; a single worker is the chief."""
        return self.index == 0

    def exchanged(self, own: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return a row of numbers of each worker, of equal lengths; all workers must call it."""
        rows = np.zeros((self.size, len(own)), np.int64)
        rows[self.index] = own
        return rows if self.is_alone else self._summed(tf.identity(rows)).numpy()

    def exchanged_bytes(self, own: bytes) -> list[bytes]:
        """Return the bytes of each worker, of any length; all workers must call it."""
        lengths = self.exchanged([len(own)])[:, 0]
        padded = own.ljust(-(-max(lengths) // 8) * 8, b"\0")
        rows = self.exchanged(np.frombuffer(padded, np.int64))
        return [row.tobytes()[:length] for row, length in zip(rows, lengths, strict=True)]

    def barrier(self) -> None:
        """Wait for all workers: one that exits while others work would be taken for crashed.

        The work is done at this point, so a worker that is missing by now is no error.
        """
        if not self.is_alone:
            with contextlib.suppress(tf.errors.OpError):
                self.exchanged([0])

    def _sum(self, rows: Any) -> Any:
        return self.strategy.reduce(tf.distribute.ReduceOp.SUM, rows, axis=None)

    def from_chief(self, find: Callable[[], int]) -> int:
        """Return what `find` returns on the chief; if it fails there, it fails on all workers."""
        if not self.is_chief:
            found = int(self.exchanged([0])[0, 0])
            if found == _FAILED:
                raise WorkerLostError(_lost("the first worker could not start; see its log"))
            return found
        try:
            found = find()
        except BaseException:
            self.exchanged([_FAILED])
            raise
        self.exchanged([found])
        return found

    def require_same(self, what: str, value: Any) -> None:
        """Raise on all workers if a value differs between them."""
        if self.is_alone:
            return
        text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
        own = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
        found = self.exchanged([own])[:, 0]
        others = [str(index) for index, each in enumerate(found) if each != found[0]]
        if others:
            raise ConfigurationError(
                f"The workers do not have the same {what}.",
                expected="the same program, data and settings on every worker",
                received=f"worker {', '.join(others)} differs from worker 0; "
                f"on this worker: {text:.300}",
                do="start all workers with the same code, files and command",
            )

    def everywhere(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """Return the variables of all workers by name; those of others stand for their own."""
        found = dict(named)
        for name, variable in self.differing(named).items():
            found |= {self._on(worker, name): variable for worker in range(self.size)}
        return found | dict(named)

    def whole(self, named: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of all variables of all workers; all workers must call it."""
        differing = self.differing(named)
        if not differing:
            return dict(values)
        own = {name: np.asarray(values[name]) for name in sorted(differing)}
        data = b"".join(value.tobytes() for value in own.values())
        found = dict(values)
        for worker, each in enumerate(self.exchanged_bytes(data)):
            begin = 0
            for name, like in own.items():
                value = np.frombuffer(each, like.dtype, like.size, begin).reshape(like.shape)
                begin += like.nbytes
                found.setdefault(self._on(worker, name), tf.identity(value))
        return found

    def places(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Return the data position of each worker; all workers must call it."""
        found: dict[str, Any] = {}
        for name in sorted(own):
            serialized = tf.io.serialize_tensor(own[name]).numpy()
            for worker, each in enumerate(self.exchanged_bytes(serialized)):
                found[_PLACE.format(name, worker)] = tf.io.parse_tensor(each, own[name].dtype)
        return found

    def own_place(self, saved: Mapping[str, Any]) -> dict[str, Any]:
        """Return `saved` with the positions that `places` saved for this worker."""
        ending = _PLACE.format("", self.index)
        own = {n.removesuffix(ending): v for n, v in saved.items() if n.endswith(ending)}
        return {**saved, **own}

    def differing(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """Return the variables that differ between workers."""
        if self.is_alone:
            return {}
        return {
            name: variable for name, variable in named.items() if replicas.is_of_one(name, variable)
        }

    def _on(self, worker: int, name: str) -> str:
        """Return the name that a variable of a replica has on another worker."""
        local = self.strategy.num_replicas_in_sync // self.size
        return replicas.renumbered(name, (worker - self.index) * local)

    @contextlib.contextmanager
    def losses_explained(self) -> Iterator[None]:
        """Explain errors of TensorFlow that mean that another worker was lost."""
        if self.is_alone:
            yield
            return
        try:
            yield
        except tf.errors.OpError as error:
            reason = messages.lost_worker(error)
            if reason is None:
                raise
            text = _lost(reason)
            # Python prints nothing about a SystemExit.
            print(f"error: {text}", file=sys.stderr, flush=True)
            raise WorkerLostError(text) from error


def _lost(received: str) -> str:
    return message(
        "Lost connection to another worker.",
        expected="all workers until the end of the training",
        received=received,
        do="restart all workers: they resume from the last checkpoint. "
        "loopwright launch --restarts 3 does so automatically",
    )


@final
class Agreement:
    """The clock and the signals that all workers share: the chief's clock, a signal to any worker.

    Every number computed from this clock, like the pace, is the same on all workers.
    """

    def __init__(self, team: Team, clock: Callable[[], float], signals: Signals) -> None:
        self._team, self._own_clock, self._signals = team, clock, signals
        self._seconds, self._is_interrupted = clock(), False

    def clock(self) -> float:
        """Return the time of a single worker, or the chief's time when the workers last met."""
        return self._own_clock() if self._team.is_alone else self._seconds

    def interrupted(self) -> bool:
        """Return whether any worker received a signal before the workers last met."""
        return self._signals.received() if self._team.is_alone else self._is_interrupted

    def now(self) -> float:
        """Meet the other workers, and return the time."""
        self.meet()
        return self.clock()

    def any(self, wish: bool) -> bool:
        """Return whether any worker has this wish; all workers have to ask."""
        return self.meet(wish)

    def meet(self, wish: bool = False) -> bool:
        """Wait for all workers, and take the chief's time; return whether any has this wish."""
        if self._team.is_alone:
            return wish
        bits = struct.unpack("q", struct.pack("d", self._own_clock()))[0]
        rows = self._team.exchanged([bits, self._signals.number, int(wish)])
        self._seconds = struct.unpack("d", struct.pack("q", rows[0, 0]))[0]
        # Several may have come: a machine that shuts down outranks Ctrl-C.
        number = int(rows[:, 1].max())
        if number:
            self._signals.adopt(number)
            self._is_interrupted = True
        return bool(rows[:, 2].any())
