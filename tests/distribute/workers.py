"""Workers as real processes of this machine, which find each other by what they are told."""

import contextlib
import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

from tests.resume.children import Child

from loopwright.distribute.cluster import tf_config
from loopwright.distribute.supervisor import free_ports


def tf_configs(count: int) -> list[dict[str, str]]:
    """What `loopwright launch` tells each worker."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(count)]
    return [{"TF_CONFIG": tf_config(addresses, index)} for index in range(count)]


def slurm_variables(count: int) -> list[dict[str, str]]:
    """What `srun` tells each task of a step on one node."""
    known = {
        "SLURM_JOB_ID": str(_free_job(count)),
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_TASKS_PER_NODE": str(count),
    }
    return [{**known, "SLURM_PROCID": str(index)} for index in range(count)]


def _free_job(ports: int) -> int:
    """A job whose ports are free: they follow from its number."""
    for job in range(os.getpid() % 5000, 9000, 7):
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for number in range(ports):
                held.enter_context(socket.socket()).bind(("127.0.0.1", 20_000 + job + number))
            return job
    raise AssertionError("no free ports")


@final
class Workers:
    """So many processes that call the same function together; one process trains alone."""

    def __init__(
        self,
        logs: Path,
        count: int,
        function: Callable[..., Any],
        *arguments: Any,
        told: Callable[[int], list[dict[str, str]]] = tf_configs,
    ) -> None:
        environments = told(count) if count > 1 else [dict[str, str]()]
        self.each = [
            Child(logs / f"{index}.log", _as_worker, environment, function, *arguments)
            for index, environment in enumerate(environments)
        ]

    def ended(self, seconds: float = 240) -> list[tuple[int, str]]:
        """Their exit codes and what they have printed."""
        end = time.monotonic() + seconds
        try:
            return [child.ended(max(1.0, end - time.monotonic())) for child in self.each]
        finally:
            for child in self.each:
                child.send(9)


def _as_worker(
    environment: Mapping[str, str], function: Callable[..., Any], *arguments: Any
) -> None:
    os.environ.update(environment)
    function(*arguments)
