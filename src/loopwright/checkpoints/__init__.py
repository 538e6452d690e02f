"""Whole moments on disk: written so that a kill at any instant leaves whole ones.

Only this room opens, renames, locks or deletes files of checkpoints. It never decides when to
save. The store, the manifest, retention and the lock import no TensorFlow.
"""
