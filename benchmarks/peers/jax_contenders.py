"""JAX as a contender: Keras 3 on its backend, and one `lax.scan` over data on the device."""
# pyright: reportMissingModuleSource=false

import functools
from typing import Any

import jax
import keras

from benchmarks import models
from benchmarks.data import DATA, Data
from benchmarks.measuring import Contender, Ready
from benchmarks.outcomes import JAX_SCAN, KERAS_JAX, MATMUL
from benchmarks.peers import jax_scans


def versions() -> dict[str, str]:
    """Return the versions of what is measured here."""
    return {"JAX": jax.__version__, "Keras on JAX": keras.__version__}


def contenders(key: str, settle_seconds: float) -> list[Contender]:
    """Return Keras `fit` as it comes and at its best, and the scan where it makes sense."""
    data = DATA[key]()
    if key == "matmul":
        return [Contender(MATMUL, functools.partial(_matmul, data), "JAX")]
    if key not in models.SUPERVISED or key == "pipeline":
        return []  # the GAN's step and the pipeline are written for TensorFlow
    options = {"steps_per_execution": 32, "jit_compile": True}
    return [
        Contender(KERAS_JAX, functools.partial(_keras, data), "as it comes"),
        Contender(KERAS_JAX, functools.partial(_keras, data, **options), "32 jit"),
        *(
            Contender(JAX_SCAN, functools.partial(jax_scans.ready, data, unroll), word)
            for unroll, word in jax_scans.ways(key).items()
        ),
    ]


def _keras(data: Data, **options: Any) -> Ready:
    make_model, loss = models.SUPERVISED[data.key]
    model = make_model()
    model.compile("adam", loss(), **options)
    given = {"x": data.x, "y": data.y, "batch_size": data.batch_size}
    return Ready(lambda epochs: model.fit(**given, epochs=epochs, verbose=0))


def _matmul(data: Data) -> Ready:
    matrix = jax.numpy.asarray(data.x[0])
    product = jax.jit(jax.numpy.matmul)

    def train(epochs: int) -> None:
        for _ in range(epochs):
            product(matrix, matrix).block_until_ready()

    return Ready(train)
