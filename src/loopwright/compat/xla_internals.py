"""The internals that XLA plans and seeds use, and what if they move."""

from loopwright.compat.internal import Internal

_FRAMEWORK = "tensorflow.python.framework"


def _of(owner: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{owner}.{name}" for name in names)


INTERNALS: tuple[Internal, ...] = (
    Internal(
        "xla_rewrites._drawing_by",
        "draw random numbers under XLA on a CPU by another algorithm, over thirty times as fast",
        "random numbers inside XLA are drawn slowly; a note of the plan says so",
        ("tensorflow.python.ops.random_ops_util.get_key_counter_alg",),
    ),
    Internal(
        "recurrent.recurrent_layers_at_once",
        "multiply all timesteps of an LSTM or a GRU at once under XLA, about 1.3 times as fast",
        "recurrent layers are slower inside XLA; a note of the plan says so",
        _of("keras.layers", "LSTM.inner_loop", "GRU.inner_loop", "LSTMCell.get_dropout_mask"),
    ),
    Internal(
        "function_names.named",
        "find a compiled XLA program under the same name for an equal model",
        "XLA compiles again for every model",
        (
            "tensorflow.python.pywrap_tfe.TFE_Py_UID",
            "keras.src.backend.tensorflow.core.name_scope",
        ),
    ),
    Internal(
        "function_names._forget_gradients",
        "trace a step with a custom gradient again under its name",
        "such a step is compiled for each model",
        (f"{_FRAMEWORK}.ops.gradient_registry._registry",),
    ),
    Internal(
        "tensorflow_internals.global_generator",
        "put back the generator that all of TensorFlow shares after a rehearsal",
        "a rehearsal, profile or search consumes numbers of tf.random.get_global_generator()",
        ("tensorflow.python.ops.stateful_random_ops.global_generator",),
    ),
    Internal(
        "tensorflow_internals.hold_operation_seeds",
        "put back the seeds of eager random operations after a rehearsal",
        "a rehearsal, profile or search consumes seeds that tf.random.set_seed gives",
        _of("tensorflow.python.eager.context.Context", "_rng", "clear_kernel_cache"),
    ),
    Internal(
        "keras_internals.global_seed",
        "put back the seed that all of Keras shares after a rehearsal",
        "a rehearsal, profile or search consumes numbers of keras.random without a seed",
        ("keras.src.backend.common.global_state.get_global_attribute",),
    ),
)
