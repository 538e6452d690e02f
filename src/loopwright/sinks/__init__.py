"""Sinks receive events: terminal, log, journal, TensorBoard, callbacks, history, report.

A sink never changes the training, except for Keras callbacks; a sink that fails is disabled with a
warning. Everything that a sink needs is in the events. The terminal, the log and the report import
no TensorFlow.

Open files: curves, figures, history, keras_callbacks, log, notebook, notebook_html, notify, page,
progress_text, record, report, run_files, tensorboard, terminal.
"""
