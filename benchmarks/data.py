"""The data of the workloads, from seeded NumPy: what every framework trains on."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Data:
    """Arrays and a batch size; models and losses are written for each framework."""

    key: str
    name: str
    x: Any
    y: Any = None
    batch_size: int = 32

    @property
    def steps_per_epoch(self) -> int:
        return -(-len(self.x) // self.batch_size)


def mlp(rows: int = 8192, width: int = 64) -> Data:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 20)).astype("float32")
    y = rng.normal(size=(rows, 1)).astype("float32")
    return Data("mlp", f"mlp 20-{width}-{width}-1, batch 32", x, y)


def mlp_dropout() -> Data:
    return replace(mlp(), key="dropout", name="the mlp with dropout")


def pipeline() -> Data:
    return replace(mlp(), key="pipeline", name="the mlp from tf.data")


def cnn() -> Data:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2048, 28, 28, 1)).astype("float32")
    return Data("cnn", "cnn 28x28, batch 64", x, rng.integers(0, 10, size=2048), 64)


def unet() -> Data:
    x = np.random.default_rng(0).normal(size=(128, 64, 64, 1)).astype("float32")
    return Data("unet", "U-Net 64x64, batch 16", x, (x > 0).astype("float32"), 16)


def resnet() -> Data:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 64, 64, 3)).astype("float32")
    return Data("resnet", "ResNet-18 64x64, batch 32", x, rng.integers(0, 100, size=64))


def lstm() -> Data:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1024, 64, 64)).astype("float32")
    y = rng.normal(size=(1024, 1)).astype("float32")
    return Data("lstm", "LSTM 64x64, batch 32", x, y)


def transformer() -> Data:
    x, y = _next_tokens(1024, length=64)
    return Data("transformer", "transformer 2x64, batch 32", x, y)


def transformer_large() -> Data:
    x, y = _next_tokens(32, length=128)
    return Data("transformer_large", "transformer 6x256, batch 16", x, y, 16)


def two_networks() -> Data:
    x = np.random.default_rng(0).random(size=(8192, 64)).astype("float32")
    return Data("gan", "GAN on 64 numbers, batch 32", x)


def matmul(size: int = 2048) -> Data:
    """One product of two square matrices a step: what the machine can do at most."""
    x = np.random.default_rng(0).normal(size=(1, size, size)).astype("float32")
    return Data("matmul", f"matmul {size}x{size}", x, batch_size=1)


DATA: dict[str, Callable[[], Data]] = {
    "cnn": cnn,
    "unet": unet,
    "resnet": resnet,
    "lstm": lstm,
    "transformer": transformer,
    "transformer_large": transformer_large,
    "mlp": mlp,
    "dropout": mlp_dropout,
    "pipeline": pipeline,
    "gan": two_networks,
    "matmul": matmul,
}
SHORT = ("mlp", "dropout", "pipeline", "gan")
"""The workloads whose steps take less than a millisecond."""
HEAVY = ("resnet", "transformer_large")
"""A step takes about a second: only settings that could help are tried."""
IMAGES = ("cnn", "unet", "resnet")


def _next_tokens(sequences: int, length: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 256, size=(sequences, length + 1)).astype("int32")
    return tokens[:, :-1], tokens[:, 1:]
