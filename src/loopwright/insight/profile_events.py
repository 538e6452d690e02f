"""What a profile recorded, by operation and by stage of the data."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import keras

from loopwright.compat.error_messages import place_of
from loopwright.compat.runtime_errors import place_of_node
from loopwright.compat.xplane import Recorded
from loopwright.task import variables
from loopwright.task.optimizers import optimizers
from loopwright.task.task import Task

_OPERATION = re.compile(r"^[^\s:]+:(_?[A-Z]\w*)$")
_CONTROL = re.compile(
    r"While|If|Case|\w*PartitionedCall|\w*Iterator\w*|\w*Optional\w*|\w*Dataset\w*|_?Xla\w*|"
    r"_Arg|_Retval|NoOp|Switch|Merge|Enter|Exit|NextIteration|LoopCond"
)
_ASYNCHRONOUS = ("Prefetch", "ParallelMap", "MapAndBatch", "ParallelInterleave", "ParallelBatch")
_LIMITING = 0.3
_WHOLE_BATCH = 0.02
"""Stages below this share of the busiest are left out."""


@final
@dataclass(frozen=True)
class OperationTime:
    """The time of one kind of operation at one place."""

    operation: str
    origin: str
    """The layer, the optimizer or the line that it comes from."""
    seconds_per_step: float
    """Of all threads together."""
    share: float
    """Of the time of all operations."""
    calls_per_step: float


@final
@dataclass(frozen=True)
class StageTime:
    """The time of one stage of a tf.data pipeline, without that of the stages before it."""

    name: str
    seconds_per_step: float
    is_limit: bool = False
    """Whether it is the busiest one of a pipeline that the step waits for."""


@final
class Origins:
    """Finds where an operation comes from, by its path in the trace."""

    def __init__(self, task: Task, graph: Any) -> None:
        parts = [part.value for part in variables.all_parts(task)]
        self._layers = {
            part.name: type(part).__name__
            for part in parts
            if isinstance(part, keras.Layer) and not isinstance(part, keras.Model)
        }
        models = [part for part in parts if isinstance(part, keras.Model)]
        self._pairs = {(model.name, layer.name) for model in models for layer in model.layers}
        self._optimizers = {one.name: path for path, one in optimizers(task).items()}
        self._graphs = [] if graph is None else [graph]
        self._known: dict[str, str] = {}

    def of(self, path: str) -> str:
        """Return the origin in a few words.

        A layer with its name, an optimizer, a line of the step, or the last names of the path.
        """
        if path not in self._known:
            self._known[path] = self._found(path)
        return self._known[path]

    def _found(self, path: str) -> str:
        backward = ", backward" if "gradient_tape" in path else ""
        names = path.split("/")
        # A step that is traced again has its models and layers under names with one more number.
        shorter = [re.sub(r"_\d+$", "", name) for name in names]
        layer = self._layer(names) or self._layer(shorter)
        if layer is None:
            layer = next((n for n in reversed([*shorter, *names]) if n in self._layers), None)
        if layer is not None:
            return f"{layer}{backward} ({self._layers[layer]})"
        for name in (*names, *shorter):
            if name in self._optimizers:
                return f"{self._optimizers[name]} (update)"
        line = place_of_node(path, self._graphs, place_of)
        written = re.search(r'file "([^"]+)", line (\d+)', line)
        if written:
            return f"{written[1]}:{written[2]}{backward}"
        inner = [name for name in path.split("/") if not re.fullmatch(_SCOPES, name)]
        return "/".join(inner[-2:]) + backward

    def _layer(self, names: Sequence[str]) -> str | None:
        """Return the innermost layer in a path below the model that has it."""
        for place in reversed(range(len(names))):
            if names[place] in self._layers and any(
                (model, names[place]) in self._pairs for model in names[:place]
            ):
                return names[place]
        return None


_SCOPES = r"while|cond|body|then|else|_\d+|gradient_tape|StatefulPartitionedCall\w*"


def operation_times(
    recorded: Iterable[Recorded], steps: int, origins: Origins
) -> list[OperationTime]:
    """Return the time of each kind of operation by its origin, the longest first."""
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    calls: dict[tuple[str, str], int] = defaultdict(int)
    for event in recorded:
        kind = _OPERATION.match(event.name)
        # The pipeline has operations of its own: they are in its stages.
        if kind is None or _CONTROL.fullmatch(kind[1]) or "tf_data" in event.thread:
            continue
        key = kind[1].lstrip("_"), origins.of(event.name.rpartition(":")[0])
        seconds[key] += event.seconds
        calls[key] += 1
    total = sum(seconds.values()) or 1.0
    return [
        OperationTime(kind, origin, spent / steps, spent / total, calls[kind, origin] / steps)
        for (kind, origin), spent in sorted(seconds.items(), key=lambda item: -item[1])
    ]


def stage_times(recorded: Sequence[Recorded], steps: int, *, waited: float) -> list[StageTime]:
    """Return how busy each stage of a pipeline was, the busiest first; none without a pipeline.

    `waited` are the seconds for which the steps waited. If no stage was busy for a good part of
    them, none limits: handing batches from thread to thread takes the time.
    """
    by_thread: dict[str, list[Recorded]] = defaultdict(list)
    for event in recorded:
        if _stage(event.name):
            by_thread[event.thread].append(event)
    busy: dict[str, float] = defaultdict(float)
    for events in by_thread.values():
        for event, own in _own_seconds(events):
            if not _is_waiting(event.name):
                busy[_stage(event.name)] += own
    found = [
        StageTime(name, seconds / steps)
        for name, seconds in sorted(busy.items(), key=lambda item: -item[1])
        if seconds > _WHOLE_BATCH * max(busy.values())
    ]
    if found and waited and found[0].seconds_per_step * steps >= _LIMITING * waited:
        found[0] = replace(found[0], is_limit=True)
    return found


def _stage(name: str) -> str:
    """Return the stage that an event belongs to; empty if it is not one of a pipeline.

    >>> _stage("Iterator::Root::Prefetch::ForeverRepeat[0]::Map"), _stage("MapAndBatchProduce")
    ('Map', 'MapAndBatch')
    """
    if name.startswith("Iterator::"):
        return re.sub(r"\[\d+\]", "", name).rpartition("::")[2]
    made = re.fullmatch(r"(\w+)Produce", name)
    return made[1] if made else ""


def _is_waiting(name: str) -> bool:
    """Return whether the thread that calls this stage only waits for what others make."""
    return name.startswith("Iterator::") and _stage(name) in (*_ASYNCHRONOUS, "Root")


def _own_seconds(events: Sequence[Recorded]) -> list[tuple[Recorded, float]]:
    """Return each event of one thread with its seconds, without those of events inside it."""
    ordered = sorted(events, key=lambda event: (event.start, -event.seconds))
    inner = [0.0] * len(ordered)
    stack: list[int] = []
    for place, event in enumerate(ordered):
        while stack and ordered[stack[-1]].end <= event.start:
            stack.pop()
        if stack:
            inner[stack[-1]] += event.seconds
        stack.append(place)
    return [(event, event.seconds - spent) for event, spent in zip(ordered, inner, strict=True)]
