"""Internals of Keras and TensorFlow, and their messages; `rewrites` has a few of its own.

Never: knows a task, a plan or a run; changes Keras for longer than a scope, or for another thread.
`@uses` names what a function touches and what happens if it moves; `make compat` lists it.

Open files: function_names, internals, keras_internals, keras_optimizers, lines, messages,
step_errors, tensorflow_internals, xplane.
"""
