"""A strict record in a file that may come from anyone; its first problem is said in words.

Imported only when a file is read: `loopwright --help` does without pydantic.
"""

from abc import ABC
from typing import Any

from pydantic import BaseModel, ValidationError, model_validator


class Record(BaseModel, ABC, strict=True, extra="forbid", allow_inf_nan=False):
    """Fields with a default may be missing: not every version has written them."""

    @model_validator(mode="before")
    @classmethod
    def _require_known(cls, value: Any) -> Any:
        # Before pydantic, which would collect an error for each of a million fields.
        if isinstance(value, dict) and cls.model_config.get("extra") == "forbid":
            names = {field.alias or name for name, field in cls.model_fields.items()}
            unknown = next((name for name in value if name not in names), None)
            if unknown is not None:
                raise ValueError(f"unknown field {unknown[:100]!a}")
        return value


def in_words(error: ValidationError) -> str:
    """Return the first thing that is wrong: the field, what is expected, what was received."""
    first = error.errors(include_url=False, include_context=False)[0]
    field = ".".join(f"{name}"[:100] for name in first["loc"]) or "the file"
    text, value = first["msg"], first["input"]
    if first["type"] == "missing":
        return f"{field}: missing"
    if first["type"] == "value_error":
        return f"{field}: {text.removeprefix('Value error, ')}"
    received = type(value).__name__ if isinstance(value, dict | list) else f"{value!a}"[:60]
    return f"{field}: expected {text.removeprefix('Input should be ')}, received {received}"
