"""Steps traced, compiled and run by a plan; scores and predictions over whole data sets.

Knows no run directory and no sinks: it is given data and a task, and returns numbers.
"""
