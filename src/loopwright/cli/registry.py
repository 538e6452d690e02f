"""Build optimizers, schedules, callbacks, losses and metrics from names in a config."""

import contextlib
import difflib
import functools
import importlib
import importlib.machinery
import inspect
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from loopwright import components, disk
from loopwright.config import names
from loopwright.config.schema import Named
from loopwright.errors import ConfigurationError
from loopwright.events import Sink
from loopwright.sinks.mlflow import MLflow
from loopwright.sinks.outbox import Tracker
from loopwright.sinks.wandb import WandB


def load_function(reference: str, project: Path) -> Callable[..., Any]:
    """Return `MODULE:FUNCTION`, with the module in the project directory, or that of a file.

    A file is a module of its own directory. Nothing is imported from any other place.
    """
    module_name, _, name = reference.partition(":")
    if names.is_program(reference):
        project /= os.path.dirname(module_name)
        module_name, name = os.path.basename(module_name).removesuffix(".py"), name or "experiment"
    project = project.resolve()
    top = module_name.partition(".")[0]
    spec = importlib.machinery.PathFinder.find_spec(top, [str(project)])
    if spec is None:
        raise _missing(reference, project, f"{project} has no module {top!r}")
    sys.path.insert(0, str(project))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise
        raise _missing(reference, project, str(error)) from None
    finally:
        sys.path.remove(str(project))
    # A module of this name may have been imported earlier, from another place.
    if not Path(module.__file__ or "/").resolve().is_relative_to(project):
        raise _missing(reference, project, f"{module_name!r} is the name of another module")
    found = getattr(module, name, None)
    if not callable(found):
        raise _missing(reference, project, f"{module_name} has no function {name!r}")
    home = _imported_from(found)
    if home is not None and not _is_inside(home, project):
        raise _missing(reference, project, f"{name!r} is imported there from {home}")
    return found


@contextlib.contextmanager
def importable(project: Path) -> Iterator[None]:
    """Let functions of the project import its other modules when they are called.

    The project is last on the import path, so its modules hide no others.
    """
    place = str(project.resolve())
    sys.path.append(place)
    try:
        yield
    finally:
        sys.path.reverse()
        sys.path.remove(place)
        sys.path.reverse()


def _imported_from(found: Any) -> str | None:
    """Return the module that defines a function or class; None for other objects.

    A module of the project may contain `from os import system`: that is not a task, loss or sink.
    """
    if not inspect.isroutine(found) and not isinstance(found, type):
        return None
    home = str(found.__module__)
    # The inner function of a decorator names another module, and is not found there.
    is_there = getattr(sys.modules.get(home), found.__name__, None) is found
    return home if is_there else None


def _is_inside(module_name: str, project: Path) -> bool:
    top = module_name.partition(".")[0]
    # A virtual environment may be in the project directory; its packages are not top-level there.
    if importlib.machinery.PathFinder.find_spec(top, [str(project)]) is None:
        return False
    file = getattr(sys.modules.get(module_name), "__file__", None)
    return file is not None and Path(file).resolve().is_relative_to(project)


def _missing(reference: str, project: Path, received: str) -> ConfigurationError:
    return ConfigurationError(
        f"{reference} was not found.",
        expected=f"FILE.py, or MODULE:FUNCTION, with the module in {project}",
        received=received,
        do="run the command from the directory of your project, and check both names",
    )


_BOOLEAN_WORDS = {"yes", "no", "on", "off", "y", "n", "true", "false"}
_NAMED_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def argument_error(make: Callable[..., Any], options: Mapping[str, Any]) -> str | None:
    """Describe the first unknown or missing argument; None if all fit.

    >>> def make(threshold, name="x"): ...
    >>> argument_error(make, {"treshold": 1})
    'unknown argument treshold; did you mean threshold?'
    """
    parameters, takes_any = _parameters(make)
    if not takes_any:
        for name in options:
            if name not in parameters:
                near = difflib.get_close_matches(name, parameters, n=1)
                known = ", ".join(parameters) or "no arguments"
                hint = f"did you mean {near[0]}?" if near else f"known: {known}"
                return f"unknown argument {name[:80]}; {hint}"
    try:
        inspect.signature(make).bind(**options)
    except (TypeError, ValueError) as error:
        return str(error)
    return None


def type_error(
    make: Callable[..., Any],
    options: Mapping[str, Any],
    *,
    is_custom: bool = False,
    exempt: Collection[str] = (),
) -> str | None:
    """Describe the first argument whose type differs from its default; None if all fit.

    Of custom code only words such as `no` are refused: in Python every word is true.

    >>> type_error(lambda from_logits=False: None, {"from_logits": 3})
    'from_logits is true or false, not 3'
    """
    parameters, _ = _parameters(make)
    for name, value in options.items():
        default = parameters[name].default if name in parameters else None
        if value is None or name in exempt:
            continue
        is_word = isinstance(value, str) and value.lower() in _BOOLEAN_WORDS
        if isinstance(default, bool):
            if not isinstance(value, bool) and (is_word or not is_custom):
                return f"{name} is true or false, not {value!r:.80}"
        elif isinstance(default, int | float) and isinstance(value, bool | str) and not is_custom:
            return f"{name} is a number, not {value!r:.80}"
    return None


def _parameters(make: Callable[..., Any]) -> tuple[dict[str, inspect.Parameter], bool]:
    """Return all named parameters, and whether any other name is accepted.

    A class that passes `**options` to its base class accepts what the base class accepts.
    """
    found = dict[str, inspect.Parameter]()
    callables: list[Any] = [make]
    if isinstance(make, type):
        inits = [kind.__init__ for kind in make.__mro__ if "__init__" in vars(kind)]
        callables += inits[1:]
    for each in callables:
        try:
            parameters = inspect.signature(each).parameters.values()
        except ValueError:  # a C function without a signature
            return found, True
        for one in parameters:
            if one.kind in _NAMED_KINDS and one.name != "self":
                found.setdefault(one.name, one)
        if all(one.kind is not inspect.Parameter.VAR_KEYWORD for one in parameters):
            return found, False
    return found, not isinstance(make, type)


_HOMES: dict[str, Any] = {
    "optimizer": keras.optimizers,
    "schedule": keras.optimizers.schedules,
    "callback": keras.callbacks,
    "loss": keras.losses,
    "metric": keras.metrics,
}
# The argument that names a callback's output, always inside the run directory, and its default. Not
# `tensorboard`: a resume truncates the files there.
_OUTPUTS = {
    "CSVLogger": ("filename", "history.csv"),
    "TensorBoard": ("log_dir", "callbacks/tensorboard"),
}
_REFUSED = {"TensorBoard": {"embeddings_freq", "embeddings_metadata"}}
_ANY_TYPE = ("profile_batch",)
_TRACKERS: dict[str, Callable[..., Tracker]] = {"mlflow": MLflow, "wandb": WandB}
_TEXTS = ("tracking_uri", "experiment", "run_name", "project", "entity", "mode")


def optimizer(part: Named, own: Any = None) -> keras.optimizers.Optimizer:
    """Build an optimizer, or one like `own`; its learning rate is a number or a schedule.

    >>> optimizer(Named(name="SGD", learning_rate=0.5)).get_config()["learning_rate"]
    0.5
    """
    name = part.name if own is None else type(own).__name__
    return _build("optimizer", name, part.options, own)


def callback(part: Named, run_dir: Path) -> keras.callbacks.Callback:
    """Build a callback that writes into the run directory only."""
    options = part.options
    refused = _REFUSED.get(part.name, set()) & options.keys()
    if refused:
        raise _unusable("callback", part.name, options, f"{', '.join(refused)} not supported")
    if part.name in _OUTPUTS:
        key, default = _OUTPUTS[part.name]
        options[key] = str(_inside(run_dir, options.get(key, default)))
    return _build("callback", part.name, options)


def sink(part: str | Named, project: Path) -> Sink:
    """Build a tracker, or return the function of the project that is one."""
    if isinstance(part, str):
        return load_function(part, project)
    return tracker(part)


def tracker(part: Named) -> Tracker:
    """Build a tracker; nothing is sent before the training starts."""
    make, options = _TRACKERS[part.name], part.options
    problem = argument_error(make, options) or type_error(make, options)
    for key, value in options.items():
        if key in _TEXTS and not isinstance(value, str | None):
            problem = problem or f"{key} is a text, not {value!r:.80}"
    if problem is not None:
        raise _unusable("sink", part.name, options, problem)
    return make(**options)


def loss(part: Named, project: Path) -> Any:
    """Build a loss: a Keras loss, or a function of labels and predictions.

    >>> loss(Named(name="HuberLoss", threshold=2.0), Path()).threshold
    2.0
    """
    found = _objective("loss", part, part.options, project)
    if isinstance(found, keras.metrics.Metric) or not callable(found):
        raise _unusable("loss", part.name, part.options, f"it returned {type(found).__name__}")
    return found


def metrics(parts: Sequence[Named], project: Path) -> list[Any]:
    """Build metrics, each with a unique name.

    >>> [one.name for one in metrics([Named(name="AUC", **{"as": "area"})], Path())]
    ['area']
    """
    made = [_metric(part, project) for part in parts]
    reported = [one if isinstance(one, str) else one.name for one in made]
    twice = sorted({name for name in reported if reported.count(name) > 1})
    if twice:
        raise ConfigurationError(
            f"Two metrics of the config are reported as {twice[0]!r}.",
            expected="a unique name for each metric",
            received=", ".join(reported),
            do="rename one of them: {name: ..., as: other_name}",
        )
    return made


def _metric(part: Named, project: Path) -> Any:
    if part.name in names.ACCURACY:
        return part.name
    options = part.options
    reported = options.pop("as", "")
    found = _objective("metric", part, options, project)
    if not isinstance(found, keras.metrics.Metric):
        if not callable(found):
            raise _unusable("metric", part.name, options, f"it returned {type(found).__name__}")
        name = getattr(found, "__name__", None) or getattr(found, "name", None)
        found = keras.metrics.MeanMetricWrapper(found, name=name or type(found).__name__)
    found.name = reported or _without_count(found)
    return found


def _without_count(metric: keras.metrics.Metric) -> str:
    """Return a metric's name without the number that Keras appends to the second object."""
    stem = re.sub(r"_\d+\Z", "", metric.name)
    is_counted = stem.replace("_", "") == type(metric).__name__.lower().replace("_", "")
    return stem if is_counted else metric.name


def _objective(kind: str, part: Named, options: Mapping[str, Any], project: Path) -> Any:
    """Build a loss or metric from a class or factory; return a plain function as it is."""
    is_custom = names.is_custom(part.name)
    make = load_function(part.name, project) if is_custom else _built_in(kind, part.name, options)
    if isinstance(make, keras.losses.Loss | keras.metrics.Metric):
        if options or isinstance(make, keras.metrics.Metric):
            raise _unusable(kind, part.name, options, "it is an object; name its class instead")
        return make
    is_function = not isinstance(make, type) and _takes_labels(make, options)
    problem = None if is_function else argument_error(make, options)
    problem = problem or type_error(make, options, is_custom=is_custom)
    if problem is not None:
        raise _unusable(kind, part.name, options, problem)
    if is_function:
        return functools.update_wrapper(functools.partial(make, **options), make)
    return make(**options) if is_custom else _call(kind, part.name, make, options)


def _built_in(kind: str, name: str, options: Mapping[str, Any]) -> Callable[..., Any]:
    known = names.canonical(name, kind)
    if known is None:
        raise _unusable(kind, name, options, names.unknown(name, kind))
    attribute = known.rpartition(":")[2]
    return getattr(components, attribute, None) or getattr(_HOMES[kind], attribute)


def _takes_labels(make: Callable[..., Any], options: Mapping[str, Any]) -> bool:
    """Return whether a function is itself the loss: only labels and predictions are missing."""
    try:
        signature = inspect.signature(make)
    except ValueError:
        return True
    try:
        signature.bind(**options)
    except TypeError:
        try:
            signature.bind(None, None, **options)
        except TypeError:
            return False
        return True
    return False


def _build(kind: str, name: str, options: Mapping[str, Any], own: Any = None) -> Any:
    make = _built_in(kind, name, options) if own is None else type(own)
    given = {
        key: _build("schedule", str(value.get("name")), _without_name(value))
        if isinstance(value, dict)
        else value
        for key, value in options.items()
    }
    problem = argument_error(make, given) or type_error(make, given, exempt=_ANY_TYPE)
    if problem is not None:
        raise _unusable(kind, name, options, problem)
    if own is not None:
        make, given = own.from_config, {"config": own.get_config() | given}
    return _call(kind, name, make, given)


def _call(kind: str, name: str, make: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    try:
        return make(**options)
    except ConfigurationError:
        raise
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise _unusable(kind, name, options, str(error)) from error


def _without_name(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key != "name"}


def _inside(run_dir: Path, name: Any) -> Path:
    path = os.path.relpath(os.path.join(run_dir, str(name)), run_dir)
    if path in (".", "..") or path.startswith("../") or "\0" in path:
        raise ConfigurationError(
            "A callback of a config may write only inside the run directory.",
            expected=f"a name inside {run_dir}",
            received=repr(name),
            do="omit the path, or use a file name",
        )
    disk.refuse_links(run_dir, path)  # Keras would follow a symlink
    return run_dir.resolve() / path


def _unusable(kind: str, name: str, options: Any, reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"Cannot create the {kind} {name} from the config.",
        expected=f"the arguments of {name}",
        received=f"{dict(options)}: {' '.join(reason.split())[:400]}",
        do=f"correct the arguments of {name} in the config",
    )
