"""What fault injection found: `make faults` collects and shows it."""

import json
import os
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

ALL = os.environ.get("LOOPWRIGHT_ALL_FAULTS") == "1"
"""Whether everything is tried, and not a sample."""


def record(fault: str, *, tried: int, held: int, **figures: Any) -> None:
    """Notes how often a promise was put to the test, and how often it held."""
    where = os.environ.get("LOOPWRIGHT_FAULTS_REPORT")
    if where:
        line = {"fault": fault, "tried": tried, "held": held, **figures}
        with Path(where).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def render(lines: list[dict[str, Any]]) -> str:
    """A row for each fault: how often tried, how often all held, the worst of each figure."""
    rows: dict[str, dict[str, Any]] = defaultdict(lambda: {"tried": 0, "held": 0})
    for line in lines:
        row = rows[line.pop("fault")]
        row["tried"] += line.pop("tried")
        row["held"] += line.pop("held")
        for name, value in line.items():
            row[name] = max(row.get(name, value), value)
    shown = ["| fault | tried | held | worst |", "|---|---|---|---|"]
    for fault, row in rows.items():
        worst = ", ".join(
            f"{n.replace('_', ' ')} {row[n]:.3g}" for n in row if n not in ("tried", "held")
        )
        shown.append(f"| {fault} | {row['tried']} | {row['held']} | {worst or '-'} |")
    return "\n".join(shown) + "\n"


if __name__ == "__main__":
    found = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    print(render(found))
