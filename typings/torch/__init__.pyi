# PyTorch is installed only in an environment of the benchmarks; see `make bench-peers`.
from typing import Any

def __getattr__(name: str) -> Any: ...
