"""Notes about parts of a program that count something else than their numbers seem to mean."""

from collections.abc import Mapping
from typing import Any

import keras

from loopwright.compat import keras_optimizers
from loopwright.loop.schedule import Schedule


def patience_notes(callbacks: Any, schedule: Schedule) -> list[str]:
    """Name callbacks that count epochs, where validations come at other intervals."""
    every = schedule.validate_every
    if every is None or every.epochs or every.steps == schedule.steps_per_epoch:
        return []
    held = [] if callbacks is None else keras.tree.flatten(callbacks)
    reads = [c for c in held if str(getattr(c, "monitor", "")).startswith("val_")]
    return [
        f"{name} counts epochs, and validations come every {every}: it reads the last scores of "
        f"each epoch. To count validations, pass steps_per_epoch={every.steps or 'N'} and no "
        "validate_every."
        for name in dict.fromkeys(type(c).__name__ for c in reads if hasattr(c, "patience"))
    ]


def schedule_notes(
    optimizers: Mapping[str, keras.optimizers.Optimizer], total_steps: int | None
) -> list[str]:
    """Name schedules as long as the accumulated updates: they count steps, and end too early."""
    notes = list[str]()
    for path, optimizer in optimizers.items():
        accumulated = optimizer.gradient_accumulation_steps
        if not accumulated or total_steps is None:
            continue
        rate = keras_optimizers.learning_rate_of(optimizer)
        kinds = keras.optimizers.schedules
        ends = isinstance(rate, kinds.CosineDecay | kinds.PolynomialDecay)
        length = rate.decay_steps + getattr(rate, "warmup_steps", 0) if ends else 0
        # Users count updates per epoch, rounded down, or in all, rounded up.
        if 0.75 * total_steps <= accumulated * length < total_steps + accumulated:
            notes.append(
                f"{type(rate).__name__} of {path} counts steps, not updates: its {length:,} steps "
                f"are over after 1/{accumulated} of this training. With "
                f"gradient_accumulation_steps={accumulated}, give it {total_steps:,} steps."
            )
    return notes
