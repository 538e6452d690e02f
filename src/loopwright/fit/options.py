"""The options of the methods of `Trainer`, stated once."""

import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, final

import keras

from loopwright.loop.schedule import Every, require_positive
from loopwright.task.foreign_names import require_known

if TYPE_CHECKING:
    from loopwright.config.export_formats import Format, Quantize
    from loopwright.fit.restore import Checkpoint

Verbose = Literal["auto", 0, 1, 2]

_Options = ParamSpec("_Options")
_Given = TypeVar("_Given")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class FitOptions:
    """The arguments of a call of `fit`, as they were passed."""

    x: Any = None
    y: Any = None
    sample_weight: Any = None
    _: KW_ONLY
    batch_size: int | None = None
    epochs: int = 1
    until: str | Every | None = None
    steps_per_epoch: int | None = None
    shuffle: bool = True
    validation_data: Any = None
    validation_split: float = 0.0
    validation_steps: int | None = None
    validate_every: str | Every = "1 epoch"
    class_weight: Mapping[int, float] | None = None
    callbacks: Sequence[keras.callbacks.Callback] = ()
    save_every: str | Every = "10 minutes"
    verbose: Verbose = "auto"


@dataclass(frozen=True)
class ReplayOptions(FitOptions):
    """The arguments of a call of `replay` after the step: those of `fit`, and its own."""

    debugger: bool = False


@dataclass(frozen=True, kw_only=True)
class RehearseOptions(FitOptions):
    """The arguments of `fit`, and what else is rehearsed."""

    rehearse_callbacks: bool = False
    """Call the hooks of `callbacks`, which may have effects outside of this process."""
    overfit: str | None = None
    """"1 batch": train a copy of the task on one batch until its loss is small."""


@dataclass(frozen=True)
class DataOptions:
    """The data of a call that trains some steps aside."""

    x: Any = None
    y: Any = None
    sample_weight: Any = None
    _: KW_ONLY
    batch_size: int | None = None
    class_weight: Mapping[int, float] | None = None

    def for_steps(self, steps: int, *, warm_up: int = 0, shuffle: bool = True) -> FitOptions:
        """Return the options of a `fit` of that many steps, after some to warm up."""
        require_positive(steps=steps)
        given = {field.name: getattr(self, field.name) for field in fields(DataOptions)}
        return FitOptions(**given, shuffle=shuffle, until=Every(steps=steps + warm_up))


@final
@dataclass(frozen=True, kw_only=True)
class LearningRateOptions(DataOptions):
    """The arguments of `find_learning_rate`, as they were passed."""

    start: float = 1e-7
    stop: float = 10.0
    steps: int = 200
    optimizer: str | None = None
    monitor: str = "loss"


@final
@dataclass(frozen=True, kw_only=True)
class ProfileOptions(DataOptions):
    """The arguments of `profile`, as they were passed."""

    shuffle: bool = True
    steps: int = 50
    directory: "str | os.PathLike[str] | None" = None


@dataclass(frozen=True)
class ExportOptions:
    """The arguments of a call of `export`, as they were passed."""

    path: "str | os.PathLike[str] | None" = None
    _: KW_ONLY
    format: "Format | None" = None
    """By default that of the path's suffix."""
    quantize: "Quantize | None" = None
    """Of LiteRT files."""
    batch_size: int | None = None
    """The only batch size that a LiteRT or ONNX file accepts; by default it accepts any."""
    signatures: Sequence[str] | None = None
    """Which models of the task; by default all."""
    examples: Mapping[str, Any] | None = None
    """Inputs by signature, for the comparison and to calibrate int8."""
    data: Any = None
    """Where examples come from: what `fit` takes as `x`; by default the data of the last `fit`."""
    averaged: bool = False
    checkpoint: "Checkpoint | None" = None
    tolerance: float | None = None
    """The largest relative difference; by default that of each output's dtype."""


def after_step(
    options: Callable[_Options, _Given],
) -> Callable[Concatenate[int | None, _Options], tuple[int | None, _Given]]:
    """Return a constructor of options that takes a step first, and returns both.

    >>> after_step(FitOptions)(7, epochs=3)[1].epochs
    3
    """

    def made(step: int | None = None, *args: Any, **given: Any) -> tuple[int | None, _Given]:
        return step, options(*args, **given)

    own = inspect.signature(made).parameters["step"]
    parameters = [own, *inspect.signature(options).parameters.values()]
    made.__dict__["__signature__"] = inspect.Signature(parameters)
    return made  # pyright: ignore[reportReturnType]


def takes(
    options: Callable[_Options, _Given], **defaults: Any
) -> Callable[[Callable[[Any, _Given], _Result]], Callable[Concatenate[Any, _Options], _Result]]:
    """Give a method the parameters of `options`; its body gets the one value made of them.

    >>> class Trains:
    ...     @takes(FitOptions, verbose=0)
    ...     def fit(self, options):
    ...         return options.epochs, options.verbose
    >>> Trains().fit(epochs=3)
    (3, 0)
    >>> Trains().fit(epoch=3)
    Traceback (most recent call last):
    TypeError: Trains.fit() got an unexpected keyword argument 'epoch'
      expected: epochs
      received: epoch=3
      do: replace it
    """
    own = inspect.signature(options)
    parameters = [
        inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD),
        *(p.replace(default=defaults.get(p.name, p.default)) for p in own.parameters.values()),
    ]

    def decorate(
        method: Callable[[Any, _Given], _Result],
    ) -> Callable[Concatenate[Any, _Options], _Result]:
        @functools.wraps(method)
        def call(self: Any, *args: Any, **given: Any) -> _Result:
            require_known(method.__qualname__, given, own.parameters)
            try:
                value = options(*args, **{**defaults, **given})  # pyright: ignore[reportCallIssue]
            except TypeError as error:
                # Python names the constructor, which the user has not called.
                text = str(error).rpartition("__init__()")[2]
                raise TypeError(f"{method.__qualname__}(){text}") from None
            return method(self, value)

        returns = inspect.signature(method).return_annotation
        call.__dict__["__signature__"] = inspect.Signature(parameters, return_annotation=returns)
        return call

    return decorate
