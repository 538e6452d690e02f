"""Values from elsewhere: the environment, the command line, other places of the same config."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from loopwright.config import plain_yaml
from loopwright.errors import ConfigurationError, message

PREFIX = "LOOPWRIGHT__"
_REFERENCE = re.compile(r"\$\{([^{}]*)\}")
_MOST_CHARACTERS = 10_000
_MOST_REFERENCES = 1_000

Path = tuple[str, ...]


def from_command_line(words: Iterable[str]) -> list[tuple[Path, Any]]:
    """What `key=value` says, with dots between the keys and a value in YAML.

    >>> from_command_line(["fit.epochs=5", "optimizer.learning_rate=1e-3"])
    [(('fit', 'epochs'), 5), (('optimizer', 'learning_rate'), 0.001)]
    """
    found = list[tuple[Path, Any]]()
    for word in words:
        key, is_assignment, value = word.partition("=")
        path = tuple(key.split("."))
        if not is_assignment or not all(path):
            raise ConfigurationError(
                message(
                    "This does not say what to set.",
                    expected="KEY=VALUE, with dots between keys: fit.epochs=5",
                    received=repr(word)[:200],
                    do="write the key, an equals sign and the value, without spaces",
                )
            )
        found.append((path, _value(value, f"The value of {key[:80]}")))
    return found


def from_environment(environment: Mapping[str, str]) -> list[tuple[Path, Any]]:
    """What variables of our prefix say, with two underscores between the keys.

    >>> from_environment({"LOOPWRIGHT__FIT__EPOCHS": "5", "HOME": "/"})
    [(('fit', 'epochs'), 5)]
    """
    ours = sorted(name for name in environment if name.startswith(PREFIX))
    return [
        (tuple(name.removeprefix(PREFIX).lower().split("__")), _value(environment[name], name))
        for name in ours
    ]


def with_values(content: Any, values: Iterable[tuple[Path, Any]]) -> Any:
    """The content with other values at some places; what was given is not changed.

    >>> with_values({"fit": {"epochs": 1}, "callbacks": [{"name": "a"}]}, [
    ...     (("fit", "epochs"), 5), (("callbacks", "0", "name"), "b"), (("seed",), 3)])
    {'fit': {'epochs': 5}, 'callbacks': [{'name': 'b'}], 'seed': 3}
    """
    for path, value in values:
        content = _with(content, path, value, path)
    return content


def interpolated(content: Any) -> Any:
    """The content with `${a.b}` replaced by what stands at a.b.

    >>> interpolated({"seed": 3, "model": {"seed": "${seed}"}, "run_dir": "runs/s${seed}"})
    {'seed': 3, 'model': {'seed': 3}, 'run_dir': 'runs/s3'}
    """
    return _interpolated(content, content, (), (), iter(range(_MOST_REFERENCES)))


def _value(text: str, named: str) -> Any:
    if len(text) > plain_yaml.MOST_BYTES:
        text = "[" * plain_yaml.MOST_DEPTH * 2
    return plain_yaml.parsed(text, named=named)


def _with(content: Any, path: Path, value: Any, whole: Path) -> Any:
    if not path:
        return value
    key, rest = path[0], path[1:]
    if isinstance(content, list):
        if not key.isdecimal() or int(key[:9]) >= len(content):
            raise _no_place(whole, f"a number below {len(content)}, for this is a list")
        at = int(key)
        return [*content[:at], _with(content[at], rest, value, whole), *content[at + 1 :]]
    if content is not None and not isinstance(content, dict):
        if isinstance(content, str):  # `optimizer: adam` is short for `optimizer: {name: adam}`
            return _with({"name": content}, path, value, whole)
        raise _no_place(whole, "keys, but a value stands there")
    inside = {} if content is None else content
    return {**inside, key: _with(inside.get(key), rest, value, whole)}


def _interpolated(value: Any, root: Any, place: Path, seen: Path, left: Iterator[int]) -> Any:
    if isinstance(value, dict):
        return {
            key: _interpolated(item, root, (*place, str(key)), seen, left)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [
            _interpolated(item, root, (*place, str(at)), seen, left)
            for at, item in enumerate(value)
        ]
    if not isinstance(value, str) or "${" not in value:
        return value
    if "${" in _REFERENCE.sub("", value):
        raise _unclosed(value, place)
    whole = _REFERENCE.fullmatch(value)
    if whole:
        return _referred(whole[1], root, seen, left)
    text = ""
    at = 0
    for found in _REFERENCE.finditer(value):
        text += value[at : found.start()] + str(_referred(found[1], root, seen, left))
        at = found.end()
        if len(text) > _MOST_CHARACTERS:
            raise _no_reference(found[1], f"a text of more than {_MOST_CHARACTERS:,} characters")
    return text + value[at:]


def _referred(name: str, root: Any, seen: Path, left: Iterator[int]) -> Any:
    if name in seen:
        raise _no_reference(name, "a circle: " + " -> ".join([*seen, name])[:200])
    if next(left, None) is None:
        raise _no_reference(name, f"more than {_MOST_REFERENCES:,} references")
    found = root
    for key in name.split("."):
        if isinstance(found, list) and key.isdecimal() and int(key[:9]) < len(found):
            found = found[int(key)]
        elif isinstance(found, dict) and key in found:
            found = found[key]
        else:
            raise _no_reference(name, "nothing of this name")
    if isinstance(found, dict | list):
        raise _no_reference(name, "not a single value")
    return _interpolated(found, root, (name,), (*seen, name), left)


def _unclosed(value: str, place: Path) -> ConfigurationError:
    where = ".".join(place)[:200]
    return ConfigurationError(
        message(
            f"A reference in the value of {where} is not closed.",
            expected="${a.b}, where a.b is a single value in the same config",
            received=f"{where}: {value[:80]!r}, a ${{ without its }}",
            do="write ${seed} to use the value of seed; a reference cannot contain another one",
        )
    )


def _no_reference(name: str, received: str) -> ConfigurationError:
    return ConfigurationError(
        message(
            f"The reference ${{{name[:80]}}} leads nowhere.",
            expected="${a.b}, where a.b is a single value in the same config",
            received=received,
            do="correct the name; other forms, as for environment variables, are not known",
        )
    )


def _no_place(path: Path, expected: str) -> ConfigurationError:
    return ConfigurationError(
        message(
            "There is no such place in the config.",
            expected=expected,
            received=".".join(path)[:200],
            do="look at the config as it is: loopwright train ... --show",
        )
    )
