"""When things happen: the training loop on one page, the schedule, the clock, signals.

Pure: nothing here imports TensorFlow, Keras or NumPy. The loop is handed what it calls and yields
events; it never opens a file and never prints. Start with `train.py`.
"""
