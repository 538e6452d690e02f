"""Counters inside Keras callbacks: how many steps until a callback acts on the model."""

from typing import Any


def steps_to_save(callback: Any) -> int | None:
    """Return the steps until a callback with `save_freq` saves; None if it saves by epoch.

    If this moves: every step is a stop while such a callback runs.
    """
    if callback.save_freq == "epoch":
        return None
    seen = getattr(callback, "_batches_seen_since_last_saving", None)
    return 1 if seen is None else max(1, callback.save_freq - seen)


def steps_to_profile(callback: Any) -> int | None:
    """Return the steps until `TensorBoard(profile_batch=...)` starts or stops its profile.

    If this moves: every step is a stop while such a callback runs.
    """
    if not profiles(callback):
        return None
    seen = getattr(callback, "_global_train_batch", None)
    if seen is None:
        return 1
    edges = (callback._start_batch - 1, callback._stop_batch)
    return min((edge - seen for edge in edges if edge > seen), default=None)


def profiles(callback: Any) -> bool:
    """Return whether a `TensorBoard` callback profiles some batches.

    If this moves: profiles have to be taken with `needs_every_step = True`.
    """
    return bool(getattr(callback, "_should_trace", False))


def writes_next_batch(callback: Any) -> bool:
    """Return whether `TensorBoard` writes the values of the batch that has begun.

    If this moves: it gets the values of all batches, and decides by itself, which takes longer.
    """
    batch = getattr(callback, "_global_train_batch", 0)
    return callback.update_freq != "epoch" and batch % callback.update_freq == 0
