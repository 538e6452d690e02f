"""Which process settings may be faster for a step: at most one candidate, tried in a child."""

from dataclasses import dataclass, replace
from typing import Any, final

from loopwright.plans import settings
from loopwright.plans.plan import WORDS, Plan
from loopwright.plans.settings import Settings

_SHORT_SECONDS = 0.0005  # waking a second thread takes as long as the work that it takes over
_LONG_SECONDS = 0.1  # matrix products of that size gain by oneDNN, smaller ones lose


@final
@dataclass(frozen=True)
class StepFacts:
    """What is known about a step that runs in this process."""

    plan: Plan
    step_seconds: float
    has_convolutions: bool
    has_products: bool
    """Whether it multiplies matrices."""
    onednn_is_open: bool
    """Whether oneDNN is off, can be switched on, and the user has not set it."""
    threads_are_open: bool
    """Whether there are several cores, and the user has not set the number of threads."""


@final
@dataclass(frozen=True)
class Candidate:
    """Settings that may be faster, and the plan to measure them with, as a word."""

    settings: Settings
    plan: str

    def content(self) -> dict[str, Any]:
        """Return the candidate as JSON values."""
        return {"settings": self.settings.content(), "plan": self.plan}


def candidate(now: Settings, step: StepFacts) -> Candidate | None:
    """Return the settings that may be faster than those of this process; None: keep them.

    >>> short = StepFacts(WORDS["fused"], 6e-5, False, True, True, True)
    >>> candidate(Settings(), short)
    Candidate(settings=Settings(onednn=False, xla_flags=(), intra_op_threads=1, \
inter_op_threads=0), plan='fused')
    """
    has_large_products = step.has_products and step.step_seconds > _LONG_SECONDS
    if step.onednn_is_open and (step.has_convolutions or has_large_products):
        # XLA has kernels of its own, which oneDNN does not change.
        return Candidate(replace(now, onednn=True), "graph")
    if step.threads_are_open and 0 < step.step_seconds < _SHORT_SECONDS:
        return Candidate(replace(now, intra_op_threads=1), word(step.plan))
    return None


def parsed(content: Any) -> Candidate | None:
    """Return the candidate in the values of `Candidate.content`; raise ValueError for others."""
    if content is None:
        return None
    if content["plan"] not in WORDS:
        raise ValueError(f"unknown plan {content['plan']!r}")
    return Candidate(settings.parsed(content["settings"]), content["plan"])


def word(plan: Plan) -> str:
    """Return the word for a plan, whatever its feed.

    >>> word(Plan("xla", "fused", "resident"))
    'fused'
    """
    alike = [name for name, known in WORDS.items() if known.step == plan.step]
    return "fused" if plan.loop == "fused" else alike[0]
