"""How steps are run: what a plan is, which plan ran which steps, and how the fastest is found.

Pure: nothing here imports TensorFlow, Keras or NumPy. A plan is a value; the tuner decides from
timings that it is given. Compiling and running are in `engine/`.
"""
