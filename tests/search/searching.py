"""A study with quick trials in a process of its own: `python searching.py DIRECTORY TRIALS ...`."""

import json
import sys
from pathlib import Path
from typing import Any

import loopwright as lw
from loopwright.search import trial_process

QUICK = [sys.executable, str(Path(__file__).with_name("quick_trial.py"))]


def study(directory: Path | str, trials: int, **options: Any) -> lw.Tuned:
    space = options.pop("space", {"model.rate": "float(1e-3,1,log)", "model.width": [1, 2]})
    config = {"task": "mine:experiment", "model": options.pop("model", {}), "fit": {"epochs": 5}}
    return lw.tune(config, space, trials=trials, directory=directory, **options)


if __name__ == "__main__":
    trial_process.PROGRAM[:] = QUICK
    study(sys.argv[1], int(sys.argv[2]), **json.loads(sys.argv[3]))
