"""Training: a step, its data and its numbers, run some steps at a time."""

import warnings
from collections.abc import Callable
from typing import Any, final

from loopwright.data import Feed
from loopwright.errors import DataError, RetraceWarning, message
from loopwright.readers import Reader
from loopwright.running import StepRunner
from loopwright.tally import Tally


@final
class Training:
    """Goes through a feed with a compiled step; what the loop calls `run_steps`."""

    def __init__(
        self, runner_for: Callable[[Any], StepRunner], feed: Feed | None, tally: Tally
    ) -> None:
        self._runner_for, self._feed, self._tally = runner_for, feed, tally
        self._runner = runner_for(None if feed is None else feed.batch_spec)
        self._reader: Reader = None
        self._steps_in_epoch = 0

    def start_epoch(self) -> None:
        """Forgets the numbers of the epoch before."""
        self._tally.start()
        self._steps_in_epoch = 0
        feed = self._feed
        if feed is not None and (self._reader is None or feed.end == "each epoch"):
            self._reader = self._runner.open(feed)

    def run_steps(self, steps: int) -> int:
        """Runs `steps` steps; fewer only if the epoch's data ended."""
        ran = 0
        while ran < steps:
            try:
                done, outputs = self._runner.run(self._reader, steps - ran)
            except Exception:
                self._raise_failure_of_data()
                raise
            if done:
                self._tally.add(outputs)
            ran, self._steps_in_epoch = ran + done, self._steps_in_epoch + done
            if ran < steps and not self._reopened():
                break
        if self._feed is not None and self._steps_in_epoch == self._feed.steps_per_epoch:
            self._feed.epoch_ended()
        return ran

    def report(self) -> dict[str, Any]:
        """The numbers of the epoch so far."""
        return self._tally.numbers()

    def _raise_failure_of_data(self) -> None:
        failure = None if self._feed is None else self._feed.failure()
        if failure is not None:
            raise failure

    def _reopened(self) -> bool:
        """After running out: goes on with a wider spec, or explains, or lets the epoch end."""
        feed = self._feed
        if feed is None:
            return False
        self._raise_failure_of_data()
        wider = feed.reopened()
        if wider is not None:
            self._feed, change = wider
            warnings.warn(_retraced(change), RetraceWarning, stacklevel=2)
            self._runner = self._runner_for(self._feed.batch_spec)
            self._reader = self._runner.open(self._feed)
            return True
        if feed.steps_per_epoch is None and self._steps_in_epoch:
            return False
        raise DataError(_ran_out(feed, self._steps_in_epoch))


def _retraced(change: str) -> str:
    return message(
        f"The step is traced again: {change}.",
        do="give all batches the same shape (pad or bucket them); each new shape costs a trace, "
        "after which that axis is left open",
    )


def _ran_out(feed: Feed, steps: int) -> str:
    if feed.steps_per_epoch is None:
        return message(
            "The data gave no batch for an epoch.",
            expected="at least one batch in every epoch",
            received="data that ended at once (empty, or a generator that was read to its end)",
            do="check the data; pass an object that can be read again, or epochs=1",
        )
    return message(
        "The data ended before the epoch did.",
        expected=f"{feed.steps_per_epoch} batches per epoch",
        received=f"{steps} batches in this epoch",
        do="lower steps_per_epoch or epochs, or let the data repeat",
    )
