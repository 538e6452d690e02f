"""Engine: steps traced, compiled and run by a plan; scores and predictions over data sets.

Takes a task and data, and returns numbers. Never touches a run directory, a sink or a schedule.

Open files: engine, nan, stepper, trace.
"""
