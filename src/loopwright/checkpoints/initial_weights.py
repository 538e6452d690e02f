"""Initial weights of a task, from another run or a file, matched by name.

start_from(task, "runs/pretrained")
"""

import os
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import keras
import tensorflow as tf

from loopwright.checkpoints import tensors
from loopwright.checkpoints.manifest import DamagedError, verified
from loopwright.checkpoints.store import Store
from loopwright.errors import ConfigurationError, message
from loopwright.step_warnings import warn_at_call
from loopwright.task import variables

Shapes = Mapping[str, tuple[int, ...]]
KINDS = "a run directory or a checkpoint in it, a .weights.h5 file, a tf.train.Checkpoint prefix"

_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


@dataclass(frozen=True)
class Match:
    """The weights of a task compared with those of a source, by name and shape."""

    matched: list[str]
    missing: list[str]
    """Weights of the task that the source lacks, or has in a different shape: left unchanged."""
    unused: list[str]
    """Weights of the source that the task lacks."""


def start_from(task: Any, source: str) -> None:
    """Load the weights of `source` whose names and shapes match into a task.

    Optimizers, metrics and seeds keep their initial state. A partial match is a warning, no match
    an error.
    """
    match, load = _kind(Path(source))(task, Path(source))
    if not match.matched:
        raise ConfigurationError(
            f"No weight in {source} matches this task.",
            expected=_listed(match.missing),
            received=_listed(match.unused),
            do="check that the model is built, and built like the one that was saved",
        )
    load()
    if match.missing or match.unused:
        warn_at_call(
            message(
                f"{len(match.matched)} weights were loaded from {source}; the others do not match.",
                expected=f"{_listed(match.missing)} (left unchanged)" if match.missing else "",
                received=f"{_listed(match.unused)} (not used)" if match.unused else "",
                do="nothing, if this is intended",
            )
        )


def _kind(source: Path) -> Callable[[Any, Path], tuple[Match, Callable[[], object]]]:
    if source.name.endswith(".weights.h5") and source.is_file():
        return _from_h5
    if (source / "checkpoints").is_dir() or (source / "manifest.json").is_file():
        return _from_run
    if source.with_name(f"{source.name}.index").is_file():
        return _from_tensorflow
    raise ConfigurationError(
        "Not a source of weights.",
        expected=KINDS,
        received=f"init_from={os.fspath(source)!r}"
        + ("" if source.exists() else ", which does not exist"),
        do="check the path; a .keras file: load it with keras.models.load_model, and make the "
        "task with that model",
    )


def _from_run(task: Any, source: Path) -> tuple[Match, Callable[[], object]]:
    own = _weights(task)
    is_run = (source / "checkpoints").is_dir()
    try:
        found = Store(source / "checkpoints").newest() if is_run else verified(source)
    except DamagedError as damage:
        raise _unreadable(source, str(damage)) from None
    if found is None:
        raise _unreadable(source, "this run has no checkpoint yet")
    prefix = found.path / "state"
    table = {row["name"]: row for row in found.content.get("variables", [])}
    shapes = {name: tuple(row["shape"]) for name, row in table.items()}
    match = _matched(_shapes(own), shapes)
    # State of optimizers, metrics and seeds is not expected to match.
    slots = {name for name in table if any(f"[{other}]" in name for other in table)}
    unused = [name for name in match.unused if "layers[" in name and name not in slots]
    match = Match(match.matched, match.missing, unused)

    def load() -> None:
        wanted = [table[name] for name in match.matched]
        values = tensors.read(prefix, wanted)
        if is_run:  # the weights that fit left behind
            values |= tensors.read_end(found.path, found.content.get("end", {}))
        tensors.assign({n: own[n] for n in match.matched}, values)

    return match, load


def _from_h5(task: Any, source: Path) -> tuple[Match, Callable[[], object]]:
    model = _one_model(task, source)
    # A mismatch is reported here, by name, and not by Keras and NumPy.
    with (
        tempfile.TemporaryDirectory(prefix="loopwright-") as directory,
        warnings.catch_warnings(action="ignore"),
    ):
        own = Path(directory, "own.weights.h5")
        model.save_weights(own)
        match = _matched(_h5_shapes(own), _h5_shapes(source))

    def load() -> None:
        with warnings.catch_warnings(action="ignore"):
            model.load_weights(os.fspath(source), skip_mismatch=bool(match.missing))

    return match, load


def _from_tensorflow(task: Any, source: Path) -> tuple[Match, Callable[[], object]]:
    try:
        reader = tf.train.load_checkpoint(os.fspath(source))
    except Exception as error:  # damaged files raise many kinds
        raise _unreadable(source, str(error)) from None
    shapes = reader.get_variable_to_shape_map()
    found = {
        name.removesuffix(_VALUE): tuple(shape)
        for name, shape in shapes.items()
        if name.endswith(_VALUE) and not name.startswith("save_counter")
    }
    parts = [part for part in variables.parts(task) if part.path.isidentifier()]
    layers = {part.path: part.value for part in parts if isinstance(part.value, keras.Layer)}
    # Saved as Checkpoint(model=...), or a model alone.
    roots = [tf.train.Checkpoint(**layers), *layers.values()]
    tried = [(own := _trackable(root), _matched(_shapes(own), found)) for root in roots]
    own, match = max(tried, key=lambda pair: len(pair[1].matched))

    def load() -> None:
        for name in match.matched:
            own[name].assign(reader.get_tensor(name + _VALUE))

    return match, load


def _trackable(root: Any) -> dict[str, Any]:
    """Return the variables below an object under the names that `tf.train.Checkpoint` uses."""
    view, found = tf.train.TrackableView(root), dict[str, Any]()
    todo, seen = [("", root)], {id(root)}
    while todo:
        path, parent = todo.pop(0)
        for name, child in view.children(parent).items():
            if id(child) not in seen:
                seen.add(id(child))
                here = f"{path}/{name}" if path else name
                if isinstance(child, tf.Variable | keras.Variable):
                    found[here] = child
                todo.append((here, child))
    return found


def _shapes(named: Mapping[str, Any]) -> Shapes:
    return {name: tuple(variable.shape) for name, variable in named.items()}


def _h5_shapes(path: Path) -> Shapes:
    shapes: dict[str, tuple[int, ...]] = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and not name.startswith(("optimizer/", "_")):
            shapes[name] = tuple(item.shape)

    try:
        with h5py.File(path, "r") as file:
            file.visititems(visit)
    except OSError as error:
        raise _unreadable(path, str(error)) from None
    return shapes


def _matched(own: Shapes, found: Shapes) -> Match:
    matched = [name for name, shape in own.items() if found.get(name) == shape]
    missing = [name for name in own if name not in matched]
    return Match(matched, missing, [name for name in found if name not in matched])


def _weights(task: Any) -> dict[str, Any]:
    """Return the weights of layers and the trainable variables of the task itself, by name."""
    layers = variables.of_kind(keras.Layer, task)
    wanted = {id(weight.value) for layer in layers for weight in layer.weights}
    for part in variables.parts(task):
        if isinstance(part.value, tf.Variable | keras.Variable) and part.value.trainable:
            wanted |= {id(variable) for variable in variables.variables(part.value)}
    return {name: v for name, v in variables.named(task).items() if id(v) in wanted}


def _one_model(task: Any, source: Path) -> keras.Model:
    named = getattr(task, "model", None)
    models = [named] if isinstance(named, keras.Model) else variables.of_kind(keras.Model, task)
    if len(models) == 1:
        return models[0]
    raise ConfigurationError(
        "Cannot tell which model these weights belong to.",
        expected="a task with one model, or with one named self.model",
        received=f"{len(models)} models, and {source}",
        do="load them yourself before training: task.generator.load_weights(...)",
    )


def _unreadable(source: Path, reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"The weights in {source} cannot be read.",
        expected=KINDS,
        received=reason,
        do="check the path, or start without init_from",
    )


def _listed(names: list[str]) -> str:
    return ", ".join(variables.shortened(names)) or "nothing"
