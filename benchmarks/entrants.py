"""Who takes part in the comparison: which processes, under which settings, by which command."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.data import HEAVY, IMAGES, SHORT
from benchmarks.outcomes import (
    HAND,
    JAX_SCAN,
    KERAS,
    KERAS_BEST,
    KERAS_JAX,
    LOOPWRIGHT,
    LOOPWRIGHT_BEST,
    MATMUL,
    PYTORCH,
)

ROOT = Path(__file__).parents[1]
PEERS = {"PyTorch": ROOT / ".venv-torch", "JAX": ROOT / ".venv-jax"}
"""The environments that `make bench-peers` makes."""


@dataclass(frozen=True)
class Entrant:
    """One process: contenders of one framework under the same variables."""

    framework: str
    columns: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    label: str = ""
    """What is added to the settings of its contenders."""
    left_out: tuple[str, ...] = ()
    """Words of settings that its variables do not change: those contenders stay out."""
    prepares_alone: bool = False
    """Whether it measures while it prepares, so that nobody else may prepare meanwhile."""

    @property
    def name(self) -> str:
        return f"{self.framework} {self.label}".strip()

    def shown(self, column: str, setting: str) -> tuple[str, str]:
        """Return the column and the setting that the report shows.

        >>> one = Entrant("TensorFlow", (KERAS,), label="oneDNN")
        >>> one.shown(KERAS, "")
        ('Keras fit, best settings', '1 graph, oneDNN')
        """
        if column == KERAS and self.variables:
            # Only without a variable it is "as it comes".
            column, setting = KERAS_BEST, "1 graph"
        return column, ", ".join(filter(None, [setting, self.label]))


def entrants(key: str, cores: int, missing: Sequence[str] = ()) -> list[Entrant]:
    """Return the processes for a workload, without those of the missing frameworks."""
    ours = Entrant("TensorFlow", (LOOPWRIGHT,), label="", prepares_alone=True)
    in_tensorflow = (KERAS, KERAS_BEST, HAND, LOOPWRIGHT_BEST, MATMUL)
    one_thread = [
        Entrant("TensorFlow", in_tensorflow, {"TF_NUM_INTRAOP_THREADS": "1"}, "1 thread"),
        Entrant("JAX", (KERAS_JAX, JAX_SCAN), {"KERAS_BACKEND": "jax", "NPROC": "1"}, "1 thread"),
    ]
    everything = [
        *([] if key == MATMUL else [ours]),
        Entrant("TensorFlow", in_tensorflow),
        Entrant(
            "TensorFlow",
            in_tensorflow,
            {"TF_ENABLE_ONEDNN_OPTS": "1"},
            "oneDNN",
            # XLA has kernels of its own: what it compiles is the same to the last bit.
            left_out=("xla", "fused"),
        ),
        *(one_thread if key in SHORT and cores > 1 else []),
        *(
            Entrant(
                "PyTorch",
                (PYTORCH, MATMUL),
                {"OMP_NUM_THREADS": str(threads)},
                "1 thread" if threads == 1 else f"{threads} threads",
            )
            # Long steps are never faster on one of several cores; short ones often are.
            for threads in sorted({cores if key in (*HEAVY, *IMAGES) else 1, cores})
        ),
        Entrant("JAX", (KERAS_JAX, JAX_SCAN, MATMUL), {"KERAS_BACKEND": "jax"}),
    ]
    return [one for one in everything if one.framework not in missing]


def missing_peers() -> list[str]:
    """Return the frameworks whose environment was not made."""
    return [name for name, place in PEERS.items() if not (place / ".installed").exists()]


def command(entrant: Entrant, key: str, settle_seconds: float) -> list[str]:
    """Return the command line of a process: the only place that knows how one is started."""
    wanted = json.dumps({"columns": entrant.columns, "left_out": entrant.left_out})
    arguments = [entrant.framework, key, wanted, f"{settle_seconds}"]
    peer = PEERS.get(entrant.framework)
    python = sys.executable if peer is None else str(peer / "bin" / "python")
    # As a user would start it: the settings of the process are measured, then the program runs.
    launcher = ["-m", "benchmarks.measured"] if LOOPWRIGHT in entrant.columns else []
    return [python, *launcher, "-m", "benchmarks.contender", *arguments]


def environment(entrant: Entrant, cache_directory: Path | str) -> dict[str, str]:
    """Return its environment: of the settings that peers may use, only its own."""
    decided = (
        *("TF_ENABLE_ONEDNN_OPTS", "TF_NUM_INTRAOP_THREADS"),
        *("OMP_NUM_THREADS", "KERAS_BACKEND", "NPROC"),
    )
    inherited = {name: value for name, value in os.environ.items() if name not in decided}
    return {
        "TF_CPP_MIN_LOG_LEVEL": "2",
        **inherited,
        **entrant.variables,
        "LOOPWRIGHT_CACHE_DIR": str(cache_directory),
    }
