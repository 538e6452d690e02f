"""Stands in for `python -m loopwright train`: a trial of a tenth of a second, without TensorFlow.

It has the files, the lock and the exit codes of a run: scores that depend on the config only, a
line of the journal after each. Killed, it resumes. It imports nothing of Loopwright, to be quick.
"""

import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import yaml

SECONDS = float(os.environ.get("QUICK_TRIAL_SECONDS", "0.005"))


def main() -> None:
    _, _, source, *rest = sys.argv
    config = yaml.safe_load(Path(source).read_text())
    if "--build" in rest:
        if "widht" in config["model"]:
            sys.exit("error: Invalid options in `model` of the config.\n  do: did you mean width?")
        return
    run = Path(rest[rest.index("--run-dir") + 1])
    with (run / "lock").open("a") as held, (run / "starts.txt").open("a") as starts:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        starts.write(f"{os.getpid()}\n")
        starts.flush()
        (run / "config.yaml").write_text(Path(source).read_text())
        train(config, run)


def train(config: dict[str, Any], run: Path) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    rate, width = float(config["model"]["rate"]), config["model"].get("width", 1)
    if rate > 0.5 and config["model"].get("fails"):
        sys.exit("error: The loss is NaN.\n  received: NaN at step 3")
    journal = run / "metrics.jsonl"
    done = journal.read_bytes().count(b"\n") if journal.exists() else 0
    with journal.open("a") as lines:
        for epoch in range(done, config["fit"]["epochs"]):
            time.sleep(SECONDS)
            loss = (rate - 0.3) ** 2 + width / 100 + 1 / (epoch + 1)
            event = {"event": "validated", "step": epoch + 1, "metrics": {"loss": loss}}
            lines.write(json.dumps(event) + "\n")
            lines.flush()


if __name__ == "__main__":
    main()
