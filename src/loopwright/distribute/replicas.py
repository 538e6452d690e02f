"""Replicas: what each of them keeps for itself, and what becomes of it with more or fewer of them.

Metrics, seeds and the statistics of batch norm are named once for each replica of all workers:
`accuracy.total.replicas[1]`.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

_NAME = re.compile(r"(.*)\.replicas\[(\d+)\]")


def is_of_one(name: str, variable: Any) -> bool:
    """Whether a variable belongs to one of several replicas; all others are held as one by all."""
    is_one = not isinstance(variable, tf.distribute.DistributedValues)
    return is_one and _NAME.fullmatch(name) is not None


def renumbered(name: str, by: int) -> str:
    """What it is called for a replica further on.

    >>> renumbered("accuracy.total.replicas[1]", 2)
    'accuracy.total.replicas[3]'
    """
    return _NAME.sub(lambda found: f"{found[1]}.replicas[{int(found[2]) + by}]", name)


def without_numbers(table: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A table of variables in which those of all replicas are one."""
    rows = {_variable(row["name"]): row for row in table}
    return [{**row, "name": name} for name, row in rows.items()]


def shared_out(saved: Mapping[str, Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Saved tensors for the replicas that there are now, by the names that `named` has.

    As many as before: each gets its own. Of others, the first one gets the sum of what is summed
    up, and each the mean of what is averaged; what else there is, like seeds, is the first one's.

    >>> total = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)
    >>> two = {f"total.replicas[{i}]": tf.constant(float(i + 1)) for i in (0, 1)}
    >>> float(shared_out(two, {"total": total})["total"])
    3.0
    """
    before, found = _grouped(saved), dict(saved)
    for variable, names in _grouped(named).items():
        values = [saved[name] for name in before.get(variable, ())]
        if not values or len(values) == len(names):
            continue
        kind = getattr(named[names[0]], "aggregation", None)
        if kind == tf.VariableAggregation.SUM:
            rest = [tf.zeros_like(values[0])] * (len(names) - 1)
            found |= dict(zip(names, [tf.add_n(values), *rest], strict=True))
        else:
            is_mean = kind == tf.VariableAggregation.MEAN
            found |= dict.fromkeys(names, tf.add_n(values) / len(values) if is_mean else values[0])
    return found


def _grouped(names: Mapping[str, Any]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(_variable(name), []).append(name)
    return {variable: sorted(group, key=_number) for variable, group in groups.items()}


def _variable(name: str) -> str:
    found = _NAME.fullmatch(name)
    return name if found is None else found[1]


def _number(name: str) -> int:
    found = _NAME.fullmatch(name)
    return 0 if found is None else int(found[2])
