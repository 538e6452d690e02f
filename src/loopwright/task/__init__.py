"""What a person writes, and what can be known of it before it runs.

Task, Supervised and a compiled Keras model; variables by name, gradients, scheduled numbers, and
the guards that look at a traced step. Nothing here runs a step or reads data.
"""
