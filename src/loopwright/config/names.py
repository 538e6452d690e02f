"""The parts that a config may name. A closed list: a config never imports anything by a path.

Those of Keras are its own names. Left out are parts that take other parts or functions, and
callbacks that write wherever they are told to or send what they hear: Loopwright saves by itself.
"""

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

KINDS = {"optimizer": OPTIMIZERS, "schedule": SCHEDULES, "callback": CALLBACKS}


def spelled(name: str, kind: str) -> str | None:
    """The name as it is spelled; case does not matter. None if it is not on the list.

    >>> spelled("adamw", "optimizer"), spelled("os.system", "callback")
    ('AdamW', None)
    """
    return next((known for known in KINDS[kind] if known.lower() == name.lower()), None)
