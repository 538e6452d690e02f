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


def writes_batch(callback: Any) -> bool:
    """Return whether `TensorBoard` writes the values of the batch that has begun.

    If this moves: it gets the values of all batches, and decides by itself, which takes longer.
    """
    batch = getattr(callback, "_global_train_batch", 0)
    return callback.update_freq != "epoch" and batch % callback.update_freq == 0


def count_batch(callback: Any) -> bool:
    """Begin a batch of which `TensorBoard` writes nothing; return False if it writes something.

    Its own hook sets a writer for every batch, which takes longer than a step of a small model.
    If this moves: its own hook is called for every batch.
    """
    batch = getattr(callback, "_global_train_batch", -1) + 1
    if batch == 0 or batch % callback.update_freq == 0:
        return False
    callback._global_train_batch = batch
    return True
