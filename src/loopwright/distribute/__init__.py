"""Several devices and several machines.

Never: knows a task, a data set or a run directory; lets workers differ in what they do next.

Open files: cluster, replicas, strategy, supervisor, team.
"""
