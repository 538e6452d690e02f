"""Several devices, several machines: the cluster, the strategy, replicas, the team of workers.

Knows no task, no data set and no run directory. `cluster.py` and `supervisor.py` import no
TensorFlow: `loopwright launch` needs them.

Open files: cluster, replicas, strategy, supervisor, team.
"""
