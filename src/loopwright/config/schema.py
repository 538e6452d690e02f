"""The schema of configs. It is closed: unknown keys are refused."""

# Pyright does not see that pydantic's metaclass sets the fields of a model.
# pyright: reportUninitializedInstanceVariable=false

import json
import os.path
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

from loopwright.config import names
from loopwright.config.export_formats import Format, Quantize, Target, target_for
from loopwright.errors import ConfigurationError
from loopwright.exactness import Exact
from loopwright.loop.schedule import every
from loopwright.metric_direction import larger_is_better
from loopwright.run_changes import NAMES

Plain = bool | int | float | str | None | list[Any] | dict[str, Any]


def _interval(text: str) -> str:
    try:
        return str(every(text))
    except (ConfigurationError, OverflowError):
        raise ValueError("not an interval: write '500 steps', '1 epoch' or '10 minutes'") from None


def _not_boolean(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("not a whole number of 1 or more")
    return value


def _known_edit(name: str) -> str:
    if name not in NAMES:
        raise ValueError(f"unknown {name!r:.80}; choose from {', '.join(NAMES)}")
    return name


Interval = Annotated[str, Field(max_length=40), AfterValidator(_interval)]
Count = Annotated[PositiveInt, BeforeValidator(_not_boolean)]
Options = dict[str, Plain]
Edits = Annotated[list[Annotated[str, AfterValidator(_known_edit)]], Field(max_length=50)]


_CLOSED = ConfigDict(extra="forbid", frozen=True, strict=True)


@final
class Named(BaseModel):
    """A part with its name and options: `{name: Adam, learning_rate: 1e-3}`, or just `adam`."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    name: str = Field(max_length=80)

    @property
    def options(self) -> dict[str, Any]:
        """All keys except the name."""
        return dict(self.model_extra or {})


def _expand(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


def _known(part: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return a part with canonical names, also in nested schedules."""
    name = names.canonical(str(part.get("name")), kind)
    if name is None:
        raise ValueError(names.unknown(str(part.get("name")), kind))
    inside = {
        key: _known(value, "schedule") if isinstance(value, dict) else value
        for key, value in part.items()
    }
    return {**inside, "name": name}


def _expand_optimizer(value: Any) -> Any:
    """Expand a name; options without one are those of the optimizer that the task makes."""
    return {"name": names.OWN, **value} if isinstance(value, dict) else _expand(value)


def _known_optimizer(part: Named) -> Named:
    own = part.name == names.OWN
    known = _known(part.model_dump() | ({"name": "SGD"} if own else {}), "optimizer")
    return Named(**known | ({"name": names.OWN} if own else {}))


def _known_metric(part: Named) -> Named:
    content = part.model_dump()
    if part.name.lower() in names.ALIASES:
        content.setdefault("as", part.name.lower())  # Keras reports `mae` as `mae`
    reported = content.get("as", "")
    if not isinstance(reported, str) or not re.fullmatch(r"(?!val_|loss\Z)[\w.-]{0,80}", reported):
        raise ValueError(
            "`as` is the reported name: letters, digits, '_', '.', '-'; not loss, no prefix val_"
        )
    found = _known_objective(Named(**content), "metric")
    if found.name in names.ACCURACY and found.options:
        raise ValueError(
            f"{found.name} takes no arguments: Keras chooses the class; name a class instead, "
            "for example SparseCategoricalAccuracy"
        )
    return found


def _known_objective(part: Named, kind: str) -> Named:
    """Return a loss or metric with its canonical name; custom code keeps its name."""
    if names.is_custom(part.name):
        return part
    name = names.canonical(part.name, kind)
    if name is None:
        raise ValueError(names.unknown(part.name, kind))
    for key, value in part.options.items():
        if not _is_plain(value):
            raise ValueError(
                f"{key} of {name} must be a number, string, boolean or a list of these"
            )
    return Named(**{**part.options, "name": name})


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(_is_plain(item) for item in value)
    return not isinstance(value, dict)


def _json_schema(kind: str, *, is_custom: bool = False) -> Any:
    short = list(names.ALIASES) if kind in names.MODULES else []
    has_default = kind == "optimizer"
    choice: dict[str, Any] = {"enum": [*names.KINDS[kind], *short, *[names.OWN] * has_default]}
    if kind in names.MODULES or is_custom:
        custom = {"type": "string", "pattern": f"^{names.CUSTOM}$", "description": "MODULE:OBJECT"}
        choice = {"anyOf": [choice, custom]}
    required = [] if has_default else ["name"]
    mapping = {"type": "object", "properties": {"name": choice}, "required": required}
    return WithJsonSchema({"anyOf": [choice, mapping]})


_Expanded = Annotated[Named, BeforeValidator(_expand)]
Optimizer = Annotated[
    Named,
    BeforeValidator(_expand_optimizer),
    AfterValidator(_known_optimizer),
    _json_schema("optimizer"),
]
Callback = Annotated[
    _Expanded,
    AfterValidator(lambda part: Named(**_known(part.model_dump(), "callback"))),
    _json_schema("callback"),
]
Loss = Annotated[
    _Expanded,
    AfterValidator(lambda part: _known_objective(part, "loss")),
    _json_schema("loss"),
]
Metric = Annotated[_Expanded, AfterValidator(_known_metric), _json_schema("metric")]


@final
class Keep(BaseModel):
    """A rule for checkpoints to keep: `{latest: 3}` or `{best: val_loss, count: 1, mode: min}`.

    `mode` is min or max; auto chooses by the name of the metric, where the name is known.
    """

    model_config = _CLOSED

    latest: Count | None = None
    best: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    count: Count = 1
    mode: Literal["auto", "min", "max"] = "auto"

    @model_validator(mode="after")
    def _one_rule(self) -> Self:
        if (self.latest is None) == (self.best is None):
            raise ValueError("give exactly one of latest and best")
        if self.best and self.mode == "auto" and larger_is_better(self.best) is None:
            raise ValueError(
                f"the direction of {self.best!r} is unknown (smaller or larger is better): "
                f"add mode, as in {{best: {self.best}, mode: max}}"
            )
        return self


@final
class Fit(BaseModel):
    """Arguments of `Trainer.fit`; omitted ones come from the experiment."""

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
            raise ValueError("epochs and until both set the length of the training: omit one")
        return self


def _exports(value: Any) -> Any:
    """Return a list: `export` may be one format, one mapping, or a list of both."""
    listed = value if isinstance(value, list) else [] if value is None else [value]
    return [{"format": each} if isinstance(each, str) else each for each in listed]


@final
class Export(BaseModel):
    """An export after the training: `litert`, or `{format: litert, quantize: int8}`."""

    model_config = _CLOSED

    format: Format = "saved_model"
    quantize: Quantize | None = Field(default=None, description="of LiteRT files")
    batch_size: Count | None = Field(
        default=None, description="the only batch size that a LiteRT or ONNX file accepts"
    )
    signatures: Annotated[list[str], Field(max_length=50)] | None = Field(
        default=None, description="which models of the task; by default all"
    )
    checkpoint: Literal["best", "last"] = "last"
    averaged: bool = Field(
        default=False, description="the averaged weights of optimizers with use_ema"
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        _ = self.target
        return self

    @property
    def target(self) -> Target:
        """What is exported, without where from; raise if the format cannot have it."""
        return target_for("", self.format, self.quantize, self.batch_size, self.signatures)


def _known_task(text: str) -> str:
    if names.is_program(text):
        return os.path.normpath(text)  # ./gan.py and gan.py are one task
    if text != names.DIGITS and not re.fullmatch(names.CUSTOM, text, re.ASCII):
        raise ValueError(f"not {names.DIGITS}, FILE.py, or MODULE:FUNCTION of this project")
    return text


Task = Annotated[
    str,
    Field(max_length=1000, description="digits, FILE.py, FILE.py:FUNCTION, or MODULE:FUNCTION"),
    AfterValidator(_known_task),
]


_PLACES = {"tracking_uri", "entity"}
"""Options of a tracker that say where the data of a run is sent."""


def _expanded_sink(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) and ":" not in value else value


def _known_sink(part: str | Named) -> str | Named:
    if isinstance(part, str):
        if not re.fullmatch(names.CUSTOM, part, re.ASCII):
            raise ValueError("not MODULE:FUNCTION, a module of this project and its function")
        return part
    name = names.canonical(part.name, "tracker")
    if name is None:
        raise ValueError(f"{names.unknown(part.name, 'tracker')}, or MODULE:FUNCTION")
    return Named(**{**part.options, "name": name})


Sink = Annotated[
    Annotated[str, Field(max_length=200)] | Named,
    BeforeValidator(_expanded_sink),
    AfterValidator(_known_sink),
    _json_schema("tracker", is_custom=True),
]


def _directory_name(text: str) -> str:
    if not text or "\0" in text:
        raise ValueError("not a valid directory name")
    return text


def _flow(options: dict[str, Any]) -> str:
    """Return options in one line of YAML, of which JSON is a part.

    >>> _flow({"name": "mlflow", "running": True})
    '{name: "mlflow", running: true}'
    """
    return f"{{{', '.join(f'{key}: {json.dumps(value)}' for key, value in options.items())}}}"


@final
class Config(BaseModel):
    """A training: task, data, parts, length, and where it is saved."""

    model_config = _CLOSED

    task: Task
    run_dir: Annotated[str, Field(max_length=1000), AfterValidator(_directory_name)] | None = None
    quick: bool = Field(
        default=False,
        description="a small version that trains in seconds, if the experiment has one",
    )
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    model: Options = Field(default_factory=dict, description="arguments of the task function")
    data: Options = Field(default_factory=dict, description="arguments of experiment()")
    optimizer: Optimizer | None = None
    loss: Loss | None = Field(default=None, description="the loss; by default that of the task")
    metrics: Annotated[list[Metric], Field(max_length=50)] | None = Field(
        default=None, description="the metrics; by default those of the task"
    )
    fit: Fit = Fit()
    plan: Annotated[str, Field(max_length=1000)] = "auto"
    strategy: Literal["auto", "none", "mirrored", "multi_worker"] = "auto"
    precision: Literal["float32", "float64", "mixed_float16", "mixed_bfloat16"] = "float32"
    callbacks: Annotated[list[Callback], Field(max_length=50)] = Field(default_factory=list)
    on_nan: Literal["raise", "skip", "rollback"] = "raise"
    exact: Exact = Field(
        default="warn",
        description="require refuses to resume in a different environment; best_effort accepts "
        "training that cannot be resumed exactly",
    )
    on_change: Literal["refuse", "start_over"] | Edits = Field(
        default="refuse", description="edits to accept in a resumed run, by name"
    )
    keep: Annotated[list[Keep], Field(max_length=50)] = Field(
        default_factory=lambda: [Keep(latest=3), Keep(best="val_loss")]
    )

    sinks: Annotated[list[Sink], Field(max_length=50)] = Field(
        default_factory=list,
        description="trackers (mlflow, wandb), and functions of this project that receive every "
        "event: MODULE:FUNCTION",
    )
    export: Annotated[list[Export], Field(max_length=20), BeforeValidator(_exports)] = Field(
        default_factory=list,
        description="exports after the training: a format, a mapping, or a list of them",
    )

    @model_validator(mode="before")
    @classmethod
    def _without_recipe(cls, content: Any) -> Any:
        """Read `recipe: gan` of an old run: digits is a task, the others are files of examples/."""
        if not isinstance(content, dict) or "recipe" not in content or "task" in content:
            return content
        rest = {key: value for key, value in content.items() if key != "recipe"}
        name = content["recipe"]
        return {"task": name if name == names.DIGITS else f"examples/{name}.py", **rest}

    @property
    def title(self) -> str:
        """The name of the task: of its function, or of its file."""
        file, _, function = self.task.partition(":")
        return function or os.path.basename(file).removesuffix(".py")

    @property
    def code(self) -> list[str]:
        """The names of the custom task, loss and metrics."""
        parts = [*([self.loss] if self.loss else []), *(self.metrics or [])]
        custom = [part.name for part in parts if names.is_custom(part.name)]
        return list(dict.fromkeys([*[self.task] * (self.task != names.DIGITS), *custom]))

    @property
    def trusted_sinks(self) -> list[str]:
        """The sinks that a run directory may not name: own code, and places to send data to.

        As values of `sinks=` on the command line.
        """
        parts = [s if isinstance(s, str) else s.model_dump() for s in self.sinks]
        is_trusted = any(isinstance(s, str) or s.options.keys() & _PLACES for s in self.sinks)
        return [s if isinstance(s, str) else _flow(s) for s in parts] if is_trusted else []

    @property
    def directory(self) -> str:
        """The run directory."""
        return self.run_dir or f"runs/{self.title}"
