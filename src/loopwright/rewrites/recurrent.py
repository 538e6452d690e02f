"""Keras' LSTM and GRU under XLA: large matrix products outside of their loops over time.

Keras multiplies the inputs of each timestep inside the loop, and adds up the gradients of both
kernels there: small products, one after the other. Here the inputs of all timesteps are multiplied
at once, and the backward loop, written by hand, only carries the gradient of the state from one
timestep to the one before: what does not depend on it is computed for all timesteps before the
loop, and the gradients of the kernels after it. The numbers are those of Keras to rounding.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from loopwright.compat.internals import Function, replaced, uses

_Loop = Callable[[Any, Any, Any, Any], tuple[Any, Any, tuple[Any, ...]]]
"""Takes the layer, projected inputs by timestep, a mask and states; returns all outputs, the last
one and the last states."""

_CALLS: dict[type, Any] = {
    cell: cell.call for cell in (keras.layers.LSTMCell, keras.layers.GRUCell)
}
_TANH = (keras.activations.tanh, keras.ops.tanh, tf.tanh)
_SIGMOID = (keras.activations.sigmoid, keras.ops.sigmoid, tf.sigmoid)


@uses(
    "keras.layers.LSTM.inner_loop",
    "keras.layers.GRU.inner_loop",
    "keras.layers.LSTMCell.get_dropout_mask",
    if_moved="slower",
)
@contextlib.contextmanager
def recurrent_layers_at_once(is_free: Callable[[], bool]) -> Iterator[None]:
    """Run Keras' own LSTM and GRU layers as above, where `is_free` allows it.

    Only where that is the same computation: with Keras' own cells, the activations they have by
    default, no recurrent dropout, in float32 or float64. Others run as Keras runs them.
    """
    with (
        replaced(keras.layers.LSTM, "inner_loop", _instead(keras.layers.LSTMCell, _lstm, is_free)),
        replaced(keras.layers.GRU, "inner_loop", _instead(keras.layers.GRUCell, _gru, is_free)),
    ):
        yield


def is_available() -> bool:
    """Return whether Keras has the loops that are replaced, each layer its own."""
    has_loops = all("inner_loop" in vars(kind) for kind in (keras.layers.LSTM, keras.layers.GRU))
    return has_loops and hasattr(keras.layers.LSTMCell, "get_dropout_mask")


def _instead(
    cell: type, loop: _Loop, is_free: Callable[[], bool]
) -> Callable[[Function], Function]:
    def around(original: Function) -> Function:
        def inner_loop(
            self: Any, sequences: Any, initial_state: Any, mask: Any, training: Any = False
        ) -> Any:
            is_known = type(self.cell) is cell and _is_standard(self, sequences, initial_state)
            if not (is_known and is_free()):
                return original(self, sequences, initial_state, mask, training=training)
            mask = next(iter(tf.nest.flatten(mask)), None)
            # Those of a stateful layer are variables.
            states = [tf.convert_to_tensor(state) for state in tf.nest.flatten(initial_state)]
            return _run(self, loop, sequences, states, mask, training)

        return inner_loop

    return around


def _is_standard(layer: Any, sequences: Any, states: Any) -> bool:
    """Return whether Keras would compute what `_lstm` and `_gru` compute."""
    cell = layer.cell
    dtypes = {cell.compute_dtype, cell.variable_dtype, layer.compute_dtype}
    values = (sequences, *tf.nest.flatten(states))
    dtypes |= {keras.backend.standardize_dtype(value.dtype) for value in values}
    return (
        type(layer) in (keras.layers.LSTM, keras.layers.GRU)
        and getattr(cell.call, "__func__", None) is _CALLS[type(cell)]
        and len(dtypes) == 1
        and dtypes <= {"float32", "float64"}
        and sequences.shape.rank == 3
        and cell.activation in _TANH
        and cell.recurrent_activation in _SIGMOID
        and cell.implementation == 2
        and not cell.recurrent_dropout
        and getattr(cell, "reset_after", True)
        and cell.activity_regularizer is None
        and not layer.unroll
        and layer.use_cudnn is not True
    )


def _run(
    layer: Any, loop: _Loop, sequences: Any, states: Sequence[Any], mask: Any, training: Any
) -> tuple[Any, Any, list[Any]]:
    """Return what Keras' `inner_loop` returns: the last output, all outputs, the last states."""
    cell = layer.cell
    if training and 0.0 < cell.dropout < 1.0:
        sequences *= cell.get_dropout_mask(sequences[:, 0, :])[:, tf.newaxis]
    inputs = _by_time(layer, sequences)
    if mask is not None:
        mask = tf.cast(mask, tf.bool)
        mask = _by_time(layer, mask if mask.shape.rank == 3 else mask[..., tf.newaxis])
    outputs, last, states = loop(layer, inputs, mask, states)
    if mask is not None:
        # A masked timestep repeats the output before it, which is zero at first, or gives zero.
        counts = mask if layer.zero_output_for_mask else _true_until_now(mask)
        outputs = tf.where(counts, outputs, tf.zeros_like(outputs))
        last = tf.where(counts[-1], last, tf.zeros_like(last))
    if not layer.return_sequences:
        return last, last[:, tf.newaxis], list(states)
    return last, tf.transpose(outputs, [1, 0, 2]), list(states)


def _by_time(layer: Any, sequences: Any) -> Any:
    by_time = tf.transpose(sequences, [1, 0, 2])
    return tf.reverse(by_time, [0]) if layer.go_backwards else by_time


def _true_until_now(mask: Any) -> Any:
    return tf.cumsum(tf.cast(mask, tf.int32), axis=0) > 0


def _projected(inputs: Any, kernel: Any, bias: Any) -> Any:
    projected = tf.tensordot(inputs, tf.convert_to_tensor(kernel), 1)
    return projected if bias is None else projected + bias


# -- LSTM ------------------------------------------------------------------------------------------


def _lstm(layer: Any, inputs: Any, mask: Any, states: Any) -> tuple[Any, Any, tuple[Any, ...]]:
    cell, units = layer.cell, layer.cell.units

    @tf.custom_gradient
    def run(projected: Any, kernel: Any, h_first: Any, c_first: Any) -> Any:
        def forward(now: Any, states: Any) -> Any:
            h, c = states
            i, f, g, o = tf.split(now[0] + tf.matmul(h, kernel), 4, axis=-1)
            i, f, g, o = tf.sigmoid(i), tf.sigmoid(f), tf.tanh(g), tf.sigmoid(o)
            c_new = f * c + i * g
            h, c = _kept(now[1:], (o * tf.tanh(c_new), c_new), (h, c))
            return (h, c), (tf.concat([i, f, g, o], axis=-1), h, c)

        over = [projected, *_given(mask)]
        (h_last, c_last), (gates, hs, cs) = _scanned(
            forward, over, (h_first, c_first), (units, units)
        )

        def gradient(dhs: Any, dh_last: Any, dc_last: Any) -> Any:
            i, f, g, o = tf.split(gates, 4, axis=-1)
            squashed = tf.tanh(cs)
            into_c = o * (1 - squashed * squashed)
            slopes = [
                g * i * (1 - i),
                _before(c_first, cs) * f * (1 - f),
                i * (1 - g * g),
                squashed * o * (1 - o),
            ]
            into_gates = tf.concat(slopes, axis=-1)
            if mask is not None:
                into_c, into_gates = (_zero_unless(mask, part) for part in (into_c, into_gates))
                f = tf.where(mask, f, tf.ones_like(f))
            # XLA's product by a kernel that it has to transpose takes about a fifth longer.
            kernel_transposed = tf.transpose(kernel)

            def backward(now: Any, states: Any) -> Any:
                into_gates, into_c, f, dh_out = now[:4]
                dh, dc = states[0] + dh_out, states[1]
                dc += dh * into_c
                dgates = tf.concat([dc, dc, dc, dh], axis=-1) * into_gates
                dh_before = tf.matmul(dgates, kernel_transposed)
                if mask is not None:
                    dh_before += _zero_if(now[4], dh)
                return (dh_before, dc * f), (dgates,)

            over = [into_gates, into_c, f, dhs, *_given(mask)]
            (dh, dc), (dgates,) = _scanned(backward, over, (dh_last, dc_last), backwards=True)
            return [dgates, _summed_products(_before(h_first, hs), dgates), dh, dc]

        return (hs, h_last, c_last), gradient

    projected = _projected(inputs, cell.kernel, cell.bias)
    outputs, h, c = run(projected, tf.convert_to_tensor(cell.recurrent_kernel), *states)
    return outputs, h, (h, c)


# -- GRU -------------------------------------------------------------------------------------------


def _gru(layer: Any, inputs: Any, mask: Any, states: Any) -> tuple[Any, Any, tuple[Any, ...]]:
    cell, units = layer.cell, layer.cell.units

    @tf.custom_gradient
    def run(projected: Any, kernel: Any, bias: Any, h_first: Any) -> Any:
        def forward(now: Any, states: Any) -> Any:
            (h,) = states
            x_zr, x_h = tf.split(now[0], [2 * units, units], axis=-1)
            own_zr, own_h = tf.split(tf.matmul(h, kernel) + bias, [2 * units, units], axis=-1)
            z, r = tf.split(tf.sigmoid(x_zr + own_zr), 2, axis=-1)
            candidate = tf.tanh(x_h + r * own_h)
            (h,) = _kept(now[1:], (z * h + (1 - z) * candidate,), (h,))
            return (h,), (tf.concat([z, r, candidate], axis=-1), h, own_h)

        over = [projected, *_given(mask)]
        (h_last,), (gates, hs, own_h) = _scanned(forward, over, (h_first,), (units, units))

        def gradient(dhs: Any, dh_last: Any) -> Any:
            z, r, candidate = tf.split(gates, 3, axis=-1)
            h_before = _before(h_first, hs)
            into_x_h = (1 - z) * (1 - candidate * candidate)
            into_z = (h_before - candidate) * z * (1 - z)
            into_r = into_x_h * own_h * r * (1 - r)
            into_own = tf.concat([into_z, into_r, into_x_h * r], axis=-1)
            if mask is not None:
                into_own, into_x_h = (_zero_unless(mask, part) for part in (into_own, into_x_h))
                z = tf.where(mask, z, tf.ones_like(z))
            kernel_transposed = tf.transpose(kernel)

            def backward(now: Any, states: Any) -> Any:
                into_own, z, dh_out = now
                dh = states[0] + dh_out
                down = tf.concat([dh, dh, dh], axis=-1) * into_own
                return (dh * z + tf.matmul(down, kernel_transposed),), (down, dh)

            (dh,), (down, along) = _scanned(
                backward, [into_own, z, dhs], (dh_last,), (units,), backwards=True
            )
            dx = tf.concat([down[..., : 2 * units], along * into_x_h], axis=-1)
            dbias = tf.reduce_sum(down, axis=[0, 1])
            return [dx, _summed_products(h_before, down), dbias, dh]

        return (hs, h_last), gradient

    of_inputs, of_state = (None, tf.zeros([3 * units], inputs.dtype))
    if cell.bias is not None:
        of_inputs, of_state = tf.unstack(tf.convert_to_tensor(cell.bias))
    projected = _projected(inputs, cell.kernel, of_inputs)
    outputs, h = run(projected, tf.convert_to_tensor(cell.recurrent_kernel), of_state, *states)
    return outputs, h, (h,)


# -- loops over time -------------------------------------------------------------------------------


def _scanned(
    step: Callable[[Any, Any], tuple[Any, Any]],
    sequences: Sequence[Any],
    states: tuple[Any, ...],
    sizes: Sequence[int] = (),
    *,
    backwards: bool = False,
) -> tuple[Any, Any]:
    """Return the last states of a step, and its outputs for all timesteps.

    The first output has the size of the first sequence and is written in its place, which saves
    XLA an array of zeros to write to; `sizes` are those of the other outputs.
    """
    length = sequences[0].shape[0] or tf.shape(sequences[0])[0]
    batch, dtype = states[0].shape[0], states[0].dtype

    def array(size: int | None) -> tf.TensorArray:
        return tf.TensorArray(dtype, length, element_shape=[batch, size], clear_after_read=False)

    in_place = array(sequences[0].shape[-1]).unstack(sequences[0])

    def body(done: Any, states: Any, arrays: Any) -> Any:
        time = length - 1 - done if backwards else done
        others = [tf.gather(whole, time) for whole in sequences[1:]]
        states, outputs = step([arrays[0].read(time), *others], states)
        pairs = zip(arrays, outputs, strict=True)
        return done + 1, states, tuple(array.write(time, output) for array, output in pairs)

    _, states, arrays = tf.while_loop(
        lambda done, *_: done < length,
        body,
        (tf.constant(0), states, (in_place, *map(array, sizes))),
        maximum_iterations=length,
    )
    return states, [array.stack() for array in arrays]


def _given(mask: Any) -> list[Any]:
    return [] if mask is None else [mask]


def _kept(mask: Sequence[Any], new: tuple[Any, ...], old: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the new states, but the old ones where the timestep is masked."""
    if not mask:
        return new
    return tuple(tf.where(mask[0], *pair) for pair in zip(new, old, strict=True))


def _before(first: Any, states: Any) -> Any:
    """Return the states before each timestep."""
    return tf.concat([first[tf.newaxis], states[:-1]], axis=0)


def _zero_unless(mask: Any, values: Any) -> Any:
    return tf.where(mask, values, tf.zeros_like(values))


def _zero_if(mask: Any, values: Any) -> Any:
    return tf.where(mask, tf.zeros_like(values), values)


def _summed_products(states: Any, gradients: Any) -> Any:
    """Return the gradient of a kernel by which the states of all timesteps were multiplied."""
    # `tf.tensordot` would transpose the states in memory first.
    rows = [tf.reshape(part, [-1, part.shape[-1]]) for part in (states, gradients)]
    return tf.matmul(*rows, transpose_a=True)
