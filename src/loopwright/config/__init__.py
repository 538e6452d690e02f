"""A training as a file: what it may say, how it is read, what a resumed run may change.

Pure: reading a config imports no TensorFlow and runs nothing.
"""
