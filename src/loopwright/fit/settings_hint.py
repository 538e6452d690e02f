"""Hints for a process that cannot change its settings: what is faster, how to get it."""

import os
import sys

from loopwright.engine.plan_selector import PlanSelector
from loopwright.plans import launch, settings_memory
from loopwright.plans.settings import ONEDNN, set_in
from loopwright.sinks.notebook import in_notebook


def measured(selector: PlanSelector, *, is_alone: bool) -> str | None:
    """Return what was measured to be faster than this process; None if nothing was.

    A process that was launched by us, and is no worker of several, changes its settings itself.
    """
    if (is_alone and launch.may_restart()) or selector.plan.step == "eager":
        return None  # it changes them itself; an eager step is not traced
    known = settings_memory.for_step(selector.identity_by(selector.settings))
    if known is None or not known.is_other_faster:
        return None
    wanted = known.other.changed_from(selector.settings)
    if wanted & set_in(launch.unmarked(os.environ)):
        return None  # the user has decided
    by_hand = " ".join(f"{name}={known.other.variables()[name]}" for name in sorted(wanted))
    return (
        f"this step ran {known.gain:.1f}x as fast with {known.other.in_words}: "
        f"{_get_it('', by_hand)}"
    )


def unmeasured(selector: PlanSelector) -> str:
    """Return what may make a slow step faster, for the advice at the end of a run."""
    facts = selector.facts(step_seconds=0.0)
    if launch.own() is not None or not (facts.onednn_is_open and facts.has_convolutions):
        return ""
    if settings_memory.for_step(selector.identity_by(selector.settings)) is not None:
        return ""  # it was said at the beginning, or is slower
    how = _get_it("--probe ", f"{ONEDNN}=1")
    return f" with its convolutions without oneDNN, which may be faster: {how}"


def _get_it(option: str, variables: str) -> str:
    if launch.is_command_line():
        return f"set {variables} in the shell"
    by_hand = f"set {variables} before TensorFlow is imported"
    if in_notebook():
        return f"{by_hand}, in the first cell of the notebook"
    if launch.is_interactive():
        return by_hand
    script = sys.argv[0] if sys.argv and sys.argv[0].endswith(".py") else "SCRIPT"
    return f"start it with `loopwright run {option}{script}`, or {by_hand}"
