"""Whether the arguments in a config fit a function: names, required ones, kinds of values."""

import difflib
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

_TRUTHS = {"yes", "no", "on", "off", "y", "n", "true", "false"}
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def misfit(make: Callable[..., Any], options: Mapping[str, Any]) -> str | None:
    """Describe the first argument that is unknown or missing; None if all fit.

    >>> def make(threshold, name="x"): ...
    >>> misfit(make, {"treshold": 1})
    'unknown argument treshold; did you mean threshold?'
    """
    parameters, takes_any = _parameters(make)
    if not takes_any:
        for name in options:
            if name not in parameters:
                near = difflib.get_close_matches(name, parameters, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known: {_listed(parameters)}"
                return f"unknown argument {name[:80]}; {hint}"
    try:
        inspect.signature(make).bind(**options)
    except (TypeError, ValueError) as error:
        return str(error)
    return None


def mistaken_truth(make: Callable[..., Any], options: Mapping[str, Any]) -> str | None:
    """Describe a word such as `no` where the default is true or false: every word counts as true.

    >>> def make(residual=True): ...
    >>> mistaken_truth(make, {"residual": "no"})
    "residual is true or false, not the word 'no'"
    """
    parameters, _ = _parameters(make)
    for name, value in options.items():
        is_truth = name in parameters and isinstance(parameters[name].default, bool)
        if is_truth and isinstance(value, str) and value.lower() in _TRUTHS:
            return f"{name} is true or false, not the word {value!r}"
    return None


def wrong_kind(
    make: Callable[..., Any], options: Mapping[str, Any], exempt: Collection[str] = ()
) -> str | None:
    """Describe the first argument of another kind than its default; None if there is none.

    >>> wrong_kind(lambda from_logits=False: None, {"from_logits": 3})
    'from_logits is true or false, not 3'
    """
    parameters, _ = _parameters(make)
    for name, value in options.items():
        default = parameters[name].default if name in parameters else None
        if value is None or name in exempt:
            continue
        if isinstance(default, bool) and not isinstance(value, bool):
            return f"{name} is true or false, not {value!r:.80}"
        is_number = isinstance(default, int | float) and not isinstance(default, bool)
        if is_number and isinstance(value, bool | str):
            return f"{name} is a number, not {value!r:.80}"
    return None


def _parameters(make: Callable[..., Any]) -> tuple[dict[str, inspect.Parameter], bool]:
    """All named parameters, and whether any other name is taken too.

    A class that hands `**options` to its base class takes what the base class takes.
    """
    found = dict[str, inspect.Parameter]()
    layers: list[Any] = [make]
    if isinstance(make, type):
        layers = [kind.__init__ for kind in make.__mro__ if "__init__" in vars(kind)]
        layers = [make, *layers[1:]] if layers else [make]
    for layer in layers:
        try:
            parameters = inspect.signature(layer).parameters.values()
        except ValueError:  # a function in C without a signature
            return found, True
        for one in parameters:
            if one.kind in _NAMED and one.name != "self":
                found.setdefault(one.name, one)
        if all(one.kind is not inspect.Parameter.VAR_KEYWORD for one in parameters):
            return found, False
    return found, not isinstance(make, type)


def _listed(parameters: Mapping[str, Any]) -> str:
    return ", ".join(parameters) or "no arguments"
