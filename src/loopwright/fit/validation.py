"""The scores of a session on its validation data."""

from collections.abc import Mapping
from typing import Any, final

from loopwright.data.source import Data
from loopwright.distribute.team import Agreement
from loopwright.engine.engine import Engine
from loopwright.fit.callbacks import Callbacks
from loopwright.loop.clock import Stopwatch


@final
class Validation:
    """Scores the validation data of a session."""

    def __init__(
        self,
        sets: Mapping[str, Data],
        steps: int | None,
        engine: Engine,
        callbacks: Callbacks,
        watch: Stopwatch,
    ) -> None:
        self._sets, self._steps, self._engine = sets, steps, engine
        self._callbacks, self._watch = callbacks, watch
        self.waited_seconds = 0.0
        """For how long validation waited for its data."""

    def build(self) -> None:
        """Trace the test step, so that a mistake in it shows before an hour of training."""
        for data in self._sets.values():
            if data.can_be_read_again:
                self._engine.build_test_step(data, self._steps)

    def scores(self, agreement: Agreement) -> dict[str, Any] | None:
        """Return the scores on all validation data; None if a signal arrived."""
        found: dict[str, Any] = {}
        inner = Stopwatch(self._watch.clock)
        try:
            with self._watch.timing("validation"):
                for name, data in self._sets.items():
                    callbacks = self._callbacks
                    on_batch = callbacks.on_test_batch if callbacks.needs.test_batches else None
                    scores = self._engine.score(data, self._steps, agreement, on_batch, inner)
                    if scores is None:
                        return None
                    found |= {f"{name}{key}": value for key, value in scores.items()}
        finally:
            compiling = inner.seconds["compile"]
            self._watch.add("validation", -compiling)
            self._watch.add("compile", compiling)
            self.waited_seconds += inner.seconds["data wait"]
        return found
