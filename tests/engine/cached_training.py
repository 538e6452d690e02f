"""A training whose XLA programs come from the cache, run in processes of their own."""

import hashlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import loopwright as lw
from loopwright.engine import xla_cache, xla_store

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "garbage": lambda content: hashlib.shake_256(content).digest(len(content)),
    "zeros": lambda content: bytes(len(content)),
}


def train(cache: Path, answer: Path, settings: dict[str, str]) -> None:
    """Train, and write down the bits, what the cache gave, or what was raised.

    `settings`: a `plan`, `damage` done to files after they were checked, functions made `before`,
    a `kill` while a program is written, and environment variables in capital letters.
    """
    given = list[str]()
    give = xla_cache._Process._give  # pyright: ignore[reportPrivateUsage]

    def damaged(self: Any, name: str, content: bytes) -> bool:
        given.append(name)
        return give(self, name, DAMAGES.get(settings.get("damage", ""), bytes)(content))

    xla_cache._Process._give = damaged  # pyright: ignore[reportPrivateUsage]
    if "kill" in settings:
        xla_store.disk.write_whole = _killed_halfway
    os.environ["LOOPWRIGHT_CACHE_DIR"] = str(cache)
    os.environ.update({name: value for name, value in settings.items() if name.isupper()})
    before = dict(os.environ)
    found: dict[str, Any] = {}
    try:
        found["bits"] = _bits(settings)
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"
    found["given"], found["is_environment_kept"] = len(given), dict(os.environ) == before
    answer.write_text(json.dumps(found))


def _bits(settings: dict[str, str]) -> str:
    for _ in range(int(settings.get("before", 0))):
        tf.function(lambda value: value + 1)(tf.ones(()))
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).normal(size=(96, 4)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    layers = [keras.Input((4,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    plan = settings.get("plan", "fused")
    data = (x, y)
    if plan == "xla":
        data = (tf.data.Dataset.from_tensor_slices(data).batch(32),)
    trainer = lw.Trainer(lw.Supervised(model, "mse", "adam"), plan=plan)
    trainer.fit(*data, epochs=3, verbose=0)
    held = b"".join(np.asarray(weight).tobytes() for weight in model.weights)
    return hashlib.sha256(held).hexdigest()


def _killed_halfway(root: Path, name: str, content: bytes, **_: Any) -> None:
    (root / f"{name}.0123abcd.tmp").write_bytes(content[: len(content) // 2])
    os.kill(os.getpid(), signal.SIGKILL)
