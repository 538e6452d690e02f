# ai-edge-litert has no usable types; see [tool.pyright] in pyproject.toml.
from typing import Any

def __getattr__(name: str) -> Any: ...
