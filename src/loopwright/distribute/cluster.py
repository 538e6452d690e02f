"""The cluster that a process belongs to, from `TF_CONFIG` or the variables of SLURM.

TensorFlow, Kubeflow, Ray and `loopwright launch` set `TF_CONFIG`.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loopwright.errors import ConfigurationError

_FIRST_PORT = 20_000
_PORTS = 10_000


@dataclass(frozen=True)
class Cluster:
    """The addresses of all workers by job, and the job and index of this one."""

    jobs: Mapping[str, tuple[str, ...]]
    """`{"worker": ("a:1", "b:1")}`; a `chief` comes before the workers."""
    job: str
    task: int

    @property
    def is_chief(self) -> bool:
        """Whether this is the first worker."""
        return self.job == next(iter(self.jobs)) and self.task == 0


def found(environment: Mapping[str, str]) -> Cluster | None:
    """Return the cluster that this process belongs to; None if it trains alone.

    >>> config = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}'
    >>> found({"TF_CONFIG": config})
    Cluster(jobs={'worker': ('a:1', 'b:1')}, job='worker', task=1)
    >>> found({}) is None
    True
    """
    text = environment.get("TF_CONFIG", "").strip()
    cluster = _of_tf_config(text) if text else _of_slurm(environment)
    if cluster is None or sum(map(len, cluster.jobs.values())) < 2:
        return None
    return cluster


def tf_config(addresses: list[str], index: int) -> str:
    """Return the `TF_CONFIG` for one of several workers."""
    return json.dumps(
        {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
    )


def _of_tf_config(text: str) -> Cluster | None:
    try:
        content: Any = json.loads(text)
        known = {job: tuple(map(str, content.get("cluster", {}).get(job, ()))) for job in _JOBS}
        jobs = {job: addresses for job, addresses in known.items() if addresses}
        if not jobs:
            return None
        job, task = str(content["task"]["type"]), int(content["task"]["index"])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _wrong(f"{type(error).__name__}: {error}") from None
    if job not in jobs or not 0 <= task < len(jobs[job]):
        raise _wrong(f"task {task} of type {job!r} in a cluster of {dict(jobs)}")
    return Cluster(jobs, job, task)


_JOBS = ("chief", "worker")


def _wrong(received: str) -> ConfigurationError:
    return ConfigurationError(
        "TF_CONFIG is invalid.",
        expected='{"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", '
        '"index": 0}}, with a task that is one of the workers',
        received=received[:500],
        do="correct it where this process is started, or unset TF_CONFIG to train alone",
    )


def _of_slurm(environment: Mapping[str, str]) -> Cluster | None:
    """Return the tasks of a SLURM job step, in the order of their ranks.

    TensorFlow's own resolver sorts hosts alphabetically, so that node10 gets the rank of node9;
    without GPUs it fails.
    """
    names = ("SLURM_PROCID", "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE")
    if not all(environment.get(name) for name in names):
        return None
    rank, nodes, tasks = (environment[name] for name in names)
    try:
        hosts, counts = expanded_hosts(nodes), expanded_counts(tasks)
        port = _FIRST_PORT + int(environment.get("SLURM_JOB_ID", "0")) % _PORTS
        addresses = tuple(
            f"{host}:{port + place}"
            for host, count in zip(hosts, counts, strict=True)
            for place in range(count)
        )
        if not 0 <= int(rank) < len(addresses):
            raise ValueError(f"task {rank} of {len(addresses)}")
    except ValueError as error:
        raise ConfigurationError(
            "The variables of SLURM do not match.",
            expected="SLURM_PROCID, SLURM_STEP_NODELIST and SLURM_STEP_TASKS_PER_NODE of a job",
            received=f"{rank}, {nodes}, {tasks}: {error}",
            do='start it with srun, or train alone with strategy="none"',
        ) from None
    return Cluster({"worker": addresses}, "worker", int(rank))


def expanded_hosts(text: str) -> list[str]:
    """Return the hosts in a SLURM node list.

    >>> expanded_hosts("gpu,node[08-10,12]")
    ['gpu', 'node08', 'node09', 'node10', 'node12']
    """
    hosts: list[str] = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        spelled = re.fullmatch(r"([^\[\]]*)(?:\[([\d,-]+)\]([^\[\]]*))?", part)
        if spelled is None:
            raise ValueError(f"{part!r} is not a list of hosts")
        before, ranges, behind = spelled.groups(default="")
        for each in ranges.split(","):
            first, _, last = each.partition("-")
            numbers = range(int(first), int(last or first) + 1) if each else []
            hosts += [f"{before}{n:0{len(first)}d}{behind}" for n in numbers] or [before]
    return hosts


def expanded_counts(text: str) -> list[int]:
    """Return how many tasks each host has.

    >>> expanded_counts("2(x3),1")
    [2, 2, 2, 1]
    """
    found: list[int] = []
    for part in text.split(","):
        spelled = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if spelled is None:
            raise ValueError(f"{part!r} is not a count of tasks")
        found += [int(spelled[1])] * int(spelled[2] or 1)
    return found
