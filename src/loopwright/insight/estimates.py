"""What a run will take: parameters, time, memory and disk, from what a rehearsal measured."""

import math
import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path

import keras
import tensorflow as tf

from loopwright.checkpoints.retention import KeepLatest, Rule, best_rules
from loopwright.errors import CheckpointError
from loopwright.insight.rehearsal_report import in_bytes, in_rate, in_time
from loopwright.loop.schedule import Every, Schedule
from loopwright.task import variables
from loopwright.task.task import Task


def parameters(task: Task) -> tuple[int, int, int]:
    """Return how many numbers of a built task are trained, are frozen, and are statistics.

    >>> task = Task()
    >>> task.weight = tf.Variable([1.0, 2.0])
    >>> parameters(task)
    (2, 0, 0)
    """
    layers = [p.value for p in variables.all_parts(task) if isinstance(p.value, keras.Layer)]
    sizes = {id(w): math.prod(w.shape) for layer in layers for w in layer.weights}
    trained = {id(w) for layer in layers for w in layer.trainable_weights}
    stopped = {id(w) for layer in layers if not layer.trainable for w in layer.weights}
    held = [part.value for part in variables.parts(task)]
    own = [v for v in held if isinstance(v, tf.Variable | keras.Variable) and v.trainable]
    # The step counter, which a task holds too, is an integer.
    alone = sum(math.prod(v.shape) for v in own if tf.as_dtype(v.dtype).is_floating)
    trainable = sum(sizes[each] for each in trained)
    frozen = sum(sizes[each] for each in stopped - trained)
    return trainable + alone, frozen, sum(sizes.values()) - trainable - frozen


def times(interval: Every | None, schedule: Schedule, seconds: float | None) -> int | None:
    """Return how often something at this interval happens in a run; None if it is not known.

    >>> schedule = Schedule(steps_per_epoch=20, until=Every(epochs=15))
    >>> [times(each, schedule, 90.0) for each in (Every(epochs=2), Every(steps=7), None)]
    [8, 43, 0]
    """
    if interval is None:
        return 0
    total, length = schedule.total_steps, schedule.steps_per_epoch
    if interval.seconds is not None:
        return None if seconds is None else int(seconds // interval.seconds) + 1
    if interval.steps is not None:
        return None if total is None else math.ceil(total / interval.steps)
    epochs = schedule.until.epochs
    if epochs is None and total is not None and length is not None:
        epochs = math.ceil(total / length)
    return None if epochs is None else math.ceil(epochs / (interval.epochs or 1))


def schedule_in_words(schedule: Schedule, rules: Sequence[Rule]) -> str:
    """Return when a run ends, validates and saves; without rules nothing is saved.

    >>> schedule = Schedule(20, Every(epochs=3), validate_every=Every(epochs=1))
    >>> schedule_in_words(schedule, [])
    'until 3 epochs of 20 steps; validate every 1 epoch; nothing is saved'
    """
    length = schedule.steps_per_epoch
    words = [f"until {schedule.until}{f' of {length:,} steps' if length else ''}"]
    is_validated = schedule.validate_every is not None
    words.append(f"validate every {schedule.validate_every}" if is_validated else "no validation")
    saved = [f"every {schedule.save_every}"] if schedule.save_every is not None else []
    saved += [f"at the best {rule.metric}" for rule in best_rules(rules) if is_validated]
    words.append(f"save {', '.join(saved)} and at the end" if rules else "nothing is saved")
    return "; ".join(words)


def run_length(
    schedule: Schedule, rate: float, validation_seconds: float | None, start_seconds: float
) -> tuple[float | None, str]:
    """Return the seconds of a whole run, or None, and what they consist of.

    `rate` is in steps per second; a validation of None seconds has an unknown length.

    >>> schedule = Schedule(steps_per_epoch=20, until=Every(epochs=15))
    >>> run_length(schedule, 100.0, None, 2.0)
    (5.0, '300 steps at 100/s, 2 s to compile')
    """
    if schedule.until.seconds is not None:
        steps = schedule.until.seconds * rate
        return schedule.until.seconds, f"as asked, about {in_rate(steps)} steps"
    total = schedule.total_steps
    if total is None:
        return None, f"unknown: {schedule.until} of unknown length"
    seconds = total / rate + start_seconds
    words = [f"{total:,} steps at {in_rate(rate)}/s"]
    count = times(schedule.validate_every, schedule, seconds)
    if count:
        if validation_seconds is None:
            words.append(f"without {count:,} validations of unknown length")
        else:
            seconds += count * validation_seconds
            words.append(f"{count:,} validations of {in_time(validation_seconds)}")
    return seconds, ", ".join([*words, f"{in_time(start_seconds)} to compile"])


def checkpoints_kept(rules: Sequence[Rule], schedule: Schedule, seconds: float | None) -> int:
    """Return how many checkpoints a run has in the end, at most.

    >>> from loopwright.checkpoints.retention import DEFAULT_KEEP
    >>> schedule = Schedule(20, Every(epochs=15), Every(epochs=1), Every(epochs=1))
    >>> checkpoints_kept(DEFAULT_KEEP, schedule, 9.0)
    4
    """
    latest = max([rule.count for rule in rules if isinstance(rule, KeepLatest)], default=1)
    validations = times(schedule.validate_every, schedule, seconds)
    best = sum(rule.count for rule in best_rules(rules)) if validations != 0 else 0
    saved = times(schedule.save_every, schedule, seconds)
    if saved is not None and validations is not None:
        return min(latest + best, saved + (validations if best else 0))
    return latest + best


def nearest_directory(path: Path) -> Path:
    """Return the path, or the nearest directory above it that exists."""
    path = path.absolute()
    return next((each for each in (path, *path.parents) if each.is_dir()), Path.cwd())


def require_room(checkpoint_bytes: int, kept: int, free: int | None, where: Path) -> None:
    """Raise if the checkpoints of a run do not fit on its disk; one more is there while it saves.

    >>> require_room(10, 4, free=100, where=Path("runs"))
    """
    needed = checkpoint_bytes * (kept + 1)
    if free is not None and free < needed:
        raise CheckpointError(
            f"The checkpoints of this run do not fit on the disk of {where}.",
            expected=f"{in_bytes(needed)}: {kept} checkpoints of {in_bytes(checkpoint_bytes)}, "
            "and one more while it is written",
            received=f"{in_bytes(free)} free",
            do="free space, choose another run_dir, or keep fewer: keep=[KeepLatest(1)]",
        )


def peak_bytes() -> int:
    """Return the most memory that this process has used so far, with that of its GPU."""
    unit = 1 if sys.platform == "darwin" else 1024
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    gpus = [device.name for device in tf.config.list_logical_devices("GPU")]
    used = [tf.config.experimental.get_memory_info(name.partition("device:")[2]) for name in gpus]
    return own + sum(each["peak"] for each in used)


def machine_bytes() -> int | None:
    """Return the memory of this machine; None where it is not known."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
