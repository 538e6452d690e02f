"""Export: models for serving, written, loaded in a new process, compared, then published.

Never publishes a model whose outputs were not compared. This file imports nothing: `child.py` is
that new process and must load as little of the package as it can.

Open files: exporter, request.
"""
