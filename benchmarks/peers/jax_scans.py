"""An epoch as one `lax.scan` in JAX: the mlp in plain JAX, other models from Keras."""
# pyright: reportMissingModuleSource=false

import itertools
from collections.abc import Callable
from typing import Any

import jax
import keras

from benchmarks import models
from benchmarks.data import IMAGES, Data
from benchmarks.measuring import Ready

jnp = jax.numpy
_MLP = {"mlp": 0.0, "dropout": 0.2}
_RATE, _BETA_1, _BETA_2, _EPSILON = 1e-3, 0.9, 0.999, 1e-7

Step = Callable[[Any, Any, Any], Any]
"""Return the next state and the loss, from the state, x and y."""


def ways(key: str) -> dict[int, str]:
    """Return how often the scan's body is repeated, and a word for it; none where it is hopeless.

    XLA's convolutions inside a loop take many times as long on a CPU.
    """
    if key in IMAGES:
        return {}
    return {1: "", 4: "unroll 4"} if key in _MLP else {1: ""}


def ready(data: Data, unroll: int) -> Ready:
    """Return a training whose epochs are one call each: shuffle, scan over batches."""
    state, step = _mlp(_MLP[data.key]) if data.key in _MLP else _keras_model(data.key)
    x, y = jnp.asarray(data.x), jnp.asarray(data.y)

    def epoch(state: Any, key: Any) -> Any:
        order = jax.random.permutation(key, len(x)).reshape(-1, data.batch_size)
        state, losses = jax.lax.scan(
            lambda state, rows: step(state, x[rows], y[rows]), state, order, unroll=unroll
        )
        return state, losses.mean()

    compiled = jax.jit(epoch, donate_argnums=0)
    keys = jax.random.key(1)

    def train(epochs: int) -> None:
        nonlocal state, keys
        loss = None
        for _ in range(epochs):
            keys, key = jax.random.split(keys)
            state, loss = compiled(state, key)
        jax.block_until_ready(loss)

    return Ready(train)


def _mlp(dropout: float) -> tuple[Any, Step]:
    """Return the mlp in plain JAX: parameters, moments, the step's number and the random key."""
    widths, key = (20, 64, 64, 1), jax.random.key(0)
    parameters = [
        (
            jax.random.normal(jax.random.fold_in(key, place), (before, after)) * before**-0.5,
            jnp.zeros(after),
        )
        for place, (before, after) in enumerate(itertools.pairwise(widths))
    ]

    def loss_of(parameters: Any, x: Any, y: Any, key: Any) -> Any:
        *hidden, (weights, bias) = parameters
        for inner, offset in hidden:
            x = jax.nn.relu(x @ inner + offset)
        if dropout:
            kept = jax.random.bernoulli(key, 1 - dropout, x.shape)
            x = jnp.where(kept, x / (1 - dropout), 0.0)
        return jnp.mean((x @ weights + bias - y) ** 2)

    def step(state: Any, x: Any, y: Any) -> Any:
        parameters, first, second, number, key = state
        key, drawn = jax.random.split(key) if dropout else (key, key)
        value, gradients = jax.value_and_grad(loss_of)(parameters, x, y, drawn)
        number = number + 1
        rate = _RATE * jnp.sqrt(1 - _BETA_2**number) / (1 - _BETA_1**number)
        first = jax.tree.map(lambda m, g: m + (g - m) * (1 - _BETA_1), first, gradients)
        second = jax.tree.map(lambda v, g: v + (g * g - v) * (1 - _BETA_2), second, gradients)
        parameters = jax.tree.map(
            lambda p, m, v: p - rate * m / (jnp.sqrt(v) + _EPSILON), parameters, first, second
        )
        return (parameters, first, second, number, key), value

    zeros = jax.tree.map(jnp.zeros_like, parameters)
    return (parameters, zeros, jax.tree.map(jnp.copy, zeros), jnp.float32(0), key), step


def _keras_model(key: str) -> tuple[Any, Step]:
    """Return a Keras model's own functions without side effects, as Keras documents them."""
    make_model, make_loss = models.SUPERVISED[key]
    model, loss = make_model(), keras.losses.get(make_loss())
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)

    def loss_of(trained: Any, untrained: Any, x: Any, y: Any) -> Any:
        predicted, untrained = model.stateless_call(trained, untrained, x, training=True)
        return jnp.mean(loss(y, predicted)), untrained

    def step(state: Any, x: Any, y: Any) -> Any:
        trained, untrained, moments = state
        differentiated = jax.value_and_grad(loss_of, has_aux=True)
        (value, untrained), gradients = differentiated(trained, untrained, x, y)
        trained, moments = optimizer.stateless_apply(moments, gradients, trained)
        return (trained, untrained, moments), value

    variables = (model.trainable_variables, model.non_trainable_variables, optimizer.variables)
    return tuple([jnp.copy(one.value) for one in kind] for kind in variables), step
