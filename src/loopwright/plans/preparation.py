"""What compiles a plan while training continues, as the tuner sees it."""

from typing import Protocol

from loopwright.plans.plan import Plan


class Preparation(Protocol):
    """A plan that is being compiled."""

    def is_over(self) -> bool:
        """Return whether it has been compiled or has failed."""
        ...

    def wait(self, seconds: float) -> None:
        """Wait until it is over, and at most that long."""
        ...

    def failure(self) -> str | None:
        """Return why it failed; None if it did not."""
        ...


class Compiler(Protocol):
    """Compiles plans while training continues."""

    def can_prepare(self) -> bool:
        """Return whether enough is known of the batches to compile a plan."""
        ...

    def prepare(self, plan: Plan) -> Preparation:
        """Trace a plan at once, and compile it in the background."""
        ...
