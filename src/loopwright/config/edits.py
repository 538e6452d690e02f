"""Edits between the program that started a run and the one that resumes it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from loopwright.errors import ConfigurationError, message

OnChange = Literal["refuse", "start_over"] | Sequence[str]

STEP = "step"
"""Edited code is a warning only: its digest cannot show what the edit means."""

LENGTH = "steps_per_epoch"
"""Epochs are counted with it, so it must not change within a call of `fit`."""

_PLAIN = ("seed", "shuffle", LENGTH, "class_weight")
_PARTS = ("learning_rate", "optimizer", "loss", "schedules", "layers")
NAMES = (*(name for name in _PLAIN if name != LENGTH), *_PARTS, STEP)
"""The names that `on_change=[...]` accepts."""

_MOST_LISTED = 20
_MOST_CHARACTERS = 120
_MISSING = object()


@dataclass(frozen=True)
class Edit:
    """One setting that differs.

    >>> print(Edit("layers", "model.layers[0].activation", "relu", "tanh"))
    layers (model.layers[0].activation): relu -> tanh
    """

    name: str
    """The name that accepts it in `on_change`."""
    place: str
    before: Any
    now: Any

    def __str__(self) -> str:
        label = f"{self.name} ({self.place})" if self.place else self.name
        if self.name == STEP:
            return _printable(f"{label}: the code differs")
        values = [self.before, self.now]
        kinds = [value.get("class") for value in values if isinstance(value, Mapping)]
        if len(kinds) == len(values) and kinds[0] != kinds[1]:
            values = kinds
        return _printable(f"{label}: {_short(values[0])} -> {_short(values[1])}")


def require_on_change(given: Any) -> None:
    """Raise if `on_change` is neither one of its words nor a list of known names."""
    words = ("refuse", "start_over")
    is_list = isinstance(given, list | tuple | set | frozenset)
    unknown = [name for name in given if name not in NAMES] if is_list else [given]
    if not unknown or (isinstance(given, str) and given in words):
        return
    do = "name settings from this list"
    if LENGTH in unknown:
        do = f"undo the edit of {LENGTH}: epochs are counted with it; or start over"
    elif isinstance(given, str):
        do = (
            f"write on_change=[{given!r}]" if given in NAMES else 'omit it: the default is "refuse"'
        )
    raise ConfigurationError(
        "Unknown on_change policy.",
        expected=f'"refuse", "start_over", or a list of: {", ".join(NAMES)}',
        received=f"on_change={given!r}",
        do=do,
    )


def edits(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Edit]:
    """Return the settings that differ between two declarations, as far as both contain them.

    >>> for edit in edits({"seed": 0, "shuffle": True}, {"seed": 7, "shuffle": True}): print(edit)
    seed: 0 -> 7
    """
    shared = [name for name in (*_PLAIN, *_PARTS) if name in before and name in now]
    found = [
        Edit(name, "", before[name], now[name])
        for name in shared
        if name in _PLAIN and not _same(before[name], now[name])
    ]
    versions, versions_now = before.get("versions", {}), now.get("versions", {})
    # Keras versions differ in the keys of their configs: then a missing key is no edit.
    is_strict = versions.get("keras") == versions_now.get("keras")
    for name in shared:
        if name in _PARTS:
            found += _edited_parts(name, before[name], now[name], is_strict=is_strict)
    if versions.get("code") == versions_now.get("code"):
        codes, codes_now = before.get(STEP, {}), now.get(STEP, {})
        both = [place for place in codes if place in codes_now]
        differing = [place for place in both if codes[place] != codes_now[place]]
        found += [Edit(STEP, place, codes[place], codes_now[place]) for place in differing]
    return found


def refusal(found: Sequence[Edit], *, can_continue: bool) -> str:
    """Return the error message for edits; `can_continue`: the saved state still fits."""
    names = list(dict.fromkeys(edit.name for edit in found))
    listed = [f"    {edit}" for edit in found[:_MOST_LISTED]]
    if len(found) > _MOST_LISTED:
        listed.append(f"    ... and {len(found) - _MOST_LISTED} more")
    accept = ""
    if can_continue and all(name in NAMES for name in names):
        accepted = ", ".join(f'"{name}"' for name in names)
        accept = f"accept it and continue with on_change=[{accepted}], "
    return message(
        "\n".join(["The program differs from the one that started this run.", *listed]),
        do=f'undo the edit, {accept}pass on_change="start_over" (it moves the old run aside, only '
        "if something differs), or choose another run_dir",
    )


def _edited_parts(
    name: str, before: Mapping[str, Any], now: Mapping[str, Any], *, is_strict: bool
) -> Iterator[Edit]:
    is_only = len(before) == len(now) == 1 and name != "layers"
    for path in [*before, *(path for path in now if path not in before)]:
        old, new = before.get(path), now.get(path)
        for key, one, other in _differences("", old, new, is_strict=is_strict):
            place = [] if is_only else [path]
            yield Edit(name, ".".join([*place, *([key] if key else [])]), one, other)


def _differences(
    key: str, before: Any, now: Any, *, is_strict: bool
) -> Iterator[tuple[str, Any, Any]]:
    """Yield the smallest differing parts of two values, with their paths."""
    if not isinstance(before, Mapping) or not isinstance(now, Mapping):
        if not _same(before, now):
            yield key, before, now
    elif before.get("class") != now.get("class"):
        yield key, before, now
    else:
        for inner in [*before, *(inner for inner in now if inner not in before)]:
            one, other = before.get(inner, _MISSING), now.get(inner, _MISSING)
            if is_strict or (one is not _MISSING and other is not _MISSING):
                one, other = (None if value is _MISSING else value for value in (one, other))
                below = f"{key}.{inner}" if key else inner
                yield from _differences(below, one, other, is_strict=is_strict)


def _same(one: Any, other: Any) -> bool:
    """Return whether two values are equal, numbers up to rounding."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one == other or math.isclose(one, other, rel_tol=1e-6)
    return one == other


def _printable(text: str) -> str:
    """Replace control characters: a checkpoint may come from an untrusted source."""
    return "".join(each if each.isprintable() else "?" for each in text)


def _short(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        kind = value.get("class")
        inner = {key: each for key, each in value.items() if key != "class"}
        if kind is None:
            text = "{" + ", ".join(f"{key}: {_short(each)}" for key, each in inner.items()) + "}"
        else:
            text = f"{kind}({', '.join(f'{key}={_short(each)}' for key, each in inner.items())})"
        return text if len(text) <= _MOST_CHARACTERS else str(kind or "{...}")
    return f"{value}"[:_MOST_CHARACTERS]
