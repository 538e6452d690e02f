"""Everything that depends on the insides of Keras and TensorFlow, or on their messages.

Each adaptation is scoped, says what happens if the internal moves, and has a test that fails
then. No other room may use a private name of Keras or TensorFlow.

Open files: environment, error_messages, keras_internals, keras_optimizers, out_of_memory,
quiet_start, random_calls, runtime_errors, tensorflow_internals, tracebacks.
"""
