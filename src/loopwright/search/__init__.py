"""Search: many trainings of one config, with values that Optuna chooses; the study on disk.

A trial is a child process that trains in a run directory of its own. This room starts, watches and
ends these processes. It never imports TensorFlow, and Optuna only inside of functions.

Open files: result, study, tune.
"""
