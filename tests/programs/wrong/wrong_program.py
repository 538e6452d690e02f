"""What a wrong program is: something to train, and its data; `messages.txt` has what it is told."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

Plan = Literal["eager", "graph", "xla", "fused"]

PLANS: tuple[Plan, ...] = ("eager", "graph", "xla", "fused")


@dataclass(frozen=True)
class Wrong:
    """A program with one mistake, or with `mistake=False` the same program without it."""

    trained: Any
    x: Any = None
    y: Any = None
    options: dict[str, Any] = field(default_factory=dict)


def on_plans(*plans: Plan) -> Callable[[Callable[[bool], Wrong]], Callable[[bool], Wrong]]:
    """Try the program on these plans."""

    def chosen(build: Callable[[bool], Wrong]) -> Callable[[bool], Wrong]:
        build.__dict__["plans"] = plans
        return build

    return chosen


def on_every_plan(build: Callable[[bool], Wrong]) -> Callable[[bool], Wrong]:
    """Try the program on every plan: its mistake shows in numbers, while it runs."""
    return on_plans(*PLANS)(build)


def plans_of(build: Callable[[bool], Wrong]) -> tuple[Plan, ...]:
    """The plans to try; one for a mistake that the trace shows, before a plan is chosen."""
    return build.__dict__.get("plans", ("graph",))


def marked_line(build: Callable[..., Wrong]) -> int | None:
    """The number of the line that ends with the comment `# here`."""
    lines, first = inspect.getsourcelines(build)
    marked = [n for n, line in enumerate(lines, first) if line.rstrip().endswith("# here")]
    return marked[0] if marked else None


def programs_of(*modules: ModuleType) -> dict[str, Callable[[bool], Wrong]]:
    """Every public function of these modules that makes a `Wrong`, by name."""
    found: dict[str, Any] = {
        f"{Path(module.__file__ or '').stem}.{name}": function
        for module in modules
        for name, function in vars(module).items()
        if callable(function)
        and not name.startswith("_")
        and getattr(function, "__annotations__", {}).get("return") is Wrong
    }
    return dict(sorted(found.items()))
