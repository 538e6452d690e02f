"""Checkpoints of a run on disk: complete or absent, whenever the process is killed.

Never decides when to save, and touches files only through `disk`. `store`, `manifest`,
`retention` and `lock` import no TensorFlow. Another place for checkpoints is one more file: a
`Backend` like `LocalBackend`.

Open files: initial_weights, lock, manifest, retention, run_directory, snapshot, store,
tensors.
"""
