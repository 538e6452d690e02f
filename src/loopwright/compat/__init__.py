"""The only room that touches internals of Keras and TensorFlow, or reads their messages.

Never: knows a task, a plan or a run; changes Keras for longer than a scope, or for another thread.
`@uses` names what a function touches and what happens if it moves; `make compat` lists it.

Open files: environment, error_messages, function_names, keras_internals,
keras_optimizers, messages, out_of_memory, quiet_start, runtime_errors,
tensorflow_internals, tracebacks, xla_rewrites, xplane.
"""
