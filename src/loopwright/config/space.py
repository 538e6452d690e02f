"""Search spaces: the values that `loopwright tune` may give to keys of a config, as text.

optimizer.learning_rate=float(1e-4,1e-1,log)  model.units=int(16,256,log)  loss=choice(mse,mae)
"""

import difflib
import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

from loopwright.config import file, plain_yaml
from loopwright.config.schema import Config
from loopwright.errors import ConfigurationError

_CALL = re.compile(r"\s*([A-Za-z_]\w*)\((.*)", re.DOTALL)
_EXAMPLES = {
    "float": "float(1e-4,1e-1,log), float(0,1) or float(0,1,step=0.1)",
    "int": "int(16,256,log), int(1,8) or int(32,256,step=32)",
    "choice": "choice(adam,sgd) or choice(0.1,0.5,null)",
}
_MOST_CHOICES = 1_000
Plain = bool | int | float | str | None


@final
@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included.

    >>> print(Range("int", 16, 256, log=True))
    int(16,256,log)
    """

    kind: Literal["float", "int"]
    low: float
    high: float
    step: float | None = None
    log: bool = False

    def __str__(self) -> str:
        step = "" if self.step is None else f",step={self.step}"
        return f"{self.kind}({self.low},{self.high}{step}{',log' if self.log else ''})"

    @property
    def ends(self) -> list[float]:
        """The values that are tried on the schema: the lowest and the highest."""
        return [self.low, self.high]

    @property
    def points(self) -> list[float] | None:
        """All values; None if there are too many to list them."""
        step = self.step or (1 if self.kind == "int" and not self.log else None)
        if step is None:
            return list(self.ends) if self.low == self.high else None
        count = math.floor((self.high - self.low) / step + 1e-8) + 1
        if count > _MOST_CHOICES:
            return None
        return [self.low + at * step for at in range(count)]

    def contains(self, value: Any) -> bool:
        """Return whether a value can come from this range."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        is_kind = is_number and (self.kind == "float" or isinstance(value, int))
        return is_kind and self.low <= value <= self.high


@final
@dataclass(frozen=True)
class Choice:
    """One of several values; lists and mappings are chosen by their text.

    >>> print(Choice(("relu", None, [64, 64])))
    choice(relu,null,[64, 64])
    """

    values: tuple[Any, ...]

    def __str__(self) -> str:
        return f"choice({','.join(map(_text, self.values))})"

    @property
    def ends(self) -> list[Any]:
        """The values that are tried on the schema: all."""
        return list(self.values)

    @property
    def labels(self) -> list[Plain]:
        """What a sampler chooses from: plain values, the text of the others."""
        return [_text(v) if isinstance(v, list | dict) else v for v in self.values]

    def value(self, label: Any) -> Any:
        """Return the value that a label stands for."""
        return self.values[self.index(label)]

    def index(self, label: Any) -> int:
        """Return the place of a label; -1 if there is none."""
        return next((at for at, one in enumerate(self.labels) if one == label), -1)

    def contains(self, value: Any) -> bool:
        """Return whether this is the label of a choice."""
        return self.index(value) >= 0


Dimension = Range | Choice
Space = dict[str, Dimension]


def parsed(words: Iterable[str]) -> tuple[Space, list[str]]:
    """Split `key=value` words into the search space and plain overrides.

    >>> space, overrides = parsed(["model.width=int(1,8)", "fit.epochs=3"])
    >>> print(space["model.width"], overrides)
    int(1,8) ['fit.epochs=3']
    """
    space, overrides, keys = Space(), list[str](), set[str]()
    for word in words:
        key, _, value = word.partition("=")
        if key in keys:
            raise _invalid(
                f"The key {key[:80]} is given twice.",
                "each key once, with a value or with what to search",
                word,
                "omit one of the two",
            )
        keys.add(key)
        if _CALL.match(value):
            space[key] = dimension(key, value)
        else:
            overrides.append(word)
    return space, overrides


def from_mapping(given: Mapping[str, Any]) -> Space:
    """Return a search space that is given in code: texts, or lists of choices.

    >>> print(from_mapping({"loss": ["mse", "mae"], "fit.epochs": "int(1,3)"})["loss"])
    choice(mse,mae)
    """
    space = Space()
    for key, value in given.items():
        if isinstance(value, Range | Choice):
            space[key] = value
        elif isinstance(value, list | tuple):
            space[key] = _choice(key, list(value), repr(value))
        elif isinstance(value, str) and _CALL.match(value):
            space[key] = dimension(key, value)
        else:
            raise _invalid(
                f"Not a search space: {key[:80]}.",
                f"a list of choices, or a text: {'; '.join(_EXAMPLES.values())}",
                repr(value),
                "to set a single value, change the config",
            )
    return space


def dimension(key: str, text: str) -> Dimension:
    """Parse what is searched for one key."""
    found = _CALL.fullmatch(text.rstrip())
    name, rest = (found[1], found[2]) if found else ("", "")
    if name not in _EXAMPLES:
        near = difflib.get_close_matches(name.lower(), _EXAMPLES, n=1, cutoff=0.5)
        hint = f"write {_EXAMPLES[near[0]]}" if near else "choose one of these"
        raise _invalid(
            f"Unknown distribution {name!r:.80} for {key[:80]}.",
            "; ".join(_EXAMPLES.values()),
            f"{key}={text}",
            f"{hint}; a text with parentheses is written in quotes: {key[:80]}='\"f(x)\"'",
        )
    if not rest.endswith(")"):
        raise _invalid(
            f"The distribution of {key[:80]} is not closed.",
            _EXAMPLES[name],
            f"{key}={text}",
            "end it with ), and quote the word in a shell",
        )
    values = plain_yaml.parse(f"[{rest[:-1]}]", name=f"The distribution of {key[:80]}")
    if name == "choice":
        return _choice(key, values, text)
    return _range(key, "int" if name == "int" else "float", values, text)


def _choice(key: str, values: list[Any], text: str) -> Choice:
    if not values:
        raise _invalid(
            f"There is nothing to choose from for {key[:80]}.",
            _EXAMPLES["choice"],
            f"{key}={text}",
            "name the values",
        )
    made = Choice(tuple(values))
    labels = made.labels
    twice = next((v for at, v in enumerate(labels) if made.index(v) != at), None)
    if twice is not None or len(values) > _MOST_CHOICES:
        raise _invalid(
            f"The choices of {key[:80]} cannot be used.",
            f"different values, at most {_MOST_CHOICES:,}",
            f"{_text(twice)} twice" if twice is not None else f"{len(values):,} values",
            "name each value once",
        )
    return made


def _range(key: str, kind: Literal["float", "int"], values: list[Any], text: str) -> Range:
    def refused(what: str, do: str) -> ConfigurationError:
        return _invalid(f"{what} in {key[:80]}.", _EXAMPLES[kind], f"{key}={text}", do)

    bounds, words = values[:2], values[2:]
    is_whole = all(isinstance(each, int) for each in bounds)
    if len(bounds) < 2 or not all(map(_is_number, bounds)) or (kind == "int" and not is_whole):
        numbers = "whole numbers" if kind == "int" else "numbers"
        raise refused(f"The bounds are not two {numbers}", "write the lower and the upper bound")
    low, high = bounds if kind == "int" else map(float, bounds)
    if low >= high:
        raise refused(
            "The bounds are reversed" if low > high else "Both bounds are the same",
            f"write {kind}({bounds[1]},{bounds[0]},...)" if low > high else f"write {key}={low}",
        )
    step, log = None, False
    for word in words:
        name, _, number = str(word).partition("=")
        value: Any = plain_yaml.parse(number, name="The step") if name == "step" else None
        if word == "log" and not log:
            log = True
        elif name == "step" and step is None and _is_number(value) and value > 0:
            step = value
        else:
            near = difflib.get_close_matches(str(word), ["log", "step"], n=1)
            hint = f"did you mean {near[0]}?" if near else "write log, or step=NUMBER above 0"
            raise refused(f"Unknown option {_text(word)!r:.80}", hint)
    if log and low <= 0:
        raise refused("A logarithm of 0 or less", "start above 0, or omit log")
    if log and step is not None:
        raise refused("Both log and a step", "omit one of the two")
    if step is not None and (step > high - low or (kind == "int" and not isinstance(step, int))):
        raise refused("The step does not fit", "write a step that is smaller than the range")
    return Range(kind, low, high, step if kind == "int" or step is None else float(step), log)


def with_parameters(config: Config, space: Space, parameters: Mapping[str, Any]) -> Config:
    """Return the config with the values that a trial was given; raise if they do not fit."""
    chosen = {
        key: one.value(parameters[key]) if isinstance(one, Choice) else parameters[key]
        for key, one in space.items()
    }
    # `optimizer` before `optimizer.learning_rate`, or it would replace what was set in it.
    paths = [(tuple(key.split(".")), chosen[key]) for key in sorted(chosen)]
    return file.from_content(file.with_values(file.to_dict(config), paths))


def first_parameters(space: Space) -> dict[str, Any]:
    """Return the first value of every dimension, as a sampler would give it."""
    return {
        key: one.labels[0] if isinstance(one, Choice) else one.low for key, one in space.items()
    }


def require_fits(config: Config, space: Space) -> None:
    """Raise if a key is not one of the config's, or if it cannot have every value of the space."""
    if not space:
        raise _invalid(
            "There is nothing to search.",
            f"at least one KEY=DISTRIBUTION: {'; '.join(_EXAMPLES.values())}",
            "only plain values",
            "name what may vary: optimizer.learning_rate='float(1e-4,1e-1,log)'",
        )
    for key in space:
        inside = next((each for each in space if key.startswith(f"{each}.")), None)
        is_named = inside is None or all(isinstance(v, str) for v in space[inside].ends)
        if key == "run_dir" or not all(key.split(".")) or not is_named:
            raise _invalid(
                f"{key[:80]} cannot be searched.",
                "a key of the config",
                key if is_named else f"{key}, inside of {inside}",
                "each trial has a run directory of its own; search one of two nested keys",
            )
    first = first_parameters(space)
    for key, one in space.items():
        labels = one.labels if isinstance(one, Choice) else one.ends
        for label in labels:
            with_parameters(config, space, {**first, key: label})


def grid_size(space: Space) -> int:
    """Return the number of combinations; raise if a dimension has no list of values."""
    counts = list[int]()
    for key, one in space.items():
        points = one.labels if isinstance(one, Choice) else one.points
        if points is None:
            raise _invalid(
                f"{key[:80]} has too many values for a grid.",
                f"{_EXAMPLES['choice']}, int(1,8), or a step: float(0,1,step=0.1)",
                f"{key}={one}",
                "add a step, list the values, or use another sampler",
            )
        counts.append(len(points))
    return math.prod(counts)


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what differs between two nested mappings, a line for each.

    >>> differences({"seed": 0, "fit": {"epochs": 1}}, {"seed": 0, "fit": {"epochs": 2}})
    ['fit.epochs: 1 -> 2']
    """
    one, other = dict(_leaves("", before)), dict(_leaves("", now))
    return [
        f"{key}: {_shown(one.get(key))} -> {_shown(other.get(key))}"
        for key in {**one, **other}
        # As JSON, 1 and true are different.
        if key not in one or key not in other or json.dumps(one[key]) != json.dumps(other[key])
    ]


def _shown(value: Any) -> str:
    return "none" if value is None else value if isinstance(value, str) else _text(value)


def _leaves(place: str, value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        inner = ((f"{place}.{key}" if place else str(key), each) for key, each in value.items())
        return itertools.chain.from_iterable(_leaves(key, each) for key, each in inner)
    return [(place, value)]


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value)


def _text(value: Any) -> str:
    """Return a value as one line of YAML.

    >>> _text(None), _text("a b"), _text([1, "x"])
    ('null', 'a b', '[1, x]')
    >>> _text("a,b")
    '"a,b"'
    """
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_text(each)}' for key, each in value.items())}}}"
    if isinstance(value, str) and re.search(r"[][,{}():\n\"']", value):
        return json.dumps(value)
    return plain_yaml.dump(value).removesuffix("\n...\n").strip()


def _invalid(what: str, expected: str, received: str, do: str) -> ConfigurationError:
    return ConfigurationError(what, expected=expected, received=received[:200], do=do)
