"""Checkpoints of a run on disk: complete or absent, whenever the process is killed.

Never decides when to save, and touches files only through `disk`. `store`, `local_backend`,
`manifest`, `retention`, `lock` and `fork` import no TensorFlow. Another place for checkpoints is
one more file: a `Backend` like `local_backend`.

Open files: fork, initial_weights, lock, manifest, retention, run_directory, snapshot, store,
tensors.
"""
