"""Loop: when things happen. The training loop on one page, schedule, clock, signals.

Pure: imports no TensorFlow, Keras or NumPy. The loop calls the objects it is given and yields
events; it never opens a file and never prints. Start with `train.py`.

Open files: clock, schedule, signals, train, verdict.
"""
