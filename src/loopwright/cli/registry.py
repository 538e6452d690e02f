"""Optimizers, schedules, callbacks, losses and metrics from the names in a config."""

import functools
import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from loopwright import components, disk
from loopwright.cli import signatures
from loopwright.cli.projects import function
from loopwright.config import names
from loopwright.config.schema import Named
from loopwright.errors import ConfigurationError, message

_HOMES: dict[str, Any] = {
    "optimizer": keras.optimizers,
    "schedule": keras.optimizers.schedules,
    "callback": keras.callbacks,
    "loss": keras.losses,
    "metric": keras.metrics,
}
# Where a callback writes: by default, and always inside the run directory. The run has files of its
# own in `tensorboard`, and cuts them when it goes on.
_WRITES = {
    "CSVLogger": ("filename", "history.csv"),
    "TensorBoard": ("log_dir", "callbacks/tensorboard"),
}
_REFUSED = {"TensorBoard": {"embeddings_freq", "embeddings_metadata"}}
_NUMBERS_OR_WORDS = ("profile_batch",)


def optimizer(part: Named) -> keras.optimizers.Optimizer:
    """An optimizer, with a number or a schedule as its learning rate.

    >>> optimizer(Named(name="SGD", learning_rate=0.5)).get_config()["learning_rate"]
    0.5
    """
    return _made("optimizer", part.name, part.options)


def callback(part: Named, run_dir: Path) -> keras.callbacks.Callback:
    """A callback; what it writes is in the run directory."""
    options = part.options
    refused = _REFUSED.get(part.name, set()) & options.keys()
    if refused:
        raise _unusable("callback", part.name, options, f"{', '.join(refused)} is not for configs")
    if part.name in _WRITES:
        key, default = _WRITES[part.name]
        options[key] = str(_inside(run_dir, options.get(key, default)))
    return _made("callback", part.name, options)


def loss(part: Named, project: Path) -> Any:
    """A loss: a Keras loss, or a function of labels and predictions.

    >>> loss(Named(name="HuberLoss", threshold=2.0), Path()).threshold
    2.0
    """
    found = _objective("loss", part, part.options, project)
    if isinstance(found, keras.metrics.Metric) or not callable(found):
        raise _unusable("loss", part.name, part.options, f"it returned {type(found).__name__}")
    return found


def metrics(parts: Sequence[Named], project: Path) -> list[Any]:
    """Metrics, each reported under a name of its own.

    >>> [one.name for one in metrics([Named(name="AUC", **{"as": "area"})], Path())]
    ['area']
    """
    made = [_metric(part, project) for part in parts]
    reported = [one if isinstance(one, str) else one.name for one in made]
    twice = sorted({name for name in reported if reported.count(name) > 1})
    if twice:
        raise ConfigurationError(
            message(
                f"Two metrics of the config are reported as {twice[0]!r}.",
                expected="a name of its own for each metric",
                received=", ".join(reported),
                do="give one of them another name: {name: ..., as: other_name}",
            )
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
    """The name of a metric, without the number that Keras adds from the second object on."""
    stem = re.sub(r"_\d+\Z", "", metric.name)
    is_counted = stem.replace("_", "") == type(metric).__name__.lower().replace("_", "")
    return stem if is_counted else metric.name


def _objective(kind: str, part: Named, options: Mapping[str, Any], project: Path) -> Any:
    """Makes a loss or metric of a class or factory; a function of two arguments stays one."""
    if names.is_own(part.name):
        make, mistake = function(part.name, project), signatures.mistaken_truth
    else:
        make, mistake = _closed(kind, part.name), signatures.wrong_kind
    if isinstance(make, keras.losses.Loss | keras.metrics.Metric):
        if options or isinstance(make, keras.metrics.Metric):
            raise _unusable(kind, part.name, options, "it is an object; name its class instead")
        return make
    if not isinstance(make, type) and _takes_labels(make, options):
        problem = mistake(make, options)
        if problem is None and not options:
            return make
        if problem is None:
            return functools.update_wrapper(functools.partial(make, **options), make)
    else:
        problem = signatures.misfit(make, options) or mistake(make, options)
    if problem is not None:
        raise _unusable(kind, part.name, options, problem)
    if names.is_own(part.name):
        return make(**options)
    return _called(kind, part.name, make, options)


def _closed(kind: str, name: str) -> Callable[..., Any]:
    known = names.spelled(name, kind)
    if known is None:
        raise _unusable(kind, name, {}, names.unknown(name, kind))
    inside = known.rpartition(":")[2]
    home = components if inside in names.MODULES[kind][names.COMPONENTS] else _HOMES[kind]
    return getattr(home, inside)


def _takes_labels(make: Callable[..., Any], options: Mapping[str, Any]) -> bool:
    """Whether a function is itself the loss: labels and predictions are all that it lacks."""
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


def _made(kind: str, name: str, options: Mapping[str, Any]) -> Any:
    known = names.spelled(name, kind)
    if known is None:
        raise _unusable(kind, name, options, names.unknown(name, kind))
    make = getattr(components, known, None) or getattr(_HOMES[kind], known)
    given = {
        key: _made("schedule", str(value.get("name")), _without_name(value))
        if isinstance(value, dict)
        else value
        for key, value in options.items()
    }
    problem = signatures.misfit(make, given) or signatures.wrong_kind(
        make, given, exempt=_NUMBERS_OR_WORDS
    )
    if problem is not None:
        raise _unusable(kind, name, options, problem)
    return _called(kind, name, make, given)


def _called(kind: str, name: str, make: Callable[..., Any], options: Mapping[str, Any]) -> Any:
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
            message(
                "A callback of a config writes into the run directory only.",
                expected=f"a name inside {run_dir}",
                received=repr(name),
                do="leave it out, or give a plain name",
            )
        )
    disk.refuse_links(run_dir, path)  # Keras would follow a symlink
    return run_dir.resolve() / path


def _unusable(kind: str, name: str, options: Any, reason: str) -> ConfigurationError:
    return ConfigurationError(
        message(
            f"The {kind} {name} cannot be made from this config.",
            expected=f"the arguments of {name}",
            received=f"{dict(options)}: {' '.join(reason.split())[:400]}",
            do=f"correct the arguments of {name} in the config",
        )
    )
