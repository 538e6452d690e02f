"""From a file, the environment and the command line to one config; and back to a file."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from loopwright import disk
from loopwright.config import overriding, plain_yaml
from loopwright.config.schema import Config
from loopwright.errors import ConfigurationError, message

FILE = "config.yaml"
_MOST_SHOWN = 5


def load(
    source: str, overrides: Iterable[str] = (), *, environment: Mapping[str, str] | None = None
) -> Config:
    """The config of a recipe, a task or a file; the command line wins over the environment.

    >>> load("digits", ["fit.epochs=5"]).fit.epochs
    5
    """
    return from_content(start(source), overrides, environment=environment)


def start(source: str) -> Any:
    """What a word on the command line stands for: a file, `module:function`, or a recipe."""
    if source.endswith((".yaml", ".yml")):
        return plain_yaml.read(source)
    if ":" in source:
        return {"task": source}
    return {"recipe": source}


def from_content(
    content: Any,
    overrides: Iterable[str] = (),
    *,
    environment: Mapping[str, str] | None = None,
) -> Config:
    """Everything put together, interpolated and checked."""
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise _refused([f"a {type(content).__name__} instead of keys and values"])
    content = overriding.with_values(content, overriding.from_environment(environment or {}))
    content = overriding.with_values(content, overriding.from_command_line(overrides))
    try:
        return Config.model_validate(overriding.interpolated(content))
    except ValidationError as error:
        raise _refused([_explained(one) for one in error.errors()[:_MOST_SHOWN]]) from None
    except RecursionError:
        raise _refused(["values too deep in each other"]) from None


def written(config: Config) -> str:
    """The config as a file that says everything, and that `load` reads back as the same.

    >>> from_content(reading.parsed(written(load("digits")), named="It")) == load("digits")
    True
    """
    return plain_yaml.written(plain(config))


def plain(config: Config) -> dict[str, Any]:
    """The config as plain values, without the keys of the schema that say nothing.

    >>> plain(load("digits", ["model.rate=null"]))["model"]
    {'rate': None}
    """
    content = config.model_dump()
    content["fit"] = _saying(content["fit"])
    content["keep"] = [_saying(rule) for rule in content["keep"]]
    return _saying(content)


def _saying(content: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in content.items() if value is not None}


def save(config: Config, run_dir: Path) -> None:
    """Writes `config.yaml` into a run directory, whole or not at all."""
    disk.write_whole(run_dir, FILE, written(config).encode(), durable=True)


def saved_in(run_dir: Path, overrides: Iterable[str] = ()) -> Config | None:
    """The config that a run was started with; None if it was started without one."""
    if disk.status(run_dir, FILE) is None:
        return None
    return from_content(plain_yaml.read_in(run_dir, FILE), overrides)


def _explained(error: Any) -> str:
    place = ".".join(str(key) for key in error["loc"])[:200]
    text = error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        known = _keys_at(error["loc"][:-1])
        near = difflib.get_close_matches(str(error["loc"][-1]), known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known are: {', '.join(known)}"
        return f"{place} is unknown; {hint}"
    received = f", not {error['input']!r:.80}" if error["type"] != "value_error" else ""
    return f"{place or 'the config'}: {text[:1].lower()}{text[1:]}{received}"


def _keys_at(path: Sequence[Any]) -> list[str]:
    """The keys that the schema knows at a place."""
    model: Any = Config
    for key in path:
        if isinstance(key, int):
            continue
        model = _model_in(model.model_fields[key].annotation)
    return list(model.model_fields)


def _model_in(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_model_in(part) for part in get_args(annotation))
    return next((model for model in found if model is not None), None)


def _refused(problems: list[str]) -> ConfigurationError:
    return ConfigurationError(
        message(
            "The config cannot be used.",
            expected="what `loopwright schema` describes",
            received="; ".join(problems),
            do="correct it, or leave it out: everything but recipe or task has a default",
        )
    )
