"""The parts that a config may name: a closed list, plus the user's losses and metrics.

The names of Keras parts are those of Keras. Excluded are parts that take other parts or functions,
and callbacks that write to any path or send data: Loopwright saves checkpoints itself.
"""

import difflib
import re

OPTIMIZERS = (
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Ftrl",
    "Lamb",
    "Lion",
    "Nadam",
    "RMSprop",
    "SGD",
    "ScheduleFreeAdamW",
    "Tiger",
)
OWN = "own"
"""The optimizer that the task makes by itself, with other options."""
SCHEDULES = (
    "CosineDecay",
    "CosineDecayRestarts",
    "Cyclic",
    "ExponentialDecay",
    "InverseTimeDecay",
    "OneCycle",
    "PiecewiseConstantDecay",
    "PolynomialDecay",
    "Warmup",
)
CALLBACKS = (
    "CSVLogger",
    "EarlyStopping",
    "ReduceLROnPlateau",
    "SwapEMAWeights",
    "TensorBoard",
    "TerminateOnNaN",
)

_BOTH = (
    "BinaryCrossentropy",
    "CategoricalCrossentropy",
    "CategoricalHinge",
    "CosineSimilarity",
    "Hinge",
    "KLDivergence",
    "MeanAbsoluteError",
    "MeanAbsolutePercentageError",
    "MeanSquaredError",
    "MeanSquaredLogarithmicError",
    "Poisson",
    "SparseCategoricalCrossentropy",
    "SquaredHinge",
)
"""Keras has a loss and a metric of these names."""
_KERAS_LOSSES = (
    *_BOTH,
    "BinaryFocalCrossentropy",
    "CTC",
    "CategoricalFocalCrossentropy",
    "CategoricalGeneralizedCrossEntropy",
    "Circle",
    "Dice",
    "Huber",
    "LogCosh",
    "Tversky",
)
_KERAS_METRICS = (
    *_BOTH,
    "AUC",
    "BinaryAccuracy",
    "BinaryIoU",
    "CategoricalAccuracy",
    "ConcordanceCorrelation",
    "F1Score",
    "FBetaScore",
    "FalseNegatives",
    "FalsePositives",
    "IoU",
    "LogCoshError",
    "MeanIoU",
    "OneHotIoU",
    "OneHotMeanIoU",
    "PearsonCorrelation",
    "Precision",
    "PrecisionAtRecall",
    "R2Score",
    "Recall",
    "RecallAtPrecision",
    "RootMeanSquaredError",
    "SensitivityAtSpecificity",
    "SparseCategoricalAccuracy",
    "SparseTopKCategoricalAccuracy",
    "SpecificityAtSensitivity",
    "TopKCategoricalAccuracy",
    "TrueNegatives",
    "TruePositives",
)
ACCURACY = ("accuracy", "acc")
"""Keras chooses the kind of accuracy from the shapes of labels and predictions."""

COMPONENTS = "loopwright.components"
MODULES: dict[str, dict[str, tuple[str, ...]]] = {
    "loss": {"keras.losses": _KERAS_LOSSES, COMPONENTS: ("HuberLoss", "huber", "huber_with")},
    "metric": {
        "keras.metrics": _KERAS_METRICS,
        COMPONENTS: ("HuberMetric", "Perplexity", "huber", "huber_with"),
    },
}
"""Losses and metrics that a config may name as `module:object`."""

# `huber` alone is the Keras loss: names are case-insensitive.
LOSSES = (*_KERAS_LOSSES, "HuberLoss", "huber_with")
METRICS = (*ACCURACY, *_KERAS_METRICS, "HuberMetric", "Perplexity", "huber_with")

TRACKERS = ("mlflow", "wandb")

KINDS = {
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
    "callback": CALLBACKS,
    "loss": LOSSES,
    "metric": METRICS,
    "tracker": TRACKERS,
}
ALIASES = {
    "bce": "BinaryCrossentropy",
    "kld": "KLDivergence",
    "mae": "MeanAbsoluteError",
    "mape": "MeanAbsolutePercentageError",
    "mse": "MeanSquaredError",
    "msle": "MeanSquaredLogarithmicError",
}
"""The aliases that Keras has for losses and metrics."""

CUSTOM = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"
"""`MODULE:OBJECT`, as a regular expression."""

DIGITS = "digits"
"""The one task that ships with the package."""
FILE = r"([^\x00-\x1f\x7f:=]*/)?[\w-]+\.py(:[A-Za-z_]\w*)?"
"""`FILE.py`, with a function `experiment`, or `FILE.py:FUNCTION`."""

_PACKAGES = ("keras", "loopwright", "tensorflow", "tf")


def canonical(name: str, kind: str) -> str | None:
    """Return the canonical name, ignoring case and underscores; None if it is unknown.

    >>> canonical("adamw", "optimizer"), canonical("os.system", "callback")
    ('AdamW', None)
    >>> canonical("mse", "loss"), canonical("keras.metrics:AUC", "metric")
    ('MeanSquaredError', 'AUC')
    """
    module, colon, inside = name.rpartition(":")
    if colon:
        if inside not in MODULES.get(kind, {}).get(module, ()):
            return None
        return inside if canonical(inside, kind) == inside else name
    if kind in MODULES:
        name = ALIASES.get(name.lower(), name)
    return next((known for known in KINDS[kind] if _normalized(known) == _normalized(name)), None)


def is_custom(name: str) -> bool:
    """Return whether a name is `MODULE:OBJECT` of the user's own code.

    >>> is_custom("mine:focal"), is_custom("keras.losses:Huber"), is_custom("Huber")
    (True, False, False)
    """
    package = re.split("[.:]", name, maxsplit=1)[0]
    return re.fullmatch(CUSTOM, name, re.ASCII) is not None and package not in _PACKAGES


def is_program(name: str) -> bool:
    """Return whether a task is named as a file.

    >>> is_program("examples/gan.py"), is_program("gan.py:small"), is_program("gan:small")
    (True, True, False)
    """
    return re.fullmatch(FILE, name) is not None


def unknown(name: str, kind: str) -> str:
    """Describe an unknown name, with the nearest known one.

    >>> unknown("adm", "optimizer")
    "unknown optimizer 'adm'; did you mean Adam?"
    """
    known = {_normalized(one): one for one in (*(ALIASES if kind in MODULES else ()), *KINDS[kind])}
    near = difflib.get_close_matches(_normalized(name.rpartition(":")[2])[:80], known, n=1)
    hint = f"did you mean {known[near[0]]}?" if near else f"choose one of {', '.join(KINDS[kind])}"
    own = "" if near or kind not in MODULES else ", or MODULE:OBJECT of this project"
    return f"unknown {kind} {name!r:.80}; {hint}{own}"


def _normalized(name: str) -> str:
    return name.lower().replace("_", "")
