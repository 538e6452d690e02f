"""The only room that touches internals of Keras and TensorFlow, or reads their messages.

Never: knows a task, a plan or a run; changes Keras for longer than a scope, or for another thread.
`internals.py` lists what is touched, why, and what happens if it moves; `make compat` prints it.
Open to other rooms: `tensorflow_internals.py`, `keras_internals.py`, `keras_optimizers.py` (what
the libraries do not publish), `error_messages.py`, `runtime_errors.py`, `messages.py`,
`out_of_memory.py`, `tracebacks.py` (their errors), `random_calls.py`, `environment.py`,
`quiet_start.py`. Closed: `patches.py`, `registry.py`.
"""
