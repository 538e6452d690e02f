"""Measure speed, scaling, memory, start-up and tuning on this machine: `make bench`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "examples"))
