"""Signatures: the models of an export, their inputs by name, and examples for each of them."""

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import keras
import numpy as np
import tensorflow as tf

from loopwright.errors import ConfigurationError
from loopwright.export import outputs

EXAMPLES = 8
"""How many examples are compared, unless the caller passes others."""
OTHER_BATCH = 3
"""A batch size that is neither 1 nor the number of examples."""
Origin = Literal["passed", "data", "drawn"]
_NUMBER = "_2"
"""The suffix of a name that would be taken twice."""
_AUTOMATIC = re.compile(r"(input_layer|keras_tensor|input)(_?\d+)*(_\w*)?", re.ASCII)


@final
@dataclass(frozen=True)
class Signature:
    """A model under the name that callers of the export use."""

    name: str
    model: Any
    specs: Any
    """A nest of TensorSpecs, each with the name of its input."""
    examples: Any
    """A nest of tensors like `specs`."""
    origin: Origin
    """Where the examples come from."""
    predict: Callable[[Any], Any] | None = None
    """What is exported instead of the model's own call: the `predict_step` of its task."""
    resources: Sequence[Any] = ()
    """Tables that `predict` may use."""

    @property
    def input_names(self) -> list[str]:
        """The names of the inputs, in the order of the flat nest."""
        return [spec.name for spec in tf.nest.flatten(self.specs)]

    @property
    def count(self) -> int:
        """How many examples there are."""
        return next((int(leaf.shape[0]) for leaf in tf.nest.flatten(self.examples)), 0)

    def batch(self, size: int) -> Any:
        """Return `size` of the examples, repeated where there are fewer."""
        indices = tf.range(size) % max(self.count, 1)
        return tf.nest.map_structure(lambda leaf: tf.gather(leaf, indices), self.examples)

    def sizes(self) -> list[int]:
        """Return the batch sizes to compare: all examples, one, and another; or the fixed one."""
        fixed = {spec.shape[0] for spec in tf.nest.flatten(self.specs)} - {None}
        return sorted(fixed) if fixed else sorted({self.count, 1, OTHER_BATCH}, reverse=True)

    def named(self, nest: Any) -> dict[str, Any]:
        """Return the leaves of inputs by their names."""
        return dict(zip(self.input_names, tf.nest.flatten(nest), strict=True))

    def call(self, inputs: Any) -> Any:
        """Return what the export returns for these inputs."""
        if self.predict is not None:
            return self.predict(inputs)
        return self.model(inputs, training=False)

    def flat_call(self, *leaves: Any) -> dict[str, Any]:
        """Call with the inputs one by one; return the outputs by plain names."""
        found = outputs.named(self.call(tf.nest.pack_sequence_as(self.specs, leaves)))
        names = flat_names(list(found))
        return {names[path]: tensor for path, tensor in found.items()}


def flat_names(paths: Sequence[str]) -> dict[str, str]:
    """Return the names of outputs, by their paths, in a file whose outputs are not nested.

    >>> flat_names(["", "heads/1", "logits"])
    {'': 'output_0', 'heads/1': 'heads_1', 'logits': 'logits'}
    """
    wanted = [f"output_{path or 0}" if not path or path[0].isdigit() else path for path in paths]
    return dict(zip(paths, _unique(wanted), strict=True))


def _unique(wanted: Sequence[str]) -> list[str]:
    """Return a different name of letters, digits and `_` for each; such a name stays as it is."""
    plain = [re.sub(r"\W", "_", name) for name in wanted]
    names = dict[int, str]()
    for place in sorted(range(len(wanted)), key=lambda at: plain[at] != wanted[at]):
        name = plain[place]
        while name in names.values():
            name += _NUMBER
        names[place] = name
    return [names[place] for place in range(len(wanted))]


def renamed(
    given: Sequence[Signature], expected: Mapping[Any, Mapping[str, Any]]
) -> dict[str, str]:
    """Return the names of a file that differ from those of inputs and outputs by a number."""
    named = [("input", *pair) for one in given for pair in outputs.leaves(one.specs)]
    named = [(kind, path, leaf.name) for kind, path, leaf in named]
    named += [("output", *pair) for own in expected.values() for pair in flat_names([*own]).items()]
    numbered = [each for each in named if each[1] != each[2] and each[2].endswith(_NUMBER)]
    return {f"{kind} {path!r}": name for kind, path, name in numbered}


def signatures(
    models: Mapping[str, keras.Model],
    passed: Mapping[str, Any] | None,
    data: Any,
    batch_size: int | None = None,
) -> list[Signature]:
    """Return the signatures of models, with examples: passed, of the data, or drawn.

    `data` is a batch of the run; a model that does not accept its inputs gets drawn numbers.
    """
    return [_signature(name, models[name], passed or {}, data, batch_size) for name in models]


def _signature(
    name: str, model: Any, passed: Mapping[str, Any], data: Any, batch_size: int | None
) -> Signature:
    origin: Origin = "drawn"
    if passed.get(name) is not None:
        given = tf.nest.map_structure(tf.constant, passed[name])
        fitting = _in_declared_dtypes(declared_inputs(model), given)
        origin, examples = "passed", given if fitting is None else fitting
    else:
        examples = None if data is None else _accepted(model, data)
        origin = "drawn" if examples is None else "data"
        examples = drawn(model) if examples is None else examples
    declared = declared_inputs(model)
    like = examples if declared is None else declared
    fixed = {leaf.shape[0] for leaf in tf.nest.flatten(like)} if declared is not None else {None}
    size = batch_size or (fixed.pop() if len(fixed) == 1 else None)
    names = iter(_input_names(like))
    specs = tf.nest.map_structure(
        lambda leaf: tf.TensorSpec([size, *leaf.shape[1:]], leaf.dtype, name=next(names)), like
    )
    return Signature(name, model, specs, examples, origin)


def _input_names(inputs: Any) -> list[str]:
    """Return a name for each leaf: its key, the name of its `keras.Input`, or `inputs`."""
    names = list[str]()
    for path, leaf in outputs.leaves(inputs):
        own = "" if isinstance(leaf, tf.Tensor) else getattr(leaf, "name", "")
        own = "" if _AUTOMATIC.fullmatch(own) else own
        last = path.rpartition("/")[2]
        has_key = path and not last.isdigit()
        names.append(path if has_key else own or f"inputs_{path}".rstrip("_"))
    return _unique(names)


def _accepted(model: keras.Model, batch: Any) -> Any:
    """Return the inputs of a batch in the dtypes of a model; None if the model takes others."""
    has_labels = isinstance(batch, tuple) and len(batch) in (1, 2, 3)
    given, declared = batch[0] if has_labels else batch, declared_inputs(model)
    if not all(isinstance(leaf, tf.Tensor) for leaf in tf.nest.flatten(given)):
        return None
    if declared is None:
        if not model.built:
            return None
        try:
            model(given, training=False)
        except Exception:  # of the user's call: it takes something else
            return None
        return given
    if isinstance(declared, Mapping) and isinstance(given, Mapping):
        given = {key: given[key] for key in declared if key in given}
    return _in_declared_dtypes(declared, given)


def _in_declared_dtypes(declared: Any, given: Any) -> Any:
    """Return inputs in the dtypes that a model declares; None if their structure differs."""
    if declared is None:
        return None
    with contextlib.suppress(TypeError, ValueError):
        tf.nest.assert_same_structure(declared, given)
        pairs = list(zip(tf.nest.flatten(declared), tf.nest.flatten(given), strict=True))
        if all(_fits(spec, leaf) for spec, leaf in pairs):
            cast = [tf.cast(leaf, spec.dtype) if spec.dtype != "string" else leaf
                    for spec, leaf in pairs]  # fmt: skip
            return tf.nest.pack_sequence_as(given, cast)
    return None


def _fits(spec: Any, leaf: tf.Tensor) -> bool:
    wanted = tf.as_dtype(spec.dtype)
    is_alike = (wanted.is_floating, wanted == tf.string, wanted.is_bool) == (
        leaf.dtype.is_floating,
        leaf.dtype == tf.string,
        leaf.dtype.is_bool,
    )
    return is_alike and tf.TensorShape([None, *spec.shape[1:]]).is_compatible_with(leaf.shape)


def first_examples(dataset: tf.data.Dataset, count: int) -> Any:
    """Return the first batches of a dataset as one batch of at most `count`; None if not dense."""
    specs = tf.nest.flatten(dataset.element_spec)
    if not specs or not all(isinstance(spec, tf.TensorSpec) and spec.shape != [] for spec in specs):
        return None
    if all(spec.shape[1:].is_fully_defined() for spec in specs):
        return next(iter(dataset.unbatch().batch(count)), None)
    # The next batch may have sequences of another length.
    first = next(iter(dataset), None)
    return None if first is None else tf.nest.map_structure(lambda leaf: leaf[:count], first)


def drawn(model: keras.Model) -> Any:
    """Draw examples from the shapes and dtypes of a model's inputs, the same every time."""
    declared = declared_inputs(model)
    if declared is None:
        raise ConfigurationError(
            f"The inputs of {model.name} are unknown.",
            expected="a functional or Sequential model with keras.Input, or examples",
            received=f"a {type(model).__name__} without declared inputs",
            do='pass some: export(..., examples={"serve": x[:8]})',
        )
    random = np.random.default_rng(0)

    def draw(spec: Any) -> Any:
        dtype = tf.as_dtype(spec.dtype)
        shape = [spec.shape[0] or EXAMPLES, *(size or EXAMPLES for size in spec.shape[1:])]
        if dtype == tf.string:
            return tf.strings.as_string(random.integers(0, 10, shape))
        if dtype.is_bool:
            return tf.constant(random.integers(0, 2, shape) == 1)
        if dtype.is_integer:
            return tf.constant(random.integers(0, 2, shape), dtype)
        return tf.constant(random.normal(size=shape), dtype)

    return tf.nest.map_structure(draw, declared)


def declared_inputs(model: keras.Model) -> Any:
    """Return the declared inputs of a functional or Sequential model; None for others."""
    with contextlib.suppress(AttributeError, ValueError):
        return model.input
    inputs = getattr(model, "inputs", None) or []  # a Sequential model has one
    return inputs[0] if len(inputs) == 1 else None


def require_dense(given: Sequence[Signature]) -> None:
    """Raise if an input is ragged or sparse: converted files have dense tensors only."""
    for one in given:
        for leaf in tf.nest.flatten(one.examples):
            if not isinstance(leaf, tf.Tensor):
                raise ConfigurationError(
                    f"An input of {one.name!r} is not a dense tensor.",
                    expected="dense inputs, which LiteRT and ONNX files have",
                    received=type(leaf).__name__,
                    do="export a model of dense inputs, or a saved_model",
                )
