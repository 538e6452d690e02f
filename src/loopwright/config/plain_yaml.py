"""Read and write the safe subset of YAML that configs use. Nothing is executed.

Unlike plain PyYAML: `1e-3` is a number, `no` and dates are strings; duplicate keys, aliases, tags
and files beyond a size limit are refused.
"""

import os
import re
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, ClassVar, final

import yaml

from loopwright import disk
from loopwright.errors import ConfigurationError

MOST_BYTES = 1_000_000
MOST_PARTS = 20_000
MOST_DEPTH = 50

# libyaml is ten times faster; without it, fall back to pure Python.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@final
class _PlainLoader(_Loader):
    """Requires unique string keys; reads numbers in all common notations."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if not isinstance(key, str):
                raise ValueError(f"the key {key!r:.80} is not a string: quote it")
            if keys.count(key) > 1:
                raise ValueError(f"duplicate key {key!r:.80}")
        return super().construct_mapping(node, deep=deep)


def _integer(loader: Any, node: Any) -> int:
    return int(node.value.replace("_", ""))


def _number(loader: Any, node: Any) -> float:
    text = node.value.replace("_", "").lower().replace(".inf", "inf")
    return float(text)


@final
class _PlainDumper(yaml.SafeDumper):
    """Quotes strings that some YAML loader would not read as strings."""


_EXPONENT = r"[eE][-+]?[0-9]+"
for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(0|[1-9][0-9_]*)", list("-+0123456789")),
    (
        "float",
        rf"[-+]?(\.[0-9]+|[0-9][0-9_]*\.[0-9]*)({_EXPONENT})?|[-+]?[0-9][0-9_]*{_EXPONENT}"
        r"|[-+]?\.(inf|Inf)",  # no NaN: it is not even equal to itself
        list("-+.0123456789"),
    ),
):
    for _kind in (_PlainLoader, _PlainDumper):
        _kind.add_implicit_resolver(
            f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), _first
        )
_PlainLoader.add_constructor("tag:yaml.org,2002:int", _integer)
_PlainLoader.add_constructor("tag:yaml.org,2002:float", _number)


def dump(content: Any) -> str:
    """Return YAML that `parse` reads back as an equal value.

    >>> print(dump({"a": "1e-3", "b": 0.001}), end="")
    a: '1e-3'
    b: 0.001
    """
    return yaml.dump(content, Dumper=_PlainDumper, sort_keys=False, allow_unicode=True)


def parse(text: str, *, name: str) -> Any:
    """Return the value of a YAML text; errors call the text `name`.

    >>> parse("{learning_rate: 1e-3, name: no}", name="an example")
    {'learning_rate': 0.001, 'name': 'no'}
    """
    try:
        _require_plain(text)
        return yaml.load(text, _PlainLoader)
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError) as error:
        raise ConfigurationError(
            f"{name} cannot be parsed as YAML.",
            expected="plain values: strings, numbers, lists, mappings with unique keys",
            received=_in_one_line(error),
            do="correct the YAML",
        ) from None


def read(path: "str | os.PathLike[str]") -> Any:
    """Read a YAML file that the user named."""
    path = Path(path)

    def content() -> bytes:
        # A named pipe would block forever, and a device would never end.
        if not path.is_file():
            raise FileNotFoundError(2, "no such file")
        with path.open("rb") as file:
            return file.read(MOST_BYTES + 1)

    return _read(path, content)


def read_in(run_dir: Path, name: str) -> Any:
    """Read a YAML file of a run, without following symlinks."""
    return _read(run_dir / name, lambda: disk.read(run_dir, name, MOST_BYTES + 1))


def _read(path: Path, content: Callable[[], bytes]) -> Any:
    try:
        raw = content()
        problem = f"more than {MOST_BYTES:,} bytes" if len(raw) > MOST_BYTES else ""
        text = "" if problem else raw.decode("utf-8")
    except OSError as error:
        text, problem = "", str(error.strerror)
    except UnicodeDecodeError:
        text, problem = "", "not UTF-8"
    if problem:
        raise ConfigurationError(
            f"The config {path} cannot be read.",
            expected=f"a YAML file of at most {MOST_BYTES:,} bytes",
            received=problem,
            do="check the path and its permissions",
        )
    return parse(text, name=f"The config {path}")


def _require_plain(text: str) -> None:
    """Check the parser events of a text before any object is built from it."""
    depth = 0
    for count, event in enumerate(yaml.parse(text, _Loader)):
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise ValueError("an alias or anchor; ${a.b} refers to another value")
        if getattr(event, "tag", None) not in (None, "!"):
            raise ValueError(f"the tag {event.tag!r:.80}")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if count > MOST_PARTS or depth > MOST_DEPTH:
            raise ValueError(f"more than {MOST_PARTS:,} parts, or {MOST_DEPTH} levels")


def _in_one_line(error: BaseException) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    return " ".join(f"{problem}{where}".split())[:300]
