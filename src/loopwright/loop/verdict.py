"""The time verdict: which part of a run was slow, its share, why, and what to do about it."""

from collections.abc import Callable, Mapping
from fractions import Fraction

from loopwright.loop.schedule import Every

_SHARE = Fraction(1, 3)
_SUBJECTS = {
    "data wait": "Waiting for data",
    "step": "The step",
    "validation": "Validation",
    "checkpoint": "Saving",
    "callbacks": "Callbacks",
    "logging": "Logging",
    "caller": "The loop over trainer.events()",
    "tuning": "Trying plans",
    "compile": "Compiling",
    "Python": "Python between the steps",
}
_SAVE_EVERY = Every(seconds=600.0)


def verdict(spent: Mapping[str, float], causes: Mapping[str, Callable[[], str]]) -> str:
    """Return a sentence for each part that took more than a third of the time, the slowest first.

    `causes` give the end of the sentence. The step has none if it is as it should be.

    >>> causes = {"validation": lambda: ": validate less often", "step": lambda: ""}
    >>> verdict({"validation": 6.0, "step": 4.0}, causes)
    'Validation took 60% of the time: validate less often.'
    """
    total = sum(spent.values())
    slow = [part for part, seconds in spent.items() if seconds > _SHARE * total]
    sentences = [
        f"{_SUBJECTS[part]} took {spent[part] / total:.0%} of the time{cause}."
        for part in sorted(slow, key=lambda part: -spent[part])
        if (cause := causes[part]())
    ]
    return " ".join(sentences)


def slow_validation(spent: Mapping[str, float], validate_every: Every, *, waits: bool) -> str:
    """Say why validation is slow; `waits`: most of it waits for its data.

    >>> spent = {"validation": 7.0, "step": 2.0, "data wait": 1.0}
    >>> slow_validation(spent, Every(epochs=1), waits=False)
    ', training 30%: validate less often, validate_every="5 epochs", or pass validation_steps=100'
    """
    trained = (spent["step"] + spent["data wait"]) / sum(spent.values())
    seldom = "1 epoch" if validate_every.epochs is None else f"{5 * validate_every.epochs} epochs"
    fewer = "pass validation_steps=100"
    if waits:
        fewer = "cache its data, which it mostly waits for, .cache() after the last map"
    return f', training {trained:.0%}: validate less often, validate_every="{seldom}", or {fewer}'


def slow_saving(save_every: Every | None, checkpoints: int) -> str:
    """Say why saving is slow.

    >>> slow_saving(Every(steps=5), checkpoints=40)
    ', 40 checkpoints: save less often, save_every="10 minutes"'
    """
    if checkpoints <= 1:
        return ", 1 checkpoint: a longer run spends a smaller share on it"
    if save_every is None or (save_every.seconds or 0.0) >= (_SAVE_EVERY.seconds or 0.0):
        return (
            f", {checkpoints} checkpoints: each validation that is the best so far is saved; "
            "validate less often, or pass Trainer(..., keep=[lw.KeepLatest(3)])"
        )
    return f', {checkpoints} checkpoints: save less often, save_every="10 minutes"'


def slow_compiling(traces: int, *, is_xla: bool) -> str:
    """Say why compiling is slow.

    >>> slow_compiling(3, is_xla=False)[:62]
    ': the step was traced 3 times, for batches of different shapes'
    """
    if traces > 1:
        return (
            f": the step was traced {traces} times, for batches of different shapes; pad them to "
            "one shape, .padded_batch(n, padded_shapes=...)"
        )
    faster = ', or pass plan="graph", which compiles faster' if is_xla else ""
    return f": it happens once, and a longer run spends a smaller share on it{faster}"


def slow_callbacks(hook: str) -> str:
    """Say why callbacks are slow, by the slowest hook.

    >>> slow_callbacks("Printer.on_epoch_end")
    ', most of it in Printer.on_epoch_end: do less there, or only every few epochs'
    """
    if "_batch_" not in hook:
        return f", most of it in {hook}: do less there, or only every few epochs"
    return (
        f", most of it in {hook}: move the work to on_epoch_end, or set needs_every_step = False "
        "on the callback to call it at stops only"
    )


def slow_python(callback: str) -> str:
    """Say why Python between steps is slow; `callback` has a hook for every step."""
    if callback:
        return (
            f": {callback} has a batch hook, so every step returns to Python; set "
            "needs_every_step = False on it to call it at stops only"
        )
    return ": make epochs longer, or train more epochs in one call of fit"


def slow_logging(sink: str) -> str:
    """Say why logging is slow, by the slowest sink."""
    return f", most of it in the sink {sink}: do less there for each event"


def slow_tuning(plan: str) -> str:
    """Say why trying plans took long."""
    return f": the next run starts on the plan found now; plan={plan} tries nothing else"


def slow_data(steps: int, spent: Mapping[str, float], cause: str) -> str:
    """Say why the data is slow; without a known cause, how fast it was.

    >>> slow_data(4100, {"data wait": 8.59, "step": 1.41}, "")[:50]
    ': it gave 410 batches/s, the step can take 2,908; '
    """
    if cause:
        return f": {cause}"
    waited, running = spent["data wait"], max(spent["step"], 1e-9)
    return (
        f": it gave {steps / (waited + running):,.0f} batches/s, the step can take "
        f"{steps / running:,.0f}; keep its results: .cache() before .prefetch()"
    )
