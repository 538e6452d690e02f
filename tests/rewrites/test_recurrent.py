"""LSTM and GRU layers with large products outside of their loops compute what Keras computes."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from loopwright.rewrites import recurrent, scope

pytestmark = pytest.mark.kernels

LSTM, GRU = keras.layers.LSTM, keras.layers.GRU
BATCH, TIME, FEATURES, UNITS = 5, 6, 3, 4
ROUNDING = 1e-5
"""Of the largest value of an array: a sum of large parts is rounded like them."""


class OwnLSTM(LSTM):
    """A layer of a user's, which may change anything."""


class OwnCell(keras.layers.LSTMCell):
    def call(self, inputs: Any, states: Any, training: bool = False) -> Any:
        h, states = super().call(inputs, states, training)
        return 2 * h, states


@dataclass
class Asked:
    """Whether a layer may be replaced; it is asked only for layers that can be."""

    answer: bool = True
    layers: list[bool] = field(default_factory=list[bool])

    def __call__(self) -> bool:
        self.layers.append(self.answer)
        return self.answer


def as_keras() -> Any:
    return contextlib.nullcontext()


def at_once() -> Any:
    return recurrent.recurrent_layers_at_once(lambda: True)


def made(kind: Callable[..., Any], **options: Any) -> Any:
    """A layer whose weights are all random, also its biases."""
    keras.utils.set_random_seed(1)
    layer = kind(UNITS, **options)
    layer.build((BATCH, TIME, FEATURES))
    rng = np.random.default_rng(2)
    for variable in layer.trainable_variables:
        variable.assign(rng.normal(scale=0.6, size=variable.shape))
    return layer


def inputs() -> Any:
    return np.random.default_rng(3).normal(size=(BATCH, TIME, FEATURES)).astype("float32")


def some_masked() -> Any:
    """One example is masked as a whole, one at its beginning, others at random."""
    mask = np.random.default_rng(4).random((BATCH, TIME)) < 0.6
    mask[0], mask[1, :3], mask[1, 3:] = False, False, True
    return mask


def first_states(kind: Any) -> list[Any]:
    rng = np.random.default_rng(5)
    return [
        tf.constant(rng.normal(size=(BATCH, UNITS)).astype("float32"))
        for _ in range(2 if kind is LSTM else 1)
    ]


def computed(
    scope: Callable[[], Any],
    layer: Any,
    states: list[Any] | None = None,
    *,
    twice: bool = False,
    xla: bool = False,
    signature: Any = None,
    length: int = TIME,
    **options: Any,
) -> list[Any]:
    """Outputs, and gradients of inputs, first states and weights; of a penalty on them, `twice`."""
    more = {} if states is None else {"initial_state": states}
    given = tf.constant(inputs()[:, :length])

    def step(x: Any) -> Any:
        sources = [x, *(states or []), *(v.value for v in layer.trainable_variables)]

        def first(tape: Any) -> Any:
            tape.watch(sources)
            outputs = tf.nest.flatten(layer(x, **more, **options))
            return outputs, tf.add_n([tf.reduce_sum(tf.sin(3 * output)) for output in outputs])

        with contextlib.ExitStack() as stack:
            outer = stack.enter_context(tf.GradientTape()) if twice else None
            if outer is not None:
                outer.watch(sources)
            with tf.GradientTape(persistent=True) as tape:
                outputs, loss = first(tape)
            gradients = tape.gradient(loss, sources)
            if outer is None:
                return outputs, gradients
            penalty = tf.add_n([tf.reduce_sum(part**2) for part in gradients])
        return outputs, gradients, outer.gradient(penalty, sources)

    with scope():
        function = tf.function(step, signature, autograph=False, jit_compile=xla)
        concrete = function.get_concrete_function(given)
    return [part.numpy() for part in tf.nest.flatten(concrete(given))]


def require_close(own: list[Any], expected: list[Any]) -> None:
    assert len(own) == len(expected)
    for one, other in zip(own, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=ROUNDING * np.abs(other).max())


OPEN = [tf.TensorSpec([None, None, FEATURES])]


@pytest.mark.parametrize(
    "given",
    [
        {"xla": True},
        {"twice": True},
        {"signature": OPEN},
        {"signature": OPEN, "xla": True},
        {"xla": True, "length": 1},
        {"xla": True, "length": 5},
    ],
    ids=["xla", "gradients of gradients", "open", "open, xla", "1 timestep", "5 timesteps"],
)
@pytest.mark.parametrize("kind", [LSTM, GRU])
def test_a_layer_gives_the_outputs_and_gradients_of_keras(kind: Any, given: dict[str, Any]):
    own, expected = (
        computed(
            scope,
            made(kind, return_sequences=True, return_state=True),
            first_states(kind),
            mask=tf.constant(some_masked()[:, : given.get("length", TIME)]),
            **given,
        )
        for scope in (at_once, as_keras)
    )
    require_close(own, expected)


@pytest.mark.parametrize(
    ("options", "masked"),
    [
        ({}, False),
        ({}, True),
        ({"return_sequences": True}, False),
        ({"go_backwards": True, "return_sequences": True, "return_state": True}, True),
        ({"use_bias": False, "return_state": True}, False),
        ({"zero_output_for_mask": True, "return_sequences": True}, True),
        ({"zero_output_for_mask": True}, True),
        ({"dropout": 0.5, "seed": 7}, False),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [LSTM, GRU])
def test_every_option_gives_the_numbers_of_keras(kind: Any, options: Any, masked: bool):
    given: Any = {"training": True, "mask": tf.constant(some_masked()) if masked else None}
    asked = Asked()
    own = computed(
        lambda: recurrent.recurrent_layers_at_once(asked), made(kind, **options), **given
    )
    assert asked.layers
    require_close(own, computed(as_keras, made(kind, **options), **given))


def test_both_directions_of_a_bidirectional_layer_are_replaced():
    def both(units: int) -> Any:
        return keras.layers.Bidirectional(LSTM(units, return_sequences=True))

    asked = Asked()
    own = computed(lambda: recurrent.recurrent_layers_at_once(asked), made(both))
    assert len(asked.layers) == 2
    require_close(own, computed(as_keras, made(both)))


def test_a_stateful_layer_goes_on_from_its_last_state():
    def state_after(scope: Callable[[], Any]) -> list[Any]:
        layer = made(LSTM, stateful=True)
        computed(scope, layer)
        return [*computed(scope, layer), *(state.numpy() for state in layer.states)]

    require_close(state_after(at_once), state_after(as_keras))


def test_float64_stays_float64():
    own = computed(at_once, made(GRU, dtype="float64"))
    assert own[0].dtype == np.float64
    for one, other in zip(own, computed(as_keras, made(GRU, dtype="float64")), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


def with_own_cell(units: int) -> Any:
    layer = LSTM(units)
    layer.cell = OwnCell(units)
    return layer


def with_own_call(units: int) -> Any:
    layer = LSTM(units)
    call = layer.cell.call
    layer.cell.call = lambda inputs, states, training=False: call(2 * inputs, states, training)
    return layer


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (OwnLSTM, {}),
        (with_own_cell, {}),
        (with_own_call, {}),
        (LSTM, {"activation": "relu"}),
        (LSTM, {"recurrent_activation": "hard_sigmoid"}),
        (LSTM, {"recurrent_dropout": 0.3, "seed": 7}),
        (LSTM, {"unroll": True}),
        (LSTM, {"dtype": "mixed_float16"}),
        (LSTM, {"dtype": "mixed_bfloat16"}),
        (GRU, {"reset_after": False}),
        (keras.layers.SimpleRNN, {}),
    ],
)
def test_what_is_not_known_to_be_the_same_runs_as_keras_runs_it(kind: Any, options: Any):
    asked = Asked()
    own = computed(
        lambda: recurrent.recurrent_layers_at_once(asked), made(kind, **options), training=True
    )
    assert not asked.layers
    expected = computed(as_keras, made(kind, **options), training=True)
    for one, other in zip(own, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_function_inside_a_step_keeps_the_loop_of_keras():
    """Its trace is kept for whoever calls it next, also without XLA."""
    layer = made(LSTM)
    function = tf.function(layer.call, autograph=False)

    def matrix_products(step: Callable[[Any], Any]) -> int:
        def traced(x: Any) -> Any:
            with scope.applied(("recurrent",)):
                return step(x)

        graph = tf.function(traced, autograph=False).get_concrete_function(inputs()).graph
        inner = graph.as_graph_def().library.function
        nodes = [node for body in inner for node in body.node_def]
        return sum(node.op == "MatMul" for node in (*graph.as_graph_def().node, *nodes))

    of_keras = matrix_products(function)
    assert matrix_products(layer) < of_keras


def test_without_the_loop_of_keras_a_plan_does_without_the_rewrite(monkeypatch: pytest.MonkeyPatch):
    assert scope.available() == ("threefry", "recurrent")
    monkeypatch.delattr(GRU, "inner_loop")  # it still has the one of RNN
    assert scope.available() == ("threefry",)
