"""Data of every kind, made ready for training: arrays, streams, Python batches."""

from loopwright.data.arrays import Arrays
from loopwright.data.given import as_data, training_data, validation_sets
from loopwright.data.shares import Shares
from loopwright.data.source import Data, Feed
from loopwright.data.stream import Stream

__all__ = [
    "Arrays",
    "Data",
    "Feed",
    "Shares",
    "Stream",
    "as_data",
    "training_data",
    "validation_sets",
]
