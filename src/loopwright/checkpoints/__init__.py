"""Checkpoints of a run on disk: complete or missing, at whatever moment the process is killed.

Never decides when to save, and touches files only through `disk`. `store`, `local_backend`,
`manifest`, `retention`, `lock` and `inspection` import no TensorFlow.
Open to other rooms: `run_directory` (Run), `store` (Store, Backend), `manifest`, `snapshot`,
`retention` (KeepLatest, KeepBest), `tensors`, `lock`, `inspection`, `initial_weights`. Another
place for checkpoints is one more file: a `Backend` like `local_backend`.
"""
