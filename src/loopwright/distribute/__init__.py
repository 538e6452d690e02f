"""Several devices and several machines.

Never: knows a task, a data set or a run directory; lets workers differ in what they do next.
Open to other rooms: `strategy.py` (`strategy_for`), `team.py` (`Team`, `Agreement`), `replicas.py`,
`cluster.py` and `supervisor.py`. The last two import no TensorFlow: `loopwright launch` uses them.
"""
