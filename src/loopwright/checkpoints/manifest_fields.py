"""The fields of a manifest: rejects values of a type that no version of Loopwright wrote.

A manifest may be untrusted, and its checksum only proves that it is complete.
"""

from collections.abc import Callable, Mapping
from typing import Any

from loopwright.loop.schedule import every
from loopwright.plans import plan_history

_Check = Callable[[Any], bool]
_MOST_NAMED = 5
_MOST_SECONDS = 1e12  # datetime can show it, even as a sum over many calls of fit


def wrong_fields(content: Mapping[str, Any]) -> list[str]:
    """Return the names of fields whose values have the wrong type; missing fields are allowed.

    >>> wrong_fields({"leg": 0, "place": {"step": "three", "seconds": 2.5}, "read": []})
    ['place.step', 'read']
    """
    found = list[str]()
    for name, check in _FIELDS.items():
        if name not in content:
            continue
        value = content[name]
        if not isinstance(check, dict):
            found += [] if check(value) else [name]
        elif not isinstance(value, dict):
            found.append(name)
        else:
            inner = ((key, is_right) for key, is_right in check.items() if key in value)
            found += [f"{name}.{key}" for key, is_right in inner if not is_right(value[key])]
    return found


def require_right_kinds(content: Mapping[str, Any]) -> None:
    """Raise a ValueError that names the fields whose values have the wrong type."""
    found = wrong_fields(content)
    if found:
        more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
        raise ValueError(f"values of the wrong type: {', '.join(found[:_MOST_NAMED])}{more}")


def require_resumable(content: Mapping[str, Any]) -> None:
    """Raise a KeyError with the name of a missing field that a run needs to resume."""
    for name, keys in _RESUMED.items():
        for key in keys:
            if key not in content[name]:
                raise KeyError(f"{name}.{key}")


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_seconds(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < _MOST_SECONDS


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict)


def _or_none(check: _Check) -> _Check:
    return lambda value: value is None or check(value)


def _list_of(check: _Check) -> _Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _mapping_of(check: _Check) -> _Check:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_number, value))


def _is_variable(value: Any) -> bool:
    if not isinstance(value, dict) or not all(_is_text(value.get(k)) for k in ("name", "dtype")):
        return False
    return "shape" in value and _or_none(_list_of(_is_count))(value["shape"])


def _is_callback(value: Any) -> bool:
    # The state may be anything: a custom callback returns it from get_state.
    return isinstance(value, dict) and _is_text(value.get("class")) and "state" in value


def _is_interval(value: Any) -> bool:
    return isinstance(value, str) and _can(every, value)


def _is_plan_history(value: Any) -> bool:
    return isinstance(value, dict) and _can(plan_history.parsed, value)


def _can(parse: Callable[[Any], object], value: Any) -> bool:
    try:
        parse(value)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return False
    return True


_RESUMED = {
    "tally": ("totals", "last"),
    "history": ("epoch", "epoch_steps", "validation_steps", "training", "validation"),
}

_FIELDS: dict[str, _Check | dict[str, _Check]] = {
    "leg": _is_count,
    "until": _is_interval,
    "place": {
        **dict.fromkeys(("step", "epoch", "step_in_epoch"), _is_count),
        **dict.fromkeys(("seconds", "epoch_began_seconds"), _is_seconds),
        **dict.fromkeys(("validated_seconds", "saved_seconds"), _is_seconds),
        "validated_step": _or_none(_is_count),
        **dict.fromkeys(("is_due", "epoch_ended", "is_over"), _is_bool),
    },
    "scores": _is_mapping,
    "first_step": _is_count,
    "first_epoch": _is_count,
    "read": {"batches": _is_count, "ends": _is_count, "last_digest": _or_none(_is_text)},
    "data": _is_mapping,
    "has_data": _is_bool,
    "lengths": _mapping_of(_is_count),
    "passed_over": _list_of(_is_count),
    "tally": {
        "totals": _mapping_of(_is_pair),
        "last": _is_mapping,
        "updated": _or_none(_list_of(_is_count)),
    },
    "history": {
        **dict.fromkeys(("epoch", "epoch_steps", "validation_steps"), _list_of(_is_count)),
        **dict.fromkeys(("training", "validation"), _mapping_of(_list_of(lambda value: True))),
    },
    "callbacks": _list_of(_is_callback),
    "plans": _is_plan_history,
    "variables": _list_of(_is_variable),
    "environment": _is_mapping,
    "exact_until_step": _or_none(_is_count),
    "measured": _or_none(_is_mapping),
    "inexact": {
        "reasons": _list_of(_is_text),
        **dict.fromkeys(("loses_position", "restarts_epoch"), _is_bool),
    },
    "end": {
        "is_due": _is_bool,
        "changed": _list_of(_is_text),
        "callbacks": _list_of(_is_callback),
    },
    "declared": dict.fromkeys(
        ("learning_rate", "optimizer", "loss", "schedules", "layers", "step", "versions"),
        _is_mapping,
    ),
}
