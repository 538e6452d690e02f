"""Initial weights: a task starts from those of another run, or of a file, matched by name."""

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

from loopwright import repeatable, state, tensors
from loopwright.checkpoint import Store
from loopwright.errors import ConfigurationError, LoopwrightWarning, message
from loopwright.manifest import DamagedError, verified

Shapes = Mapping[str, tuple[int, ...]]
KINDS = "a run directory or a checkpoint in it, a .weights.h5 file, a tf.train.Checkpoint prefix"


@dataclass(frozen=True)
class Match:
    """Which weights were found under their names."""

    matched: list[str]
    missing: list[str]
    """Of the task, and not in the source, or in another shape: these stay as they were."""
    unused: list[str]
    """Of the source, and not in the task."""


def start_from(task: Any, source: str) -> Match:
    """Gives a task the weights in `source`, as far as names and shapes agree; says which.

    Optimizers, metrics and seeds begin anew. A difference is a warning; no match at all an error.
    """
    match, load = _kind(Path(source))(task, Path(source))
    if not match.matched:
        raise ConfigurationError(
            message(
                f"No weight in {source} fits this task.",
                expected=_listed(match.missing),
                received=_listed(match.unused),
                do="check that the model is built, and built like the one that was saved",
            )
        )
    load()
    if match.missing or match.unused:
        warnings.warn(
            message(
                f"{len(match.matched)} weights were taken from {source}, others were not found.",
                expected=f"{_listed(match.missing)} (left as they were)" if match.missing else "",
                received=f"{_listed(match.unused)} (not used)" if match.unused else "",
                do="nothing, if this is meant",
            ),
            LoopwrightWarning,
            stacklevel=2,
        )
    return match


def _kind(source: Path) -> Callable[[Any, Path], tuple[Match, Callable[[], object]]]:
    if source.name.endswith(".weights.h5") and source.is_file():
        return _from_h5
    if (source / "checkpoints").is_dir() or (source / "manifest.json").is_file():
        return _from_run
    if source.with_name(f"{source.name}.index").is_file():
        return _from_tensorflow
    raise ConfigurationError(
        message(
            "These are no weights to start from.",
            expected=KINDS,
            received=f"init_from={os.fspath(source)!r}"
            + ("" if source.exists() else ", which does not exist"),
            do="check the path; a .keras file: load it with keras.models.load_model, and make the "
            "task with that model",
        )
    )


def _from_run(task: Any, source: Path) -> tuple[Match, Callable[[], object]]:
    own = _weights(task)
    try:
        is_run = (source / "checkpoints").is_dir()
        found = Store(source / "checkpoints").newest() if is_run else verified(source)
    except DamagedError as damage:
        raise ConfigurationError(_unreadable(source, str(damage))) from None
    if found is None:
        raise ConfigurationError(_unreadable(source, "this run has no checkpoint yet"))
    prefix = found.path / "state"
    table = {row["name"]: row for row in found.content["variables"]}
    shapes = {name: tuple(row["shape"]) for name, row in table.items()}
    match = _matched({n: tuple(v.shape) for n, v in own.items()}, shapes)
    # Slots of optimizers and the like are not what anybody looks for here.
    match = Match(match.matched, match.missing, [n for n in match.unused if "layers[" in n])

    def load() -> None:
        wanted = [table[name] for name in match.matched]
        tensors.assign({n: own[n] for n in match.matched}, tensors.read(prefix, wanted))

    return match, load


def _from_h5(task: Any, source: Path) -> tuple[Match, Callable[[], object]]:
    model = _one_model(task, source)
    with tempfile.TemporaryDirectory(prefix="loopwright-") as directory:
        own = os.path.join(directory, "own.weights.h5")
        model.save_weights(own)
        match = _matched(_h5_shapes(Path(own)), _h5_shapes(source))

    def load() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what does not fit is told by us, by name
            model.load_weights(os.fspath(source), skip_mismatch=bool(match.missing))

    return match, load


def _from_tensorflow(task: Any, source: Path) -> tuple[Match, Callable[[], object]]:
    found = _bundle_shapes(source)
    attributes = {p.path: p.value for p in state.parts(task) if isinstance(p.value, keras.Layer)}
    attributes = {name: layer for name, layer in attributes.items() if name.isidentifier()}
    # Saved as Checkpoint(model=...), or a model alone.
    roots = [tf.train.Checkpoint(**attributes)]
    roots += [tf.train.Checkpoint(root=layer) for layer in attributes.values()]
    tried = [(_matched(_own_bundle_shapes(root), found), root) for root in roots]
    match, root = max(tried, key=lambda pair: len(pair[0].matched))
    return match, lambda: root.read(os.fspath(source)).expect_partial()


def _own_bundle_shapes(root: Any) -> Shapes:
    with tempfile.TemporaryDirectory(prefix="loopwright-") as directory:
        return _bundle_shapes(Path(root.write(os.path.join(directory, "own"))))


def _bundle_shapes(prefix: Path) -> Shapes:
    try:
        shapes = tf.train.load_checkpoint(os.fspath(prefix)).get_variable_to_shape_map()
    except Exception as error:  # damaged files raise many kinds
        raise ConfigurationError(_unreadable(prefix, str(error))) from None
    return {
        name.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE"): tuple(shape)
        for name, shape in shapes.items()
        if name.endswith("/.ATTRIBUTES/VARIABLE_VALUE") and "save_counter" not in name
    }


def _h5_shapes(path: Path) -> Shapes:
    shapes: dict[str, tuple[int, ...]] = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and not name.startswith(("optimizer/", "_")):
            shapes[name] = tuple(item.shape)

    try:
        with h5py.File(path, "r") as file:
            file.visititems(visit)
    except OSError as error:
        raise ConfigurationError(_unreadable(path, str(error))) from None
    return shapes


def _matched(own: Shapes, found: Shapes) -> Match:
    matched = [name for name, shape in own.items() if found.get(name) == shape]
    missing = [name for name in own if name not in matched]
    return Match(matched, missing, [name for name in found if name not in matched])


def _weights(task: Any) -> dict[str, Any]:
    """The weights of layers, and trainable variables of the task's own, by name."""
    layers = state.of_kind(keras.Layer, task)
    wanted = {id(weight.value) for layer in layers for weight in layer.weights}
    for part in state.parts(task):
        if isinstance(part.value, tf.Variable | keras.Variable) and part.value.trainable:
            wanted |= {id(variable) for variable in state.variables(part.value)}
    return {name: v for name, v in state.named(task).items() if id(v) in wanted}


def _one_model(task: Any, source: Path) -> keras.Model:
    named = getattr(task, "model", None)
    models = [named] if isinstance(named, keras.Model) else state.of_kind(keras.Model, task)
    if len(models) == 1:
        return models[0]
    raise ConfigurationError(
        message(
            "It is not clear which model these weights belong to.",
            expected="a task with one model, or one that is called self.model",
            received=f"{len(models)} models, and {source}",
            do="load them yourself before training: task.generator.load_weights(...)",
        )
    )


def _unreadable(source: Path, reason: str) -> str:
    return message(
        f"The weights in {source} cannot be read.",
        expected=KINDS,
        received=reason,
        do="check the path, or start without init_from",
    )


def _listed(names: list[str]) -> str:
    return ", ".join(repeatable.shortened(names)) or "nothing"
