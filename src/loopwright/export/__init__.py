"""Models for serving: written, loaded in a new process, compared, then published.

`child.py` is the new process: it imports nothing of this package.
"""
