"""Choices of plans, remembered on this machine: the next run of the same thing switches to them.

They lie in `~/.cache/loopwright/plans`; `LOOPWRIGHT_CACHE_DIR` names another directory, and nothing
is kept if it is empty. Deleting them is always safe.
"""

import contextlib
import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path

from loopwright.errors import ConfigurationError
from loopwright.plans.plan import Plan
from loopwright.plans.plan_history import Choice


def directory() -> Path | None:
    """Where choices are kept; None if they are not."""
    own = os.environ.get("LOOPWRIGHT_CACHE_DIR")
    if own is not None:
        return Path(own) / "plans" if own else None
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "loopwright" / "plans"


def remembered(identity: str) -> Choice | None:
    """The plan that was chosen for this, and why; None if there is none, or it is unreadable."""
    try:
        place = directory()
        if place is None:
            return None
        content = json.loads((place / f"{identity}.json").read_text(encoding="utf-8"))
        return Choice(Plan(**content["plan"]), str(content["why"]))
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, ConfigurationError):
        return None


def remember(identity: str, choice: Choice) -> None:
    """Keeps a choice; where nothing can be written, nothing is kept."""
    content = json.dumps(asdict(choice), indent=2) + "\n"
    with contextlib.suppress(OSError, RuntimeError):  # a person may have no home directory
        place = directory()
        if place is None:
            return
        place.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=place, suffix=".tmp")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(content)
        Path(name).replace(place / f"{identity}.json")
