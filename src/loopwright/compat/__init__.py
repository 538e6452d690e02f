"""Everything that depends on the insides of Keras and TensorFlow, or on their messages.

Each adaptation is scoped, says what happens if the internal moves, and has a test that fails
then. No other room may use a private name of Keras or TensorFlow.
"""
