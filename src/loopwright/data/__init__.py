"""Data: the batches of a run, and the position of a reader among them.

Arrays, `tf.data` streams, generators and PyDatasets fulfil the same contract, in `source.py`: a
feed describes batches, and the reader it opens owns its position. A new kind of data is one file
plus one line in `adapter.py`. Nothing here may know a task, a step or a plan.

Open files: adapter, arrays, batches, bottleneck, generators, read_errors, readers, shards, source,
stream.
"""
