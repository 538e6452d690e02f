"""What a config can say. A closed schema: what is not here is refused."""

# To pyright every model of pydantic is abstract, with variables that only its metaclass sets.
# pyright: reportUninitializedInstanceVariable=false

import re
from typing import Annotated, Any, Literal, Self, final

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveInt,
    WithJsonSchema,
    model_validator,
)

from loopwright.checkpoints.retention import larger_is_better
from loopwright.config import edits, names
from loopwright.errors import ConfigurationError
from loopwright.exactness import Exact
from loopwright.loop.schedule import every

Plain = bool | int | float | str | None | list[Any] | dict[str, Any]


def _interval(text: str) -> str:
    try:
        return str(every(text))
    except (ConfigurationError, OverflowError):
        raise ValueError("not an interval: write '500 steps', '1 epoch' or '10 minutes'") from None


def _no_truth(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a whole number of 1 or more")
    return value


def _known_edit(name: str) -> str:
    if name not in edits.NAMES:
        raise ValueError(f"unknown {name!r:.80}; choose from {', '.join(edits.NAMES)}")
    return name


Interval = Annotated[str, Field(max_length=40), AfterValidator(_interval)]
Count = Annotated[PositiveInt, BeforeValidator(_no_truth)]
Options = dict[str, Plain]
Edits = Annotated[list[Annotated[str, AfterValidator(_known_edit)]], Field(max_length=50)]


_CLOSED = ConfigDict(extra="forbid", frozen=True, strict=True)


@final
class Named(BaseModel):
    """A part by its name and its options: `{name: Adam, learning_rate: 1e-3}`, or just `adam`."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    name: str = Field(max_length=80)

    @property
    def options(self) -> dict[str, Any]:
        """Everything beside the name."""
        return dict(self.model_extra or {})


def _whole(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


def _known(part: dict[str, Any], kind: str) -> dict[str, Any]:
    """A part with its canonical name, and those of the schedules inside it."""
    name = names.spelled(str(part.get("name")), kind)
    if name is None:
        raise ValueError(names.unknown(str(part.get("name")), kind))
    inside = {
        key: _known(value, "schedule") if isinstance(value, dict) else value
        for key, value in part.items()
    }
    return {**inside, "name": name}


def _known_optimizer(part: Named) -> Named:
    return Named(**_known(part.model_dump(), "optimizer"))


def _known_callback(part: Named) -> Named:
    return Named(**_known(part.model_dump(), "callback"))


def _known_loss(part: Named) -> Named:
    return _known_objective(part, "loss")


def _known_metric(part: Named) -> Named:
    content = part.model_dump()
    if part.name.lower() in names.SHORT:
        content.setdefault("as", part.name.lower())  # Keras reports `mae` as `mae`
    reported = content.get("as", "")
    if not isinstance(reported, str) or not re.fullmatch(r"(?!val_|loss\Z)[\w.-]{0,80}", reported):
        raise ValueError(
            "`as` is the name to report: letters, digits, '_', '.', '-'; no val_ or loss"
        )
    found = _known_objective(Named(**content), "metric")
    if found.name in names.ACCURACY and found.options:
        raise ValueError(
            f"{found.name} takes no arguments: Keras chooses its kind; name the kind, "
            "for example SparseCategoricalAccuracy"
        )
    return found


def _known_objective(part: Named, kind: str) -> Named:
    """A loss or metric with its canonical name, or with that of a person's own code."""
    if names.is_own(part.name):
        return part
    name = names.spelled(part.name, kind)
    if name is None:
        raise ValueError(names.unknown(part.name, kind))
    for key, value in part.options.items():
        if not _is_plain(value):
            raise ValueError(f"{key} of {name} is a number, a word, true, false or a list of these")
    return Named(**{**part.options, "name": name})


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(_is_plain(item) for item in value)
    return not isinstance(value, dict)


def _described(kind: str) -> Any:
    short = list(names.SHORT) if kind in names.MODULES else []
    choice: dict[str, Any] = {"enum": [*names.KINDS[kind], *short]}
    if kind in names.MODULES:
        own = {"type": "string", "pattern": f"^{names.OWN}$", "description": "MODULE:OBJECT"}
        choice = {"anyOf": [choice, own]}
    whole = {"type": "object", "properties": {"name": choice}, "required": ["name"]}
    return WithJsonSchema({"anyOf": [choice, whole]})


Optimizer = Annotated[
    Named, BeforeValidator(_whole), AfterValidator(_known_optimizer), _described("optimizer")
]
Callback = Annotated[
    Named, BeforeValidator(_whole), AfterValidator(_known_callback), _described("callback")
]
Loss = Annotated[Named, BeforeValidator(_whole), AfterValidator(_known_loss), _described("loss")]
Metric = Annotated[
    Named, BeforeValidator(_whole), AfterValidator(_known_metric), _described("metric")
]


@final
class Keep(BaseModel):
    """Checkpoints that stay: `{latest: 3}` or `{best: val_loss, count: 1, mode: min}`.

    `mode` is min or max; auto goes by the name of the metric, where the name tells the direction.
    """

    model_config = _CLOSED

    latest: Count | None = None
    best: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    count: Count = 1
    mode: Literal["auto", "min", "max"] = "auto"

    @model_validator(mode="after")
    def _one_rule(self) -> Self:
        if (self.latest is None) == (self.best is None):
            raise ValueError("one of latest and best")
        if self.best and self.mode == "auto" and larger_is_better(self.best) is None:
            raise ValueError(
                f"the name {self.best!r} does not tell whether smaller or larger is better: "
                f"add mode, as in {{best: {self.best}, mode: max}}"
            )
        return self


@final
class Fit(BaseModel):
    """What `Trainer.fit` is asked for; what is left out is as the recipe or task has it."""

    model_config = _CLOSED

    epochs: Count | None = None
    until: Interval | None = Field(
        default=None, description='instead of epochs: "6 hours", "1000 steps"'
    )
    batch_size: Count | None = None
    steps_per_epoch: Count | None = None
    shuffle: bool | None = None
    validation_split: Annotated[float, Field(ge=0, lt=1, strict=False)] | None = None
    validation_steps: Count | None = None
    validate_every: Interval | None = None
    save_every: Interval | None = None
    verbose: Literal["auto", 0, 1, 2] = "auto"

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.epochs is not None and self.until is not None:
            raise ValueError("epochs and until both say how long to train: leave one out")
        return self


def _format(value: Any) -> Any:
    return {"format": value} if isinstance(value, str) else value


@final
class Export(BaseModel):
    """What is exported in the end: `saved_model`, or `{format: keras, checkpoint: best}`."""

    model_config = _CLOSED

    format: Literal["saved_model", "keras"] = "saved_model"
    checkpoint: Literal["best", "last"] = "last"
    averaged: bool = Field(default=False, description="the averages of optimizers with use_ema")


def _module_and_function(text: str) -> str:
    if not re.fullmatch(names.OWN, text, re.ASCII):
        raise ValueError("it is named MODULE:FUNCTION, a file of this project and its function")
    return text


Function = Annotated[str, Field(max_length=200), AfterValidator(_module_and_function)]


def _directory_name(text: str) -> str:
    if not text or "\0" in text:
        raise ValueError("not the name of a directory")
    return text


@final
class Config(BaseModel):
    """A training: what, on what, how, for how long."""

    model_config = _CLOSED

    recipe: Annotated[str, Field(max_length=80)] | None = None
    task: Function | None = None
    run_dir: Annotated[str, Field(max_length=1000), AfterValidator(_directory_name)] | None = None
    quick: bool = Field(
        default=False, description="seconds instead of minutes, where a recipe offers it"
    )
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    model: Options = Field(default_factory=dict, description="arguments of the function task()")
    data: Options = Field(default_factory=dict, description="arguments of experiment()")
    optimizer: Optimizer | None = None
    loss: Loss | None = Field(
        default=None, description="what is minimised; left out, the loss of the recipe or task"
    )
    metrics: Annotated[list[Metric], Field(max_length=50)] | None = Field(
        default=None, description="what is reported; left out, the metrics of the recipe or task"
    )
    fit: Fit = Fit()
    plan: Annotated[str, Field(max_length=1000)] = "auto"
    strategy: Literal["auto", "none", "mirrored", "multi_worker"] = "auto"
    precision: Literal["float32", "float64", "mixed_float16", "mixed_bfloat16"] = "float32"
    callbacks: Annotated[list[Callback], Field(max_length=50)] = Field(default_factory=list)
    on_nan: Literal["raise", "skip", "rollback"] = "raise"
    exact: Exact = Field(
        default="warn",
        description="require refuses to resume in another environment; best_effort accepts "
        "training that cannot be resumed exactly",
    )
    on_change: Literal["refuse", "start_over"] | Edits = Field(
        default="refuse", description="edits to accept in a run that goes on, by their names"
    )
    keep: Annotated[list[Keep], Field(max_length=50)] = Field(
        default_factory=lambda: [Keep(latest=3), Keep(best="val_loss")]
    )

    sinks: Annotated[list[Function], Field(max_length=50)] = Field(
        default_factory=list,
        description="functions of this project that hear every event: MODULE:FUNCTION",
    )
    export: Annotated[Export, BeforeValidator(_format)] | None = None

    @model_validator(mode="after")
    def _one_thing_to_train(self) -> Self:
        if (self.recipe is None) == (self.task is None):
            raise ValueError("one of recipe and task says what is trained")
        return self

    @property
    def title(self) -> str:
        """What is trained, in a word."""
        return self.recipe or (self.task or "").partition(":")[2]

    @property
    def code(self) -> list[str]:
        """The MODULE:OBJECT names of a person's own code that a task is made with."""
        parts = [*([self.loss] if self.loss else []), *(self.metrics or [])]
        own = [part.name for part in parts if names.is_own(part.name)]
        return list(dict.fromkeys([*([self.task] if self.task else []), *own]))

    @property
    def directory(self) -> str:
        """Where the run lies."""
        return self.run_dir or f"runs/{self.title}"
