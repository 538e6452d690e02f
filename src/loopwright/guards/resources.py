"""Resources of a traced step other than variables: queues, tables, iterators, writers."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from loopwright.compat import tensorflow_internals
from loopwright.compat.lines import place_of
from loopwright.errors import StepError

_READS = ("LookupTableFind", "LookupTableSize", "LookupTableExport")
"""Prefixes of operations that do not change a table: one that is only read is of the program."""
_OUTPUT_ONLY = ("Write", "FlushSummaryWriter", "CloseSummaryWriter", "CreateSummary", "ImportEvent")
"""Prefixes of operations on summary writers: the step never reads what they write."""
_LOCAL = ("Anonymous", "Dummy", "TensorArray", "Stack", "SummaryWriter", "Placeholder")
"""Prefixes of operations that make a resource for one step, an empty one, or a writer."""
_PASSES = frozenset(["Identity", "IdentityN", "Switch", "RefSwitch", "Merge", "Enter", "Exit"])


@dataclass(frozen=True)
class Resource:
    """Something with a state of its own that a step uses and no checkpoint saves."""

    handle: Any
    """Its eager handle; None if the step creates it."""
    made_by: str
    """The operation that creates it; empty if it comes from outside."""
    operations: frozenset[str]
    """The types of operations that use it."""
    place: str
    """The line of the step, as the end of a sentence."""

    @property
    def is_changed(self) -> bool:
        """Return whether the step may change it: any operation not known to leave it unchanged."""
        is_dataset = self.handle is not None and self.handle.dtype == tf.variant
        changing = [op for op in self.operations if not op.startswith((*_READS, *_OUTPUT_ONLY))]
        return bool(self.made_by) or is_dataset or bool(changing)

    def __str__(self) -> str:
        used = ", ".join(sorted(self.operations))
        made = f"{self.made_by}, created inside the step" if self.made_by else ""
        return f"{made} ({used})" if made and used else made or f"a resource used by {used}"


def touched(graph: Any) -> tuple[Resource, ...]:
    """Return every resource that a graph and its functions use."""
    uses: dict[Any, set[str]] = {}
    places: dict[Any, str] = {}
    outside: dict[Any, Any] = {}
    made: dict[Any, str] = {}

    def visit(graph: Any, known: dict[str, Any]) -> None:
        for name, value in tensorflow_internals.captured_values(graph).items():
            is_resource = value.dtype in (tf.resource, tf.variant)
            if is_resource and not tensorflow_internals.is_variable_handle(value):
                outside[id(value)] = value
                known.setdefault(name, id(value))
        for op in graph.get_operations():
            keys = [known[tensor.name] for tensor in op.inputs if tensor.name in known]
            inner = tensorflow_internals.inner_graphs(op)
            for body in inner:
                pairs = tensorflow_internals.inner_inputs(op, body)
                visit(body, {i.name: known[o.name] for o, i in pairs if o.name in known})
            if not inner and op.type not in _PASSES:
                for key in keys:
                    uses.setdefault(key, set()).add(op.type)
                    places.setdefault(key, place_of(op))
            given = [tensor for tensor in op.outputs if _is_handle(tensor)]
            if keys:
                known |= {tensor.name: keys[0] for tensor in given}
            elif given and not op.inputs and not inner and not op.type.startswith(_LOCAL):
                key = (id(graph), op.name)
                made[key], places[key], uses[key] = op.type, place_of(op), set()
                known |= {tensor.name: key for tensor in given}

    visit(graph, {})
    return tuple(
        Resource(outside.get(key), made.get(key, ""), frozenset(operations), places[key])
        for key, operations in uses.items()
    )


def _is_handle(tensor: Any) -> bool:
    return tensor.dtype == tf.resource or tensor.dtype != tensor.dtype.base_dtype


def require_saved(title: str, resources: Iterable[Resource]) -> None:
    """Raise if a step changes a resource: no checkpoint holds it."""
    _require_unchanged(
        resources,
        f"{title} uses a state that no checkpoint holds{{}}: a resumed run would compute different "
        "numbers.",
        expected="variables, keras.random.SeedGenerator or tf.random.Generator as state",
        do="keep the values in a tf.Variable of the task (a ring buffer: "
        "self.buffer.scatter_nd_update([[self.step % size]], [value])), pass them as data to fit, "
        "or train without run_dir",
    )


def require_separate(title: str, tested: Iterable[Resource], trained: Iterable[Resource]) -> None:
    """Raise if a test step changes a resource of the train step: it would affect training."""
    used = {id(resource.handle) for resource in trained if resource.handle is not None}
    _require_unchanged(
        [resource for resource in tested if id(resource.handle) in used],
        f"{title} changes a state that train_step uses{{}}: validation would change the training.",
        expected="a test_step that does not change queues and tables of the training",
        do="use a queue or table of its own in test_step, or variables of the task, which are "
        "restored after validation",
    )


def require_skippable(title: str, resources: Iterable[Resource]) -> None:
    """Raise if a step changes a resource, which cannot be restored when the step is skipped."""
    _require_unchanged(
        resources,
        f"{title} changes a state that a skipped step cannot restore{{}}.",
        expected='variables of the task as state, with on_nan="skip"',
        do='keep the values in a tf.Variable of the task, or pass on_nan="raise"',
    )


def _require_unchanged(resources: Iterable[Resource], text: str, *, expected: str, do: str) -> None:
    """Raise if the step changes one of these; `text` has a place for the line of the first."""
    changed = [resource for resource in resources if resource.is_changed]
    if changed:
        received = "; ".join(dict.fromkeys(map(str, changed)))
        text = text.format(changed[0].place)
        raise StepError(text, expected=expected, received=received, do=do)
