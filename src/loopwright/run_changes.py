"""What was asked of a run compared with what is asked now; `on_change` accepts edits.

`fit/run_spec.py` records it as JSON. Nothing here imports TensorFlow: configs name these settings,
and `loopwright compare` reads them from the files of runs.
"""

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

_VALUES = ("seed", "shuffle", LENGTH, "class_weight")
_PARTS = ("learning_rate", "optimizer", "loss", "schedules", "layers")
NAMES = (*(name for name in _VALUES if name != LENGTH), *_PARTS, STEP)
"""The names that `on_change=[...]` accepts."""

_MOST_LISTED = 20
_MOST_CHARACTERS = 120


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
        values = [self.before, self.now]
        classes = [value.get("class") for value in values if isinstance(value, Mapping)]
        if len(classes) == len(values) and classes[0] != classes[1]:
            values = classes
        change = "the code differs" if self.name == STEP else " -> ".join(map(_short, values))
        # A checkpoint may come from an untrusted source.
        return "".join(c if c.isprintable() else "?" for c in f"{label}: {change}")


def require_on_change(given: Any) -> None:
    """Raise if `on_change` is neither one of its words nor a list of known names."""
    is_list = isinstance(given, list | tuple | set | frozenset)
    unknown = [name for name in given if name not in NAMES] if is_list else [given]
    if not unknown or (isinstance(given, str) and given in ("refuse", "start_over")):
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
    """Return the settings that differ between two run specs, as far as both contain them.

    >>> for edit in edits({"seed": 0, "shuffle": True}, {"seed": 7, "shuffle": True}): print(edit)
    seed: 0 -> 7
    """
    changed = list[Edit]()
    versions, versions_now = before.get("versions", {}), now.get("versions", {})
    # Keras versions differ in the keys of their configs: then a missing key is no edit.
    is_strict = versions.get("keras") == versions_now.get("keras")
    for name in (*_VALUES, *_PARTS):
        if name not in before or name not in now:
            continue
        old, new = before[name], now[name]
        if name in _PARTS:
            changed += _edited_parts(name, old, new, is_strict=is_strict)
        elif not _is_same(old, new):
            changed.append(Edit(name, "", old, new))
    if versions.get("code") == versions_now.get("code"):
        codes = now.get(STEP, {})
        for place, code in before.get(STEP, {}).items():
            if codes.get(place, code) != code:
                changed.append(Edit(STEP, place, code, codes[place]))
    return changed


def refusal(changed: Sequence[Edit], *, can_continue: bool) -> str:
    """Return the error message for edits; `can_continue`: the saved state still fits."""
    listed = [f"    {edit}" for edit in changed[:_MOST_LISTED]]
    if len(changed) > _MOST_LISTED:
        listed.append(f"    ... and {len(changed) - _MOST_LISTED} more")
    names = dict.fromkeys(edit.name for edit in changed)
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
    for path in {**before, **now}:
        differing = _differences(before.get(path), now.get(path), is_strict=is_strict)
        for keys, old, new in differing:
            yield Edit(name, ".".join(keys if is_only else (path, *keys)), old, new)


def _differences(
    before: Any, now: Any, *, is_strict: bool, keys: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Yield the smallest differing parts of two values, each with the keys that lead to it."""
    are_mappings = isinstance(before, Mapping) and isinstance(now, Mapping)
    if are_mappings and before.get("class") == now.get("class"):
        for key in {**before, **now}:
            if is_strict or (key in before and key in now):
                old, new = before.get(key), now.get(key)
                yield from _differences(old, new, is_strict=is_strict, keys=(*keys, key))
    elif not _is_same(before, now):
        yield keys, before, now


def _is_same(before: Any, now: Any) -> bool:
    """Return whether two values are equal, numbers up to rounding."""
    if isinstance(before, list) and isinstance(now, list):
        return len(before) == len(now) and all(map(_is_same, before, now))
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        return before.keys() == now.keys() and all(_is_same(before[k], now[k]) for k in before)
    if isinstance(before, bool) or isinstance(now, bool):
        return before is now
    if isinstance(before, int | float) and isinstance(now, int | float):
        return before == now or math.isclose(before, now, rel_tol=1e-6)
    return before == now


def _short(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:.6g}"
    if not isinstance(value, Mapping):
        return f"{value}"[:_MOST_CHARACTERS]
    kind, sign = value.get("class"), "=" if "class" in value else ": "
    inner = ", ".join(f"{key}{sign}{_short(v)}" for key, v in value.items() if key != "class")
    text = f"{{{inner}}}" if kind is None else f"{kind}({inner})"
    return text if len(text) <= _MOST_CHARACTERS else str(kind or "{...}")
