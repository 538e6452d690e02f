"""How steps are run: what a plan is, which plan ran which steps, how the fastest is found.

Pure: imports no TensorFlow, Keras or NumPy. Never compiles or runs a step: that is `engine/`; the
tuner decides from timings that it is given. The memory of choices is all that it writes.

Open files: cache, comparison, evidence, plan, record, selector, tuner.
"""
