"""The guards of a traced step, in the order in which they look at it.

A new guard is a function in the file of its family, and an entry in the list there.
"""

from loopwright.guards import calls, constants, labels, operations, updates
from loopwright.guards.guard import Guard
from loopwright.guards.trace import StepTrace

GUARDS: list[Guard[StepTrace]] = [
    *calls.GUARDS,
    *labels.GUARDS,
    *operations.GUARDS,
    *updates.GUARDS,
    *constants.GUARDS,
]
FAILED_TRACE_GUARDS: list[Guard[StepTrace]] = [calls.SWAPPED_ARGUMENTS, labels.FAILED_LOSS]
"""Those that look at a trace that failed: they know its cause better than the error."""
