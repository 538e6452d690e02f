"""Configs: a training described by a file, and the edits that a resumed run accepts.

This room parses and validates plain values. It never imports TensorFlow, Keras or NumPy, executes
nothing that a config names, and writes nothing but `config.yaml`. Other rooms use `file` (load,
save), `schema` (Config), `changes` (between two configs), `edits` (between two programs) and
`names` (the parts that a config may name); `plain_yaml` is internal.
"""
