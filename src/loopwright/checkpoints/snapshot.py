"""Snapshot: a moment of a run without its tensors, as JSON; and how far its leg was asked to go."""

from dataclasses import dataclass

from loopwright.loop.schedule import Every, Place


@dataclass(frozen=True)
class Reached:
    """Where the newest checkpoint stands, and how far its leg was asked to go."""

    leg: int
    place: Place
    until: Every
