"""Why a run could not be resumed bit for bit, in words: what its state would not hold."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from loopwright.errors import message
from loopwright.exactness import BEST_EFFORT

Row = Mapping[str, Any]
"""What a checkpoint knows of a variable beside its bytes: `name`, `dtype`, `shape`."""

MOST_NAMED = 10
"""How many variables of a kind a message names."""

SEED_STATE = "seed_generator_state"
"""What Keras calls the variable of every `SeedGenerator`."""

_KERAS = "keras.random.{0}(..., seed=self.seed)"
_STATELESS = "tf.random.stateless_{0} with a seed from self.seed.next()"
_SAMPLER = "keras.random.categorical(..., seed=self.seed)"
_INSTEAD = {
    "RandomUniform": ("tf.random.uniform or tf.nn.dropout", _KERAS.format("uniform")),
    "RandomUniformInt": ("tf.random.uniform", _KERAS.format("randint")),
    "RandomStandardNormal": ("tf.random.normal", _KERAS.format("normal")),
    "TruncatedNormal": ("tf.random.truncated_normal", _KERAS.format("truncated_normal")),
    "ParameterizedTruncatedNormal": (
        "tf.random.truncated_normal",
        _STATELESS.format("parameterized_truncated_normal"),
    ),
    "RandomGamma": ("tf.random.gamma", _KERAS.format("gamma")),
    "RandomPoisson": ("tf.random.poisson", _STATELESS.format("poisson")),
    "RandomPoissonV2": ("tf.random.poisson", _STATELESS.format("poisson")),
    "RandomShuffle": ("tf.random.shuffle", _KERAS.format("shuffle")),
    "Multinomial": ("tf.random.categorical", _KERAS.format("categorical")),
    "RandomCrop": ("tf.image.random_crop", "keras.layers.RandomCrop"),
    "SampleDistortedBoundingBox": (
        "tf.image.sample_distorted_bounding_box",
        "tf.image.stateless_sample_distorted_bounding_box with a seed from self.seed.next()",
    ),
    "FractionalMaxPool": ("tf.nn.fractional_max_pool", "keras.layers.MaxPooling2D"),
    "FractionalAvgPool": ("tf.nn.fractional_avg_pool", "keras.layers.AveragePooling2D"),
    "UniformCandidateSampler": ("a sampled loss of tf.nn", _KERAS.format("randint")),
    "LogUniformCandidateSampler": ("a sampled loss of tf.nn", _SAMPLER),
    "LearnedUnigramCandidateSampler": ("a sampled loss of tf.nn", _SAMPLER),
    "ThreadUnsafeUnigramCandidateSampler": ("a sampled loss of tf.nn", _SAMPLER),
    "FixedUnigramCandidateSampler": ("a sampled loss of tf.nn", _SAMPLER),
    "AllCandidateSampler": ("a sampled loss of tf.nn", _SAMPLER),
}
_INSTEAD["SampleDistortedBoundingBoxV2"] = _INSTEAD["SampleDistortedBoundingBox"]


def unrepeatable(operations: Iterable[str]) -> list[str]:
    """The kinds of operations that draw from a state which nobody can save, and what to use.

    They begin anew in another process, and would repeat the numbers of the first steps. `self.seed`
    in the advice is a `keras.random.SeedGenerator` that the task holds.

    >>> unrepeatable(["MatMul", "RandomStandardNormal", "StatelessRandomUniformV2"])
    ['tf.random.normal (instead: keras.random.normal(..., seed=self.seed))']
    """
    found = dict.fromkeys(_INSTEAD[kind] for kind in operations if kind in _INSTEAD)
    return [f"{drawn} (instead: {instead})" for drawn, instead in found]


def difference(saved: Sequence[Row], current: Sequence[Row]) -> str | None:
    """What is different between two tables of variables; None if nothing is.

    >>> row = {"name": "weight", "dtype": "float32", "shape": [2]}
    >>> text = difference([row], [{**row, "shape": [3]}])
    >>> print(text.splitlines()[2])
        weight: (2,) in the checkpoint, (3,) now
    """
    then, now = ({row["name"]: row for row in rows} for rows in (saved, current))
    both = [(name, then[name], now[name]) for name in now if name in then]

    def changed(what: str, text: Callable[[Any], str]) -> list[str]:
        return [
            f"{name}: {text(old[what])} in the checkpoint, {text(new[what])} now"
            for name, old, new in both
            if old[what] != new[what]
        ]

    def alone(rows: Mapping[str, Row], others: Mapping[str, Row]) -> list[str]:
        return [
            f"{name}: {row['dtype']} {shape_text(row['shape'])}"
            for name, row in rows.items()
            if name not in others
        ]

    differences = {
        "added since the checkpoint": alone(now, then),
        "in the checkpoint only": alone(then, now),
        "reshaped": changed("shape", shape_text),
        "retyped": changed("dtype", str),
    }
    lines = ["The task has other variables than the checkpoint."]
    for kind, texts in differences.items():
        lines += [f"  {kind}:", *(f"    {text}" for text in shortened(texts))] if texts else []
    if len(lines) == 1:
        return None
    return message(
        "\n".join(lines),
        do='restore the old structure; pass on_change="start_over" to start over; or choose '
        "another run_dir, with init_from= to take over the weights that match",
    )


def unheld(title: str, variables: Sequence[str]) -> str:
    """The message about variables that a step uses and its task does not hold."""
    is_seed = [SEED_STATE in variable for variable in variables]
    remedies: list[str] = []
    if not all(is_seed):
        remedies.append(
            "make them attributes of the task, or of a model or list that it holds: "
            "self.temperature = tf.Variable(1.0) in __init__, self.temperature in the step"
        )
    if any(is_seed):
        remedies.append(
            f"{SEED_STATE}: keras.random without a seed draws from a generator that all of Keras "
            "shares; write self.seed = keras.random.SeedGenerator(0) in __init__, and pass "
            "seed=self.seed to keras.random, or seed= to the layer that draws"
        )
    if all(is_seed):
        remedies.append(f"or {BEST_EFFORT}: a resumed run then draws its sequence from the start")
    return message(
        f"{title} uses variables that the task does not hold: a resumed run would lose them.",
        expected="every variable that the step reads or changes, reachable from the task",
        received=", ".join(shortened(variables)),
        do="; ".join(remedies),
    )


def unordered(path: str, items: int) -> str:
    """The message about a set: its order is another one in each process."""
    return message(
        f"{path} is a set, which has no order: its variables cannot be told apart.",
        expected="a list, a tuple or a dict",
        received=f"a set of {items}",
        do=f"make {path} a list",
    )


def shape_list(shape: Any) -> list[int | None] | None:
    """A `tf.TensorShape` as JSON; None where it is open."""
    return None if shape.rank is None else shape.as_list()


def shape_text(shape: Sequence[int | None] | None) -> str:
    """A shape from a table, as a person would write it down.

    >>> shape_text([None, 3])
    '(None, 3)'
    """
    return "of any shape" if shape is None else str(tuple(shape))


def shortened(texts: Sequence[str]) -> list[str]:
    """The first few, and how many there are beside them."""
    more = len(texts) - MOST_NAMED
    return [*texts[:MOST_NAMED], *([f"... and {more} more"] if more > 0 else [])]
