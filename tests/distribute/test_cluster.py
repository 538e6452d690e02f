"""Who trains together, as it is told by TF_CONFIG and by SLURM."""

import json
from typing import Any

import pytest

from loopwright.distribute import cluster
from loopwright.errors import ConfigurationError

WORKERS = ["10.0.0.1:2222", "10.0.0.2:2222"]


def config(**parts: Any) -> dict[str, str]:
    content = {"cluster": {"worker": WORKERS}, "task": {"type": "worker", "index": 1}, **parts}
    return {"TF_CONFIG": json.dumps(content)}


SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_STEP_NODELIST": "node[9-10]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_JOB_ID": "70123",
}


NODES = ("node9:20123", "node9:20124", "node10:20123", "node10:20124")


@pytest.mark.parametrize(
    ("environment", "workers", "index"),
    [
        (config(), tuple(WORKERS), 1),
        ({"TF_CONFIG": cluster.tf_config(WORKERS, 0)}, tuple(WORKERS), 0),
        (SLURM, NODES, 3),
        ({**SLURM, **config()}, tuple(WORKERS), 1),
    ],
    ids=["TF_CONFIG", "of the launcher", "SLURM, in the order of its nodes", "both"],
)
def test_the_environment_tells_who_trains_together(environment: Any, workers: Any, index: int):
    assert cluster.found(environment) == cluster.Cluster({"worker": workers}, "worker", index)


def test_what_kubeflow_writes_tells_of_a_chief_before_the_workers():
    jobs = {"chief": ["job-chief-0:2222"], "worker": ["job-worker-0:2222"]}
    found = cluster.found(config(cluster=jobs, task={"type": "chief", "index": 0}))
    assert found is not None
    assert list(found.jobs) == ["chief", "worker"]
    assert (found.job, found.task, found.is_chief) == ("chief", 0, True)
    other = cluster.found(config(cluster=jobs, task={"type": "worker", "index": 0}))
    assert other is not None
    assert not other.is_chief


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"TF_CONFIG": " "},
        {"TF_CONFIG": "{}"},
        config(cluster={"worker": WORKERS[1:]}, task={"type": "worker", "index": 0}),
        {"SLURM_PROCID": "0", "SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"},
    ],
    ids=["nothing", "empty", "no cluster", "one worker", "no srun"],
)
def test_one_process_trains_alone(environment: dict[str, str]):
    assert cluster.found(environment) is None


@pytest.mark.parametrize(
    "environment",
    [
        {"TF_CONFIG": "{"},
        {"TF_CONFIG": "[]"},
        config(task={}),
        config(task={"type": "worker", "index": 2}),
        config(task={"type": "evaluator", "index": 0}),
    ],
    ids=["no json", "a list", "no task", "no such worker", "an evaluator"],
)
def test_a_tf_config_that_fits_nobody_is_refused_in_words(environment: dict[str, str]):
    with pytest.raises(ConfigurationError, match="TF_CONFIG is invalid") as refusal:
        cluster.found(environment)
    assert "unset TF_CONFIG" in str(refusal.value)


def test_slurm_variables_that_do_not_fit_are_refused_in_words():
    with pytest.raises(ConfigurationError, match="variables of SLURM"):
        cluster.found({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "1(x3)"})
