"""Load a config from a file, the environment and the command line; save it to a file."""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from loopwright import disk
from loopwright.config import names, plain_yaml
from loopwright.config.schema import Config, Export, Fit, Keep
from loopwright.errors import ConfigurationError, disk_explained

PREFIX = "LOOPWRIGHT__"
_REFERENCE = re.compile(r"\$\{([^{}]*)\}")
_MOST_CHARACTERS = 10_000
_MOST_REFERENCES = 1_000

KeyPath = tuple[str, ...]


def from_command_line(words: Iterable[str]) -> list[tuple[KeyPath, Any]]:
    """Parse `key=value` words: dots between the keys, the value in YAML.

    >>> from_command_line(["fit.epochs=5", "optimizer.learning_rate=1e-3"])
    [(('fit', 'epochs'), 5), (('optimizer', 'learning_rate'), 0.001)]
    """
    found = list[tuple[KeyPath, Any]]()
    for word in words:
        key, is_assignment, value = word.partition("=")
        path = tuple(key.split("."))
        if not is_assignment or not all(path):
            raise ConfigurationError(
                "Not a KEY=VALUE override.",
                expected="KEY=VALUE, with dots between keys: fit.epochs=5",
                received=repr(word)[:200],
                do="write the key, an equals sign and the value, without spaces",
            )
        found.append((path, plain_yaml.parse(value, name=f"The value of {key[:80]}")))
    return found


def from_environment(environment: Mapping[str, str]) -> list[tuple[KeyPath, Any]]:
    """Parse variables with the prefix LOOPWRIGHT__: two underscores between the keys.

    >>> from_environment({"LOOPWRIGHT__FIT__EPOCHS": "5", "HOME": "/"})
    [(('fit', 'epochs'), 5)]
    """
    variables = sorted(name for name in environment if name.startswith(PREFIX))
    return [
        (
            tuple(name.removeprefix(PREFIX).lower().split("__")),
            plain_yaml.parse(environment[name], name=name),
        )
        for name in variables
    ]


def with_values(content: Any, values: Iterable[tuple[KeyPath, Any]]) -> Any:
    """Return a copy of the content with values replaced or added at the given paths.

    >>> with_values({"fit": {"epochs": 1}, "callbacks": [{"name": "a"}]}, [
    ...     (("fit", "epochs"), 5), (("callbacks", "0", "name"), "b"), (("seed",), 3)])
    {'fit': {'epochs': 5}, 'callbacks': [{'name': 'b'}], 'seed': 3}
    """
    for path, value in values:
        content = _with(content, path, value, path)
    return content


def interpolated(content: Any) -> Any:
    """Return a copy of the content with each `${a.b}` replaced by the value at a.b.

    >>> interpolated({"seed": 3, "model": {"seed": "${seed}"}, "run_dir": "runs/s${seed}"})
    {'seed': 3, 'model': {'seed': 3}, 'run_dir': 'runs/s3'}
    """
    return _interpolated(content, content, (), (), iter(range(_MOST_REFERENCES)))


def _with(content: Any, path: KeyPath, value: Any, whole: KeyPath) -> Any:
    if not path:
        return value
    key, rest = path[0], path[1:]
    if isinstance(content, list):
        if not key.isdecimal() or int(key[:9]) >= len(content):
            raise _no_key(whole, f"an index below {len(content)}, because this is a list")
        at = int(key)
        return [*content[:at], _with(content[at], rest, value, whole), *content[at + 1 :]]
    if content is not None and not isinstance(content, dict):
        if isinstance(content, str):  # `optimizer: adam` is short for `optimizer: {name: adam}`
            return _with({"name": content}, path, value, whole)
        raise _no_key(whole, "a mapping, but this is a single value")
    inside = {} if content is None else content
    return {**inside, key: _with(inside.get(key), rest, value, whole)}


def _interpolated(value: Any, root: Any, place: KeyPath, seen: KeyPath, left: Iterator[int]) -> Any:
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
        where = ".".join(place)[:200]
        raise _invalid_reference(
            f"A reference in the value of {where} is not closed.",
            f"{where}: {value[:80]!r}, a ${{ without a closing }}",
        )
    whole = _REFERENCE.fullmatch(value)
    if whole:
        return _resolve(whole[1], root, seen, left)

    def replaced(found: re.Match[str]) -> str:
        text = str(_resolve(found[1], root, seen, left))
        if len(text) > _MOST_CHARACTERS:
            what = f"The reference ${{{found[1][:80]}}} is too long."
            raise _invalid_reference(what, f"more than {_MOST_CHARACTERS:,} characters")
        return text

    return _REFERENCE.sub(replaced, value)


def _resolve(name: str, root: Any, seen: KeyPath, left: Iterator[int]) -> Any:
    what = f"The reference ${{{name[:80]}}} cannot be resolved."
    if name in seen:
        raise _invalid_reference(what, "a circular reference: " + " -> ".join([*seen, name])[:200])
    if next(left, None) is None:
        raise _invalid_reference(what, f"more than {_MOST_REFERENCES:,} references")
    found = root
    for key in name.split("."):
        if isinstance(found, list) and key.isdecimal() and int(key[:9]) < len(found):
            found = found[int(key)]
        elif isinstance(found, dict) and key in found:
            found = found[key]
        else:
            raise _invalid_reference(what, "no such key")
    if isinstance(found, dict | list):
        raise _invalid_reference(what, "a mapping or list, not a single value")
    return _interpolated(found, root, (name,), (*seen, name), left)


def _invalid_reference(what: str, received: str) -> ConfigurationError:
    return ConfigurationError(
        what,
        expected="${a.b}, where a.b is a single value in the same config",
        received=received,
        do="write ${seed} for the value of seed; references cannot be nested, and other forms, "
        "such as environment variables, are not supported",
    )


def _no_key(path: KeyPath, expected: str) -> ConfigurationError:
    return ConfigurationError(
        "No such key in the config.",
        expected=expected,
        received=".".join(path)[:200],
        do="print the config: loopwright train ... --show",
    )


FILE = "config.yaml"
_MOST_SHOWN = 5


def load(
    source: str, overrides: Iterable[str] = (), *, environment: Mapping[str, str] | None = None
) -> Config:
    """Load the config of a task or of a YAML file; overrides win over the environment.

    >>> load("digits", ["fit.epochs=5"]).fit.epochs
    5
    """
    words = list(overrides)
    if not source.endswith((".yaml", ".yml")):
        return from_content({"task": _named(source)}, words, environment=environment)
    config = from_content(plain_yaml.read(source), words, environment=environment)
    is_typed = any(word.startswith("task=") for word in words)
    is_typed |= f"{PREFIX}TASK" in (environment or {})
    if names.is_program(config.task) and not is_typed:
        # A config is data: one of a stranger could name a program beside it.
        raise ConfigurationError(
            f"{source[:200]} names a program, which a config may not start.",
            expected=f"task={config.task}, if you know and trust this file",
            received="no task= on the command line",
            do="name the file yourself; or write MODULE:FUNCTION of your project in the config",
        )
    return config


def _named(source: str) -> str:
    """Return a source that can be a task; raise for other words."""
    if source == names.DIGITS or ":" in source or names.is_program(source):
        return source
    is_near = difflib.get_close_matches(source[:80], [names.DIGITS])
    raise ConfigurationError(
        "Unknown task.",
        expected=f"{names.DIGITS}, FILE.py, MODULE:FUNCTION or CONFIG.yaml",
        received=repr(source)[:200],
        do=f"did you mean {names.DIGITS}?"
        if is_near
        else f"the examples are files: loopwright train examples/{source[:80]}.py",
    )


def from_content(
    content: Any,
    overrides: Iterable[str] = (),
    *,
    environment: Mapping[str, str] | None = None,
) -> Config:
    """Merge, interpolate and validate a config."""
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise _invalid([f"a {type(content).__name__} instead of a mapping"])
    content = with_values(content, from_environment(environment or {}))
    content = with_values(content, from_command_line(overrides))
    try:
        return Config.model_validate(interpolated(content))
    except ValidationError as error:
        raise _invalid([_describe(one) for one in error.errors()[:_MOST_SHOWN]]) from None
    except RecursionError:
        raise _invalid(["values nested too deeply"]) from None


def to_yaml(config: Config) -> str:
    """Return the complete config as YAML, which `load` reads back as an equal config.

    >>> from_content(plain_yaml.parse(to_yaml(load("digits")), name="It")) == load("digits")
    True
    """
    return plain_yaml.dump(to_dict(config))


def to_dict(config: Config) -> dict[str, Any]:
    """Return the config as plain values, without the keys of the schema that are None.

    >>> to_dict(load("digits", ["model.rate=null"]))["model"]
    {'rate': None}
    """
    content = config.model_dump()
    content["fit"] = _without_none(content["fit"])
    content["keep"] = [_without_none(rule) for rule in content["keep"]]
    return _without_none(content)


def _without_none(content: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in content.items() if value is not None}


def save(config: Config, run_dir: Path) -> None:
    """Write `config.yaml` into a run directory, atomically."""
    with disk_explained(run_dir):
        disk.write_whole(run_dir, FILE, to_yaml(config).encode(), durable=True)


def saved_in(run_dir: Path, overrides: Iterable[str] = ()) -> Config | None:
    """Return the config that a run was started with; None if there is none."""
    if disk.status(run_dir, FILE) is None:
        return None
    return from_content(plain_yaml.read_in(run_dir, FILE), overrides)


def _describe(error: Any) -> str:
    place = ".".join(str(key) for key in error["loc"])[:200]
    text = error["msg"].removeprefix("Value error, ").splitlines()[0]
    if error["type"] == "extra_forbidden":
        section = {"fit": Fit, "keep": Keep, "export": Export}.get(error["loc"][0], Config)
        known = list(section.model_fields)
        near = difflib.get_close_matches(str(error["loc"][-1]), known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(known)}"
        return f"unknown key {place}; {hint}"
    received = f", not {error['input']!r:.80}" if error["type"] != "value_error" else ""
    return f"{place or 'the config'}: {text[:1].lower()}{text[1:]}{received}"


def _invalid(problems: list[str]) -> ConfigurationError:
    return ConfigurationError(
        "Invalid config.",
        expected="a config that matches docs/config.schema.json",
        received="; ".join(problems),
        do="correct the value, or omit it: every key except task has a default",
    )
