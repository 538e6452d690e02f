"""Rows in W&B's offline files, in the format of LevelDB's log: W&B ships no reader of them."""

import importlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_BLOCK_BYTES, _FILE_HEADER_BYTES = 32768, 7
_HEADER = struct.Struct("<IHB")  # checksum, length, kind
_WHOLE, _LAST = 1, 4


def rows_in(path: Path) -> list[dict[str, Any]]:
    """Every row of a `.wandb` file; its end may be missing."""
    messages: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    rows = []
    for data in _records(path.read_bytes()):
        record = messages.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            rows.append(
                {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json)
                    for item in record.history.item
                }
            )
    return rows


def _records(content: bytes) -> Iterator[bytes]:
    at, whole = _FILE_HEADER_BYTES, b""
    while at + _HEADER.size <= len(content):
        left = _BLOCK_BYTES - at % _BLOCK_BYTES
        if left < _HEADER.size:
            at += left
            continue
        _, length, kind = _HEADER.unpack_from(content, at)
        at += _HEADER.size
        if at + length > len(content) or not kind:
            return
        whole += content[at : at + length]
        at += length
        if kind in (_WHOLE, _LAST):
            yield whole
            whole = b""
