"""Who is told what happens: terminal, log, journal, TensorBoard, Keras callbacks, report.

A sink hears events and never changes the training; one that fails is switched off with a warning.
The terminal, the history and the report import no TensorFlow.
"""
