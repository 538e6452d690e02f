"""Configs: a training described by a file, and which changes of it a resumed run accepts.

This room parses and validates plain values. It never imports TensorFlow, Keras or NumPy, executes
nothing that a config names, and writes nothing but `config.yaml`.

Open files: changes, export_formats, file, names, plain_yaml, schema, space.
"""
