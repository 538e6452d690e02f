"""Hints for a process that cannot change its settings: what is faster, how to get it."""

import sys

from loopwright.compat import process
from loopwright.engine.plan_selector import PlanSelector
from loopwright.plans import launch, settings_memory
from loopwright.plans.settings import ONEDNN


def measured(selector: PlanSelector, *, is_alone: bool) -> str | None:
    """Return what was measured to be faster than this process; None if nothing was.

    A process that was launched by us, and is no worker of several, changes its settings itself.
    """
    if (is_alone and launch.may_restart()) or not _may_help(selector):
        return None
    known = settings_memory.for_step(selector.identity_by(selector.settings))
    if known is None or not known.is_other_faster:
        return None
    return f"this step ran {known.gain:.1f}x as fast with {known.other.in_words}: {_get_it('')}"


def unmeasured(selector: PlanSelector) -> str:
    """Return what may make a slow step faster, for the advice at the end of a run."""
    if launch.own() is not None or not _may_help(selector):
        return ""
    if settings_memory.for_step(selector.identity_by(selector.settings)) is not None:
        return ""  # it was said at the beginning, or is slower
    return f" with its convolutions without oneDNN, which may be faster: {_get_it('--probe ')}"


def _may_help(selector: PlanSelector) -> bool:
    return process.onednn_may_help() and selector.has_convolutions


def _get_it(option: str) -> str:
    if launch.is_command_line():
        return f"set {ONEDNN}=1 in the shell"
    by_hand = f"set {ONEDNN}=1 before TensorFlow is imported"
    if "ipykernel" in sys.modules:
        return f"{by_hand}, in the first cell of the notebook"
    if launch.is_interactive():
        return by_hand
    script = sys.argv[0] if sys.argv and sys.argv[0].endswith(".py") else "SCRIPT"
    return f"start it with `loopwright run {option}{script}`, or {by_hand}"
