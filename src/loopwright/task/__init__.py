"""Tasks: what users write, and what can be known about it without running it.

Task, Supervised and compiled Keras models; variables by name, gradients, scheduled numbers, and
the context of a running step. Never runs a step, reads data or writes files.

Open files: context, dataflow, foreign_names, gradient_check, gradients, keras_model,
optimizers, scheduled, state, supervised, task, variables.
"""
