"""Where batches come from, and where a run is in them.

Arrays, `tf.data` streams, generators and PyDatasets offer the same: `source.py`. A reader owns its
position and can save it. Nothing here knows a task or a plan.
"""
