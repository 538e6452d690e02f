"""Pictures of what a task does: samples, overlays; drawn at the ends of epochs, not too often."""

import math
from collections.abc import Callable, Mapping
from typing import Any, final

from loopwright.events import EpochEnded, Event, Finished
from loopwright.sinks.tensorboard import TensorBoardFiles

_SECONDS_BETWEEN_PICTURES = 30.0


@final
class Pictures:
    """A sink that shows the images of a task in TensorBoard."""

    def __init__(
        self,
        images: Callable[[], Mapping[str, Any]],
        board: TensorBoardFiles,
        clock: Callable[[], float],
    ) -> None:
        self._images, self._board, self._clock = images, board, clock
        self._drawn_at, self._drawn_step = -math.inf, -1

    def __call__(self, event: Event) -> None:
        """Hears an event; the end of a run is always shown."""
        is_due = isinstance(event, EpochEnded) and (
            self._clock() - self._drawn_at >= _SECONDS_BETWEEN_PICTURES
        )
        is_end = isinstance(event, Finished) and event.reason in ("complete", "stopped")
        if not (is_due or is_end) or event.step == self._drawn_step:
            return
        self._drawn_at, self._drawn_step = self._clock(), event.step
        for name, images in self._images().items():
            self._board.picture(name, images, event.step)
